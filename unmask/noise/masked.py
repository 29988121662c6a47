"""Masked (absorbing) noise: a token becomes the mask and stays it.

Sahoo et al. 2024 (MDLM, arXiv 2406.07524), Shi et al. 2024 (MD4, 2406.04329), Ou et al. 2024 (RADD,
2406.03736). The mask has no place among the network's predictions: this process removes its logit.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.streams import RowStreams
from unmask.noise.process import Times, check_tokens, check_vocabulary
from unmask.noise.schedules import Linear, Schedule, check_schedule, check_times, clamp_open


@dataclass(frozen=True)
class Masked:
    """Tokens 0 … num_tokens - 1 (without the mask, if it stands among them) and a mask."""

    num_tokens: int
    """Values that a clean token can have: rows of the logits, the mask's own not counted."""
    mask_id: int
    schedule: Schedule = field(default_factory=Linear)

    def __post_init__(self) -> None:
        check_vocabulary(self.num_tokens)
        check_schedule(self.schedule)

    @property
    def num_states(self) -> int:
        return max(self.num_tokens, self.mask_id) + 1

    def corrupt(self, x0: Int[Tensor, "B L"], t: Times, streams: RowStreams) -> Int[Tensor, "B L"]:
        check_times(t)
        check_tokens(x0, self.num_states, self.mask_id)
        hidden = streams.uniform(*x0.shape[1:]) < self.schedule.noised(t.double())
        return torch.where(hidden, self.mask_id, x0)

    def prior(self, length: int, streams: RowStreams) -> Int[Tensor, "B L"]:
        return torch.full((streams.rows, length), self.mask_id, device=streams.keys.device)

    def needs(self, xt: Int[Tensor, "B L"]) -> Tensor:
        return xt == self.mask_id

    def predict(self, logits: Float[Tensor, "*S V"]) -> Float[Tensor, "*S K"]:
        """log p(x0 | x_t) at masked positions: the mask itself is impossible."""
        if logits.shape[-1] <= self.mask_id:
            return logits.log_softmax(-1)
        is_mask = torch.arange(logits.shape[-1], device=logits.device) == self.mask_id
        return logits.masked_fill(is_mask, -torch.inf).log_softmax(-1)

    def nll(
        self, logits: Float[Tensor, "*S V"], x0: Int[Tensor, "*S"], xt: Int[Tensor, "*S"], t: Times
    ) -> Float[Tensor, "*S"]:
        """w_t times the cross-entropy where masked, 0 elsewhere (MDLM, equation 10)."""
        check_times(t)
        check_tokens(x0, self.num_states, self.mask_id)
        logp = self.predict(logits).gather(-1, x0[..., None])[..., 0]
        hidden = xt == self.mask_id
        # Zeros are put in before the product: 0 times an infinite weight would be no number.
        weight = torch.where(hidden, self.schedule.weight(clamp_open(t)).detach(), 0.0)
        return -torch.where(hidden, logp, 0.0) * weight.to(logp.dtype)

    def posterior(
        self, logits: Float[Tensor, "*S V"], xt: Int[Tensor, "*S"], t: Times, s: Times
    ) -> Float[Tensor, "*S N"]:
        return self._unmask(self.predict(logits), xt, t, s)

    def true_posterior(
        self, x0: Int[Tensor, "*S"], xt: Int[Tensor, "*S"], t: Times, s: Times
    ) -> Float[Tensor, "*S N"]:
        return self._unmask(F.one_hot(x0, self.num_states).to(t.dtype).log(), xt, t, s)

    def _unmask(self, logp: Tensor, xt: Tensor, t: Times, s: Times) -> Tensor:
        """A mask stays with probability p_s / p_t, else takes a value; a token is copied."""
        check_times(t, s)
        noised_t = self.schedule.noised(t).clamp(min=1e-30)
        stay = (self.schedule.noised(s) / noised_t).clamp(max=1.0)[..., None]
        logp = F.pad(logp, (0, self.num_states - logp.shape[-1]), value=-torch.inf)
        at_mask = torch.arange(self.num_states, device=xt.device) == self.mask_id
        hidden = torch.where(at_mask, stay.log(), logp + (1 - stay).log())
        copied = F.one_hot(xt, self.num_states).to(logp.dtype).log()
        return torch.where((xt == self.mask_id)[..., None], hidden, copied)

"""Masked (absorbing) noise: a token becomes the mask and stays it.

Sahoo et al. 2024 (MDLM, arXiv 2406.07524), Shi et al. 2024 (MD4, 2406.04329), Ou et al. 2024 (RADD,
2406.03736). The mask is never predicted: this process removes its logit.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.config import LARGEST
from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.data.tokenizer import Tokenizer
from unmask.noise.guidance import mix
from unmask.noise.process import Process, Sampler, Times, check_clean_tokens, check_vocabulary
from unmask.noise.schedules import LinearSchedule, Schedule, check_schedule, check_times, clamp_open
from unmask.noise.settings import NoiseConfig


@dataclass(frozen=True)
class Masked(Process):
    """Noise that turns tokens into a mask, one by one, until at t = 1 all are masked.

    Args:
        num_tokens: Values that a clean token can have: rows of the logits without the mask's own.
        mask_id: The mask's token id: `num_tokens` where it comes after the tokens, less where it
            stands among them.
        schedule: How fast tokens are noised (`unmask.noise.schedules`); linear by default.

    >>> from unmask.base.streams import RowStreams
    >>> process = unmask.Masked(num_tokens=9, mask_id=9)
    >>> x0, t = torch.tensor([[3, 1, 4]]), torch.tensor([[1.0]])  # [B, L] and [B, 1]
    >>> process.corrupt(x0, t, RowStreams.make(seed=0, rows=1))
    tensor([[9, 9, 9]])
    """

    has_mask: ClassVar[bool] = True
    objectives: ClassVar[tuple[str, ...]] = (
        "smdm",
        "smdm_sft",
        "llada",
        "mdlm",
        "bound",
        "score_entropy",
        "fixed_rate",
        "suffix",
        "preference",
        "by_token",
        "joint",
    )
    sampler: ClassVar[Sampler] = "unmasking"
    masks_evenly: ClassVar[bool] = True
    """Whether tokens are masked as the schedule says, each alike: what the weightings count on."""

    num_tokens: int
    mask_id: int = field()
    schedule: Schedule = field(default_factory=LinearSchedule)

    def __init_subclass__(cls) -> None:
        """Have a kind that masks or weighs in its own way minimise its own bound alone."""
        super().__init_subclass__()
        if {"corrupt", "nll"} & vars(cls).keys():
            cls.masks_evenly = False
            cls.objectives = vars(cls).get("objectives", ("bound",))

    def __post_init__(self) -> None:
        check_vocabulary(self.num_tokens)
        check_schedule(self.schedule)
        if not isinstance(self.mask_id, int) or not 0 <= self.mask_id <= LARGEST:
            raise UserError(
                f"the mask's id is {self.mask_id!r:.60}: expected a whole number from 0."
            )

    @classmethod
    def from_config(
        cls,
        config: NoiseConfig,
        schedule: Schedule,
        num_logits: int,
        mask_id: int | None,
        tokenizer: Tokenizer | None = None,
    ) -> Self:
        assert mask_id is not None
        return cls(num_logits - (mask_id < num_logits), mask_id, schedule)

    @property
    def num_states(self) -> int:
        return max(self.num_tokens, self.mask_id) + 1

    def corrupt(self, x0: Int[Tensor, "B L"], t: Times, streams: RowStreams) -> Int[Tensor, "B L"]:
        check_times(t)
        check_clean_tokens(x0, self.num_states, self.mask_id)
        hidden = streams.uniform(*x0.shape[1:]) < self.schedule.noised(t.double())
        return torch.where(hidden, self.mask_id, x0)

    def prior(self, length: int, streams: RowStreams) -> Int[Tensor, "B L"]:
        return torch.full((streams.rows, length), self.mask_id, device=streams.keys.device)

    def needs(self, xt: Int[Tensor, "B L"]) -> Bool[Tensor, "B L"]:
        return xt == self.mask_id

    def nll(
        self, logits: Float[Tensor, "*S V"], x0: Int[Tensor, "*S"], xt: Int[Tensor, "*S"], t: Times
    ) -> Float[Tensor, "*S"]:
        """w_t times the cross-entropy where masked, 0 elsewhere (MDLM, equation 10)."""
        logp = self.predict(logits).gather(-1, x0[..., None])[..., 0]
        hidden = xt == self.mask_id
        # Zeros are put in before the product: 0 times an infinite weight is not a number.
        weight = torch.where(hidden, self.schedule.weight(clamp_open(t)), 0.0)
        return -torch.where(hidden, logp, 0.0) * weight.to(logp.dtype)

    def posterior(
        self, logits: Float[Tensor, "*S V"], xt: Int[Tensor, "*S"], t: Times, s: Times
    ) -> Float[Tensor, "*S N"]:
        return self._unmask(self.predict(logits), xt, t, s)

    def guided_posterior(
        self,
        conditional: Tensor,
        unconditional: Tensor,
        guidance: float,
        xt: Tensor,
        t: Times,
        s: Times,
    ) -> Tensor:
        """Log-probabilities of x_s under guidance: the network's logits are mixed."""
        # Without guidance the unconditional logits do not count, even infinite ones.
        logits = mix(conditional, unconditional, guidance) if guidance else conditional
        return self.posterior(logits, xt, t, s)

    def true_posterior(
        self, x0: Int[Tensor, "*S"], xt: Int[Tensor, "*S"], t: Times, s: Times
    ) -> Float[Tensor, "*S N"]:
        return self._unmask(F.one_hot(x0, self.num_states).to(t.dtype).log(), xt, t, s)

    def _unmask(self, logp: Tensor, xt: Tensor, t: Times, s: Times) -> Tensor:
        """A mask stays with probability p_s / p_t, else takes a value; a token is copied."""
        if not self.masks_evenly:
            raise UserError(
                f"{type(self).__name__} noise masks in its own way: define its posterior, or draw "
                "texts by un-masking, which needs none."
            )
        noised_t = self.schedule.noised(t).clamp(min=1e-30)
        stay = (self.schedule.noised(s) / noised_t).clamp(max=1.0)[..., None]
        logp = F.pad(logp, (0, self.num_states - logp.shape[-1]), value=-torch.inf)
        at_mask = torch.arange(self.num_states, device=xt.device) == self.mask_id
        hidden = torch.where(at_mask, stay.log(), logp + (1 - stay).log())
        copied = F.one_hot(xt, self.num_states).to(logp.dtype).log()
        return torch.where((xt == self.mask_id)[..., None], hidden, copied)

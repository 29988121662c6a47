"""Masked noise whose speed depends on the token: some are hidden early, others late (GenMD4).

Shi et al. 2024 (MD4, arXiv 2406.04329, section 6): token v is still there at time t with
probability alpha_v(t) = 1 - t^{w_v}. With mu the network's prediction at a mask, the integrand of
the bound there is

    1/t [ sum over v of w_v mu_v  -  w_x0  -  w_x0 log mu_x0 ],

which for equal powers w is the masked bound. A mask says something about what it hides: a late one
is more likely to be a token that goes late, so that the network should be given the time. Powers
can be learned: the noise depends on them, so that their gradient needs more than the integrand's
own (`unmask.objectives.warping.leave_one_out`).
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.noise.process import Sampler, Times, TokensFirst, check_clean_tokens
from unmask.noise.schedules import LinearSchedule, Schedule, check_times, clamp_open


@dataclass(frozen=True)
class StateMasked(TokensFirst):
    """Masked noise with a power for each token; its mask comes right after the tokens.

    Args:
        powers: w_v > 0 of the V tokens; 1 is linear noise, less is hidden early, more late.

    >>> process = StateMasked(torch.tensor([0.5, 1.0, 2.0]))
    >>> process.mask_id, process.hidden_chance(torch.tensor([0, 2]), torch.tensor(0.25))
    (3, tensor([0.5000, 0.0625]))
    """

    has_mask: ClassVar[bool] = True
    sampler: ClassVar[Sampler] = "ancestral"

    powers: Float[Tensor, "V"]
    schedule: Schedule = field(default_factory=LinearSchedule)
    """The schedule of a token whose power is 1."""

    def __post_init__(self) -> None:
        if self.powers.ndim != 1 or len(self.powers) < 2 or not bool((self.powers > 0).all()):
            raise UserError("the powers of state-dependent noise: expected one above 0 per token.")
        if not isinstance(self.schedule, LinearSchedule):
            raise UserError("state-dependent noise has powers of linear noise: use that schedule.")

    @property
    def num_tokens(self) -> int:
        return len(self.powers)

    @property
    def mask_id(self) -> int:
        return self.num_tokens

    def hidden_chance(self, x0: Int[Tensor, "*S"], t: Times) -> Float[Tensor, "*S"]:
        """The probability that a token is a mask at time t: t^{w_x0}."""
        return t ** self.powers[x0]

    def corrupt(self, x0: Int[Tensor, "B L"], t: Times, streams: RowStreams) -> Int[Tensor, "B L"]:
        check_times(t)
        check_clean_tokens(x0, self.num_tokens, self.mask_id)
        hidden = streams.uniform(x0.shape[1]) < self.hidden_chance(x0, t.double())
        return torch.where(hidden, self.mask_id, x0)

    def prior(self, length: int, streams: RowStreams) -> Int[Tensor, "B L"]:
        return torch.full((streams.rows, length), self.mask_id, device=streams.keys.device)

    def needs(self, xt: Int[Tensor, "B L"]) -> Bool[Tensor, "B L"]:
        return xt == self.mask_id

    def nll(
        self, logits: Float[Tensor, "*S V"], x0: Int[Tensor, "*S"], xt: Int[Tensor, "*S"], t: Times
    ) -> Float[Tensor, "*S"]:
        logp = self.predict(logits)
        powers = self.powers.to(logp.dtype)
        mean, own = logp.exp() @ powers, powers[x0]
        terms = mean - own - own * logp.gather(-1, x0[..., None])[..., 0]
        return torch.where(xt == self.mask_id, terms / clamp_open(t).to(logp.dtype), 0.0)

    def _step_back(self, logp: Tensor, xt: Tensor, t: Times, s: Times) -> Tensor:
        """A mask that hides v stays with probability (s / t)^{w_v}; a token is copied."""
        ratio = (s / t.clamp(min=1e-30)).clamp(max=1.0)[..., None]
        stay = ratio ** self.powers.to(logp.dtype)
        staying = torch.logsumexp(logp + stay.log(), -1, keepdim=True)
        hidden = torch.cat((logp + torch.log1p(-stay), staying), -1)
        copied = F.one_hot(xt, self.num_states).to(logp.dtype).log()
        return torch.where((xt == self.mask_id)[..., None], hidden, copied)

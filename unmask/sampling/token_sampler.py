"""Token samplers: which token a position proposes, from the likeliest to a free draw."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.errors import UserError


@dataclass(frozen=True)
class TokenSampler:
    """Temperature 0 takes the likeliest token; above it, one is drawn among those let through."""

    temperature: float = 0.0
    top_k: int | None = None
    """Only the k likeliest may be drawn."""
    top_p: float | None = None
    """Only the likeliest that together have this probability, at least one."""
    stochastic: float = 1.0
    """The share of the steps that draw; the last ones take the likeliest (hybrid sampling)."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UserError(
                f"a temperature of {self.temperature} was asked for: expected 0 or more."
            )
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k is {self.top_k}: expected at least 1 token to draw from.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p}: expected a probability above 0, at most 1.")
        if not 0 <= self.stochastic <= 1:
            raise UserError(f"a stochastic share of {self.stochastic} was given: expected 0 to 1.")
        if self.temperature == 0 and (self.top_k, self.top_p, self.stochastic) != (None, None, 1):
            raise UserError(
                "top_k, top_p and the stochastic share are for drawn tokens: give a temperature "
                "above 0 as well."
            )

    def at(self, step: int, steps: int) -> "TokenSampler":
        """The sampler of one step of so many: greedy once the stochastic share is used up.

        A plan that paces itself may go on after the last one, and goes on drawing if all draw.
        """
        draws = self.temperature > 0 and (self.stochastic == 1 or step <= self.stochastic * steps)
        return self if draws else TokenSampler()

    def sharpen(self, logp: Float[Tensor, "*N V"]) -> Float[Tensor, "*N V"]:
        """log p as it is drawn from: at the temperature, -inf for what is not let through."""
        if self.temperature == 0:
            first = logp.argmax(-1, keepdim=True)
            return torch.full_like(logp, -torch.inf).scatter(-1, first, 0.0)
        logp = (logp / self.temperature).log_softmax(-1)
        if self.top_k is not None and self.top_k < logp.shape[-1]:
            least = logp.topk(self.top_k, dim=-1).values[..., -1:]
            logp = logp.masked_fill(logp < least, -torch.inf)
        if self.top_p is not None and self.top_p < 1:
            ranked, ids = logp.log_softmax(-1).sort(dim=-1, descending=True, stable=True)
            p = ranked.exp()
            before = p.cumsum(-1) - p
            dropped = torch.zeros_like(before, dtype=torch.bool).scatter(
                -1, ids, before >= self.top_p
            )
            logp = logp.masked_fill(dropped, -torch.inf)
        return logp.log_softmax(-1)

    def draw(
        self, logp: Float[Tensor, "N V"], draws: Float[Tensor, "N"] | None
    ) -> Int[Tensor, "N"]:
        """A token for each row: the likeliest, or the one at a uniform number."""
        if self.temperature == 0:
            return logp.argmax(-1)
        assert draws is not None
        return invert(self.sharpen(logp), draws)


def invert(logp: Float[Tensor, "*N V"], draws: Float[Tensor, "*N"]) -> Int[Tensor, "*N"]:
    """The value at a uniform number of each distribution, in float64.

    The same law as Gumbel noise on every value, with one number instead of V.
    """
    total = logp.double().exp().cumsum(-1)
    index = torch.searchsorted(total, draws[..., None] * total[..., -1:])[..., 0]
    return index.clamp(max=logp.shape[-1] - 1)

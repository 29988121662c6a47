"""What a network says about the open positions of a batch, at one step."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Guess:
    """Predictions at the open positions alone, N of them; everything else is never computed."""

    open: Bool[Tensor, "B L"]
    logp: Float[Tensor, "N V"]
    """log p(token), the mask impossible, in float64."""
    proposed: Int[Tensor, "N"]

    def spread(self, values: Tensor, elsewhere: float) -> Tensor:
        """Values of the open positions in their places [B, L]."""
        canvas = torch.full(self.open.shape, elsewhere, dtype=values.dtype, device=values.device)
        return canvas.masked_scatter(self.open, values)

    @cached_property
    def confidence(self) -> Float[Tensor, "N"]:
        """The probability of each proposed token."""
        return self.logp.gather(-1, self.proposed[:, None])[:, 0].exp()

    @cached_property
    def entropy(self) -> Float[Tensor, "N"]:
        """In nats."""
        return find_entropy(self.logp)

    def find_entropy_at(self, chosen: Bool[Tensor, "B L"]) -> Float[Tensor, "n"]:
        """The entropy at some of the open positions: all of them would cost several passes."""
        if "entropy" in self.__dict__:
            return self.entropy[chosen[self.open]]
        return find_entropy(self.logp[chosen[self.open]])


def find_entropy(logp: Float[Tensor, "*N V"]) -> Float[Tensor, "*N"]:
    """Of each distribution, in nats."""
    return torch.special.entr(logp.exp()).sum(-1)

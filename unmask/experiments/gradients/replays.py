"""Surrogates that read a text's own steps again, and what all surrogates have in common.

Each surrogate is a sum of weighted log-probabilities of tokens on canvases, which are its passes
through the network; its gradient is theirs. All are taken on policy, where ratios to the old policy
are 1 and nothing is clipped, with the reward minus the expected one as advantage: a group of any
size, its mean known. Sums over a text's tokens are not divided by its length, which is one for all.
What is expected is computed in closed form, single estimates are drawn.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.experiments.gradients.canvases import sum_weights
from unmask.experiments.gradients.laws import SamplerLaw
from unmask.experiments.gradients.walks import Walks

Weights = Float[Tensor, "N R L V"]
WeightedPass = tuple[Int[Tensor, "N M"], Int[Tensor, "N M L"], Float[Tensor, "N M L"]]
"""Rows of the policy, tokens, and the weight of each token's log-probability there."""


@dataclass(frozen=True)
class Surrogate(ABC):
    """One way to make a gradient of texts with rewards."""

    texts: int = 1
    """Texts of one estimate."""

    @abstractmethod
    def count_passes(self, steps: int) -> int:
        """Passes of one estimate beside those that draw its texts, each of so many steps."""

    @abstractmethod
    def expect(self, law: SamplerLaw) -> Weights:
        """The expected weights of log-probabilities."""

    @abstractmethod
    def draw(
        self, law: SamplerLaw, walks: Walks, generator: torch.Generator
    ) -> Iterator[WeightedPass]:
        """The passes of one estimate for each of the walks."""


@dataclass(frozen=True)
class StepReplay(Surrogate):
    """The steps that wrote a text are read again: its committed tokens, or every proposal."""

    proposals: bool = False
    steps_drawn: int | None = None
    """How many of the steps are read, drawn evenly; by default all."""

    def count_passes(self, steps: int) -> int:
        return self.steps_drawn or steps

    def expect(self, law: SamplerLaw) -> Weights:
        return law.weigh_proposals() if self.proposals else law.weigh_committed()

    def draw(
        self, law: SamplerLaw, walks: Walks, generator: torch.Generator
    ) -> Iterator[WeightedPass]:
        steps = len(walks.canvases)
        count = self.steps_drawn or steps
        order = torch.rand(*walks.advantages.shape, steps, generator=generator).argsort(-1)
        for number in range(count):
            # All steps in their turn, or as many as are drawn, those of each walk its own.
            at = order[..., number][None]
            canvas = walks.canvases.gather(0, at)[0]
            places = at[..., None].expand(1, *walks.texts.shape)
            parts = walks.masked if self.proposals else walks.chosen
            tokens, counts = walks.drawn.gather(0, places)[0], parts.gather(0, places)[0]
            yield canvas, tokens, walks.advantages[..., None] * counts * (steps / count)


@dataclass(frozen=True)
class WindowReplay(Surrogate):
    """TraceRL: so many steps at a time are read on the canvas that the first of them read."""

    width: int = 2

    def count_passes(self, steps: int) -> int:
        return -(-steps // self.width)

    def expect(self, law: SamplerLaw) -> Weights:
        lattice, each = law.lattice, law.sampler.each
        choices = torch.cartesian_prod(*[torch.arange(2 * lattice.tokens + 1)] * lattice.length)
        written = torch.where(choices < lattice.tokens, choices, lattice.mask)
        revealed = (choices >= lattice.tokens) & (choices < 2 * lattice.tokens)
        after = torch.where(revealed, choices - lattice.tokens, written)
        begins = ((written < lattice.mask).sum(-1) % (each * self.width)) == 0
        written, revealed, after = written[begins], revealed[begins], after[begins]
        before, end = lattice.encode(written), lattice.encode(after)
        moves = law.moves.clone()
        moves[:, lattice.text_codes, lattice.text_codes] = 1.0  # the last window may be shorter
        moves = torch.linalg.matrix_power(moves, self.width)
        worth = law.value[:, end] - law.expected[:, None]
        gain = law.reach[:, before] * moves[:, before, end] * worth
        return sum_weights(lattice, before, after, gain[..., None] * revealed)

    def draw(
        self, law: SamplerLaw, walks: Walks, generator: torch.Generator
    ) -> Iterator[WeightedPass]:
        for first in range(0, len(walks.canvases), self.width):
            counts = walks.chosen[first : first + self.width].any(0)
            yield walks.canvases[first], walks.texts, walks.advantages[..., None] * counts

"""What the literature descends in place of the gradient of the expected reward.

Beside the replay of steps (`unmask.experiments.gradients.replays`) these are surrogates that see a
text alone, not what wrote it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import comb

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.experiments.gradients.canvases import Lattice, sum_weights
from unmask.experiments.gradients.laws import SamplerLaw
from unmask.experiments.gradients.replays import (
    StepReplay,
    Surrogate,
    WeightedPass,
    Weights,
    WindowReplay,
)
from unmask.experiments.gradients.walks import Walks

PROMPT_RATE = 0.15
"""Chance that d1 and wd1 hide a token of the prompt."""
COUPLED = (0.2, 0.8)
"""Between which shares coupled-GRPO hides a completion."""
BETA, MIX = 1.5, 0.5
"""SPG's exponent of the upper bound, and the share of it in the mixture."""


@dataclass(frozen=True)
class MeanField(Surrogate):
    """d1: all tokens on one canvas that is all masks, tokens of the prompt hidden by chance.

    `wd1` weighs texts by exp(A) and exp(-A), each with a mean of 1, in place of the advantage.
    """

    is_exponential: bool = False

    def count_passes(self, steps: int) -> int:
        return 1

    def weigh(self, law: SamplerLaw) -> Float[Tensor, "N X"]:
        """What each text counts."""
        if not self.is_exponential:
            return law.advantages
        good, bad = law.advantages.exp(), (-law.advantages).exp()
        good = good / (law.texts * good).sum(-1, keepdim=True)
        return good - bad / (law.texts * bad).sum(-1, keepdim=True)

    def expect(self, law: SamplerLaw) -> Weights:
        lattice = law.lattice
        rates = torch.where(lattice.hidden_prompts, PROMPT_RATE, 1 - PROMPT_RATE).prod(-1)
        amounts = (law.texts * self.weigh(law))[..., None] * rates.to(law.rewards)  # [N, X, Q]
        rows = lattice.prompt_rows.expand(len(lattice.texts), -1).flatten()
        tokens = lattice.texts.repeat_interleave(len(rates), dim=0)
        weights = amounts.flatten(1)[..., None].expand(-1, -1, lattice.length)
        return sum_weights(lattice, rows, tokens, weights)

    def draw(
        self, law: SamplerLaw, walks: Walks, generator: torch.Generator
    ) -> Iterator[WeightedPass]:
        lattice = law.lattice
        hides = torch.rand(*walks.numbers.shape, lattice.prompt, generator=generator) < PROMPT_RATE
        powers = 2 ** torch.arange(lattice.prompt - 1, -1, -1)
        rows = lattice.start + (hides * powers).sum(-1)
        amounts = self.weigh(law).gather(1, walks.numbers)[..., None]
        yield rows, walks.texts, amounts.expand(-1, -1, lattice.length)


@dataclass(frozen=True)
class BoundGradient(Surrogate):
    """The evidence lower bound (ELBO) in place of log p: so many masks a text, each at a time of
    its own. `coupled` masks are a pair, of which the second hides what the first shows (ESPO).
    """

    masks: int = 1
    coupled: bool = False

    def count_passes(self, steps: int) -> int:
        return self.masks

    def weigh(self, law: SamplerLaw) -> Float[Tensor, "N X"]:
        return law.advantages

    def expect(self, law: SamplerLaw) -> Weights:
        return weigh_hidden(law, law.texts * self.weigh(law), share_bound(law.lattice))

    def draw(
        self, law: SamplerLaw, walks: Walks, generator: torch.Generator
    ) -> Iterator[WeightedPass]:
        lattice, shape = law.lattice, walks.texts.shape
        amounts = self.weigh(law).gather(1, walks.numbers)[..., None] / self.masks
        if not self.coupled:
            for _ in range(self.masks):
                hides = draw_hidden(shape, generator, 1)
                yield _read(lattice, walks, hides, amounts * lattice.length / _count(hides))
            return
        assert self.masks == 2, "masks are coupled in pairs"
        hides = draw_hidden(shape, generator, 0)
        for side in (hides, ~hides):
            # Either side's number is one of 0 to L: with none hidden, nothing is learned there.
            yield _read(lattice, walks, side, amounts * (lattice.length + 1) / _count(side))


@dataclass(frozen=True)
class CoupledReplay(Surrogate):
    """coupled-GRPO: half the tokens' log-probabilities under a mask and its complement, each
    divided by its rate, and half those on a canvas that is all masks.
    """

    def count_passes(self, steps: int) -> int:
        return 3

    def expect(self, law: SamplerLaw) -> Weights:
        lattice, (low, high) = law.lattice, COUPLED
        rates = low + (high - low) * (torch.arange(4096, dtype=torch.float64) + 0.5) / 4096
        number = lattice.hides.sum(-1, keepdim=True)
        chances = rates ** (number - 1) * (1 - rates) ** (lattice.length - number)
        share = chances.mean(-1, keepdim=True) * lattice.hides
        share[-1] += 0.5  # the last set hides everything
        return weigh_hidden(law, law.texts * law.advantages, share)

    def draw(
        self, law: SamplerLaw, walks: Walks, generator: torch.Generator
    ) -> Iterator[WeightedPass]:
        (low, high), lattice = COUPLED, law.lattice
        rate = low + (high - low) * torch.rand(
            *walks.numbers.shape, 1, generator=generator, dtype=torch.float64
        )
        hides = torch.rand(walks.texts.shape, generator=generator) < rate
        amounts = walks.advantages[..., None] / 2
        yield _read(lattice, walks, torch.ones_like(hides), amounts)
        yield _read(lattice, walks, hides, amounts / rate)
        yield _read(lattice, walks, ~hides, amounts / (1 - rate))


@dataclass(frozen=True)
class Sandwich(Surrogate):
    """SPG: texts better than expected raise the lower bound, worse ones lower an upper bound.

    The upper bound of a token is log E[p^beta] / beta over two masks that hide it, weighed as the
    lower bound weighs them; `mix` is its share, the lower bound has the rest.
    """

    mix: float = 1.0

    def count_passes(self, steps: int) -> int:
        return 2

    def expect(self, law: SamplerLaw) -> Weights:
        lattice = law.lattice
        chance = chance_of_hidden(lattice)
        own = law.log_p[:, lattice.hidden].transpose(-1, -2)  # [N, X, H, V, L]
        picked = lattice.texts[:, None, None].expand(*own.shape[:3], 1, -1)
        power = (BETA * own.gather(-2, picked)[..., 0, :]).exp()  # [N, X, H, L]
        number = lattice.hides.sum(-1, keepdim=True).clamp(min=1)
        weights = power * lattice.hides / number
        share = torch.zeros_like(weights)
        for other in range(1, len(chance)):  # what the second mask hides
            either = (lattice.hides | lattice.hides[other]).sum(-1, keepdim=True)
            both = (weights + weights[:, :, other : other + 1]).clamp(min=1e-300)
            share += 2 * chance[other] * weights / both * lattice.length / either
        share = share * chance[:, None]
        good, bad = (law.texts * part for part in _part(law.advantages))
        bound = share_bound(lattice)
        lower = weigh_hidden(law, good + (1 - self.mix) * bad, bound)
        return lower + weigh_hidden(law, self.mix * bad, share)

    def draw(
        self, law: SamplerLaw, walks: Walks, generator: torch.Generator
    ) -> Iterator[WeightedPass]:
        lattice = law.lattice
        hides = [draw_hidden(walks.texts.shape, generator, 1) for _ in range(2)]
        numbers = [_count(side) for side in hides]
        rows = [_read(lattice, walks, side, walks.advantages[..., None])[0] for side in hides]
        policies = torch.arange(len(law.log_p))[:, None]
        own = [law.log_p[policies, row] for row in rows]
        power = [
            (BETA * each.gather(-1, walks.texts[..., None])[..., 0]).exp() * side / number
            for each, side, number in zip(own, hides, numbers, strict=True)
        ]
        both = sum(power[1:], power[0]).clamp(min=1e-300)
        either = _count(hides[0] | hides[1])
        good, bad = _part(walks.advantages[..., None])
        for side, number, row, weight in zip(hides, numbers, rows, power, strict=True):
            lower = (good + (1 - self.mix) * bad) * side * lattice.length / number / 2
            upper = self.mix * bad * weight / both * lattice.length / either
            yield row, walks.texts, lower + upper


@dataclass(frozen=True)
class PairedBounds(BoundGradient):
    """VRPO: DPO's first step on pairs of texts, of which the one with the higher reward is chosen.

    The model is its own reference and shares its masks, so both margins are 0 and every pair counts
    the same: the difference of the bounds' gradients. The reference's passes are counted.
    """

    texts: int = 2
    masks: int = 2

    def count_passes(self, steps: int) -> int:
        return 2 * self.texts * self.masks

    def weigh(self, law: SamplerLaw) -> Float[Tensor, "N X"]:
        above = (law.rewards[:, :, None] - law.rewards[:, None]).sign()
        return (above * law.texts[:, None]).sum(-1)

    def draw(
        self, law: SamplerLaw, walks: Walks, generator: torch.Generator
    ) -> Iterator[WeightedPass]:
        halves = [_take(walks, slice(first, None, 2)) for first in (0, 1)]
        above = (halves[0].advantages - halves[1].advantages).sign() / 2
        lattice = law.lattice
        for half, sign in zip(halves, (above, -above), strict=True):
            for _ in range(self.masks):
                hides = draw_hidden(half.texts.shape, generator, 1)
                amounts = sign[..., None] * lattice.length / _count(hides) / self.masks
                yield _read(lattice, half, hides, amounts)


SURROGATES: dict[str, Surrogate] = {
    "proposals": StepReplay(proposals=True),
    "replay": StepReplay(),
    "agrpo": StepReplay(steps_drawn=1),
    "tracerl": WindowReplay(),
    "bound": BoundGradient(),
    "espo": BoundGradient(masks=2, coupled=True),
    "vrpo": PairedBounds(),
    "spg": Sandwich(),
    "spg-mix": Sandwich(mix=MIX),
    "coupled": CoupledReplay(),
    "d1": MeanField(),
    "wd1": MeanField(is_exponential=True),
}


def weigh_hidden(
    law: SamplerLaw, amounts: Float[Tensor, "N X"], share: Float[Tensor, "*X H L"]
) -> Weights:
    """Weights of texts' tokens where they are hidden: `share` of them on each set's canvas."""
    lattice = law.lattice
    weights = amounts[..., None, None] * share.to(amounts)  # [N, X, H, L]
    tokens = lattice.texts.repeat_interleave(len(lattice.hides), dim=0)
    return sum_weights(lattice, lattice.hidden.flatten(), tokens, weights.flatten(1, 2))


def chance_of_hidden(lattice: Lattice) -> Float[Tensor, "H"]:
    """Each set's chance when its size is drawn evenly from 1 to L."""
    sizes = lattice.hides.sum(-1).tolist()
    counts = [comb(lattice.length, size) * lattice.length if size else 0 for size in sizes]
    return torch.tensor([1 / count if count else 0.0 for count in counts], dtype=torch.float64)


def share_bound(lattice: Lattice) -> Float[Tensor, "H L"]:
    """The bound's weights: E over sizes of L / size, on what is hidden."""
    number = lattice.hides.sum(-1, keepdim=True).clamp(min=1)
    return chance_of_hidden(lattice)[:, None] * lattice.hides * lattice.length / number


def draw_hidden(shape: torch.Size, generator: torch.Generator, least: int) -> Tensor:
    """A set of positions for each row, its size drawn evenly from `least` to all of them."""
    length = shape[-1]
    sizes = torch.randint(least, length + 1, (*shape[:-1], 1), generator=generator)
    ranks = torch.rand(shape, generator=generator).argsort(-1).argsort(-1)
    return ranks < sizes


def _count(hides: Tensor) -> Float[Tensor, "*n 1"]:
    return hides.sum(-1, keepdim=True).clamp(min=1).double()


def _part(advantages: Tensor) -> tuple[Tensor, Tensor]:
    """What is above 0, and what is below."""
    return advantages.clamp(min=0), advantages.clamp(max=0)


def _read(lattice: Lattice, walks: Walks, hides: Tensor, amounts: Tensor) -> WeightedPass:
    """A pass over texts with these positions hidden, which are what it learns."""
    rows = lattice.encode(torch.where(hides, lattice.mask, walks.texts))
    return rows, walks.texts, (amounts * hides).expand(walks.texts.shape)


def _take(walks: Walks, which: slice) -> Walks:
    """Some of the walks of each policy."""
    return replace(
        walks,
        canvases=walks.canvases[:, :, which],
        masked=walks.masked[:, :, which],
        drawn=walks.drawn[:, :, which],
        chosen=walks.chosen[:, :, which],
        texts=walks.texts[:, which],
        numbers=walks.numbers[:, which],
        advantages=walks.advantages[:, which],
    )

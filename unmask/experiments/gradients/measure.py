"""gradients: which surrogate of the policy gradient points where the expected reward rises?

Reinforcement learning of masked diffusion models needs the gradient of the expected reward of what
the sampler writes, its order and its plan included. Every method of the literature puts something
else in its place. On languages small enough every canvas, proposal and text is written down, and so
the gradient is exact, by two computations that agree; what a surrogate gives is computed likewise.

Policies are tables (a logit for each token at each mask of every canvas, drawn, or the conditionals
of a drawn language, which is what a perfect model has) and small Transformers, drawn or fitted to
such conditionals. Rewards of texts are normal. Tokens are drawn at temperature 1, by each order,
one or several a step.

`proposals` replays every proposal of every step and is exact. `replay` replays the committed tokens
alone; `agrpo` one step of them, drawn evenly (AGRPO, 2510.04019); `tracerl` two steps at a time on
the canvas of the first (TraceRL, 2509.06949). `bound` takes the evidence lower bound for log p,
under one mask; `espo` under two that complement each other (ESPO, 2512.03759); `vrpo` is the first
step of DPO on pairs of texts, two masks a text (LLaDA 1.5, 2505.19223). `spg` lowers an upper bound
for texts below the mean, `spg-mix` half of it and half of the lower bound (SPG, 2510.09541).
`coupled` is coupled-GRPO (2506.20639), `d1` diffu-GRPO (2504.12216), `wd1` is 2507.08838.

The cosine is between expected and exact gradient: 1 points where the reward rises fastest, below 0
it falls. Bias and noise are lengths: of the expected gradient minus the exact one, and the standard
deviation of one estimate, both over the exact one's length. At equal passes it is the cosine that
the mean of as many estimates as the passes pay for can be expected to have, the passes that draw
their texts counted. Intervals are 95 % intervals by policy.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from unmask.base.config import CheckedSettings, option
from unmask.experiments.correctors.measure import ExactToys
from unmask.experiments.gradients.section import describe, pool, summarise
from unmask.measures.measure import Job, Measure, Rows

if TYPE_CHECKING:
    from unmask.experiments.gradients.laws import CanvasSampler

ORDERS = ("random", "confidence", "entropy", "margin", "left")
POLICIES = ("table", "language", "network", "trained")
MOST_EVENTS = 10_000
"""Proposals on canvases that a language may have."""
AT_ONCE = 10
"""Policies of a part."""


@dataclass(frozen=True, kw_only=True)
class GradientsSettings(CheckedSettings):
    """Which policies are drawn, and how texts are written."""

    filled = ("policies", "scales", "orders", "each")
    distinct = ("policies", "scales", "orders", "each")

    policies: tuple[str, ...] = option(
        POLICIES, "Tables and networks that surrogates are tried on.", choices=lambda: POLICIES
    )
    number: int = option(200, "Policies of each sort and scale.", least=2, most=100_000)
    scales: tuple[float, ...] = option(
        (1.0, 3.0), "How far logits spread: their standard deviation.", above=0.0, most=100.0
    )
    orders: tuple[str, ...] = option(
        ("random", "confidence"),
        "Which masks are committed first.",
        choices=lambda: ORDERS,
    )
    each: tuple[int, ...] = option((1, 2), "Tokens that a step commits.", least=1, most=8)
    tokens: int = option(3, "Tokens of the language.", least=2, most=16)
    length: int = option(4, "Tokens of a text.", least=1, most=8)
    draws: int = option(32, "Single estimates drawn of each policy.", least=1, most=100_000)
    passes: int = option(1024, "Passes at which surrogates are compared.", least=1)
    seed: int = option(0, "Seed of the first policy.", least=0)

    def _problems(self) -> Iterator[str]:
        if (2 * self.tokens) ** self.length > MOST_EVENTS:
            yield (
                f"'tokens' {self.tokens} and 'length' {self.length} make "
                f"{(2 * self.tokens) ** self.length:,} proposals, expected at most {MOST_EVENTS:,}"
            )
        for each in self.each:
            if self.length % each:
                yield f"'each' is {each}, expected a divisor of 'length' {self.length}"


def list_jobs(inputs: ExactToys, settings: GradientsSettings) -> Iterator[Job]:
    """One part for each policy, scale and some seeds."""
    from unmask.experiments.gradients.canvases import Lattice
    from unmask.experiments.gradients.scoring import score_policies

    lattice, samplers = Lattice(settings.tokens, settings.length), list_canvas_samplers(settings)

    def work(policy: str, scale: float, seeds: Sequence[int]) -> Mapping[str, Rows]:
        rows = score_policies(
            policy, scale, lattice, samplers, seeds, settings.draws, settings.passes
        )
        return {"gradients": list(rows)}

    for policy in settings.policies:
        for scale in settings.scales:
            for first in range(0, settings.number, AT_ONCE):
                last = min(first + AT_ONCE, settings.number)
                seeds = range(settings.seed + first, settings.seed + last)
                yield Job(f"{policy}-{scale:g}-{seeds[0]}", partial(work, policy, scale, seeds))


def list_canvas_samplers(settings: GradientsSettings) -> "list[CanvasSampler]":
    """Every order with every number of tokens a step."""
    from unmask.experiments.gradients.laws import CanvasSampler

    return [CanvasSampler(order, each) for each in settings.each for order in settings.orders]


MEASURE = Measure(
    name="gradients",
    title="Surrogates of the policy gradient",
    help="Compare surrogates of the policy gradient with the exact one, where it can be known.",
    settings=GradientsSettings,
    tables={"gradients": "gradients/1"},
    inputs=ExactToys(),
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    pool=pool,
    method=__doc__,
)

"""Means with 95 % intervals, bootstrapped by fact: prompts of one fact stand or fall together.

Where a model was trained with several seeds, facts and seeds are drawn independently of each other
(Owen 2007, "The pigeonhole bootstrap"). Differences between models are paired: both see the same
drawn facts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float

from unmask.base.seeds import derive_seed

LEVEL = 0.95
DRAWS = 10_000


@dataclass(frozen=True)
class Interval:
    """A mean, and where it would lie for other facts (and other training seeds) of the kind."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Clusters:
    """Sums and counts of values by training seed and fact."""

    sums: Float[np.ndarray, "S F"]
    counts: Float[np.ndarray, "S F"]


def cluster(
    values: Sequence[float], facts: Sequence[str], seeds: Sequence[int] | None = None
) -> Clusters:
    """Values by the fact and the training seed they belong to; facts in the order of their names.

    Every seed must have met every fact.
    """
    seeds = [0] * len(facts) if seeds is None else seeds
    fact_at = {name: i for i, name in enumerate(sorted(set(facts)))}
    seed_at = {seed: i for i, seed in enumerate(sorted(set(seeds)))}
    shape = (len(seed_at), len(fact_at))
    places = ([seed_at[seed] for seed in seeds], [fact_at[fact] for fact in facts])
    sums, counts = np.zeros(shape), np.zeros(shape)
    np.add.at(sums, places, np.asarray(values, dtype=float))
    np.add.at(counts, places, 1.0)
    assert counts.all(), "a training seed that did not meet every fact"
    return Clusters(sums, counts)


def estimate_mean(
    clusters: Clusters, is_share: bool = False, draws: int = DRAWS, seed: int = 0
) -> Interval:
    """The mean over all values, with the percentile interval of the bootstrap.

    Where the values are hits and misses and all the same, so is every resample, and the bootstrap
    is blind: the interval is then Clopper and Pearson's, with facts as the trials.
    """
    mean = float(clusters.sums.sum() / clusters.counts.sum())
    if is_share and mean in (0.0, 1.0):
        reach = _bound_unseen(clusters.sums.shape[1])
        return Interval(mean, *((0.0, reach) if mean == 0 else (1 - reach, 1.0)))
    return Interval(mean, *_percentiles(_resample(clusters, draws, seed, "one")))


def estimate_difference(
    one: Clusters, other: Clusters, is_share: bool = False, draws: int = DRAWS, seed: int = 0
) -> Interval:
    """The mean of `one` minus that of `other`, paired: both on the same facts in every draw.

    Where shares differ by the same amount on every fact, the bootstrap is blind: the interval then
    reaches as far as the facts that were not seen could move it, by as many of them as Clopper and
    Pearson allow.
    """
    assert one.sums.shape[1] == other.sums.shape[1], "pairs need the same facts"
    mean = one.sums.sum() / one.counts.sum() - other.sums.sum() / other.counts.sum()
    drawn = _resample(one, draws, seed, "one") - _resample(other, draws, seed, "other")
    if is_share and np.ptp(drawn) < 1e-12:
        reach = _bound_unseen(one.sums.shape[1])
        # At worst the unseen ones differ by a whole hit.
        middle = float((1 - reach) * mean)
        return Interval(float(mean), middle - reach, middle + reach)
    return Interval(float(mean), *_percentiles(drawn))


def _bound_unseen(num_facts: int) -> float:
    """Clopper and Pearson's bound on the share of facts of a kind that none of so many was of."""
    return 1 - ((1 - LEVEL) / 2) ** (1 / num_facts)


def _resample(clusters: Clusters, draws: int, seed: int, side: str) -> Float[np.ndarray, "R"]:
    """Means over drawn facts and drawn training seeds; `side` tells two models' seeds apart."""
    num_seeds, num_facts = clusters.sums.shape
    facts = _draw(num_facts, draws, derive_seed(seed, "facts"))
    seeds = np.ones((draws, 1))
    if num_seeds > 1:
        seeds = _draw(num_seeds, draws, derive_seed(seed, "seeds", side))
    sums, counts = (((facts @ x.T) * seeds).sum(1) for x in (clusters.sums, clusters.counts))
    return sums / counts


@lru_cache(maxsize=32)
def _draw(num: int, draws: int, seed: int) -> Float[np.ndarray, "R N"]:
    """How often each of `num` is drawn, with replacement, in each resample."""
    generator = np.random.default_rng(seed)
    return generator.multinomial(num, np.full(num, 1 / num), size=draws).astype(float)


def _percentiles(drawn: Float[np.ndarray, "R"]) -> tuple[float, float]:
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(drawn, [tail, 100 - tail])
    return float(low), float(high)

"""Intervals, tests and the rule for what is clear: the only place that computes them.

Values come from facts: prompts of one fact are not independent, and neither are the facts of one
training seed. Every interval is a cluster-robust t interval: what a mean varies by is estimated
from the means of the facts, and from those of the training seeds where there are several.
Differences between models are paired by fact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from unmask.base.seeds import derive_seed

ALPHA = 0.05
"""A p at most this large is significant."""
LEVEL = 1 - ALPHA
"""How often an interval should hold the true mean."""
ENOUGH = 6
"""The least number of facts for which a verdict is given."""
DRAWS = 2_000
"""Permutations of a test between two sets of facts."""


@dataclass(frozen=True)
class Interval:
    """A mean, and where it would lie for other facts (and other training seeds) of the kind."""

    mean: float
    low: float
    high: float

    def excludes(self, value: float = 0.0) -> bool:
        """Whether the value lies outside; never where the ends are not a number."""
        return self.low > value or self.high < value


@dataclass(frozen=True)
class Clusters:
    """Sums and counts of values by training seed and fact."""

    sums: Float[np.ndarray, "S F"]
    counts: Float[np.ndarray, "S F"]

    @property
    def mean(self) -> float:
        return float(self.sums.sum() / self.counts.sum())


def cluster(values: ArrayLike, facts: ArrayLike, seeds: ArrayLike | None = None) -> Clusters:
    """Values by the fact and the training seed they belong to; facts in sorted order.

    Every seed must have met every fact.
    """
    names, fact_at = np.unique(facts, return_inverse=True)
    runs, seed_at = np.unique(
        np.zeros(len(fact_at)) if seeds is None else seeds, return_inverse=True
    )
    index, size = seed_at * len(names) + fact_at, len(runs) * len(names)
    counts = np.bincount(index, minlength=size).astype(float)
    assert counts.all(), "a training seed that did not meet every fact"
    sums = np.bincount(index, weights=np.asarray(values, dtype=float), minlength=size)
    return Clusters(sums.reshape(len(runs), -1), counts.reshape(len(runs), -1))


def estimate_mean(clusters: Clusters, is_share: bool = False) -> Interval:
    """The mean over all values, with its interval for other facts and other training seeds.

    `is_share` says that all values lie between 0 and 1: the interval then does, too. Without two
    facts the ends are not a number, except for shares.
    """
    moved = _find_influence(clusters)
    variance, freedom = _add_variances([moved.sum(0), *_seeds_of(moved)])
    if is_share:
        return Interval(clusters.mean, *_bound_share(clusters, variance, freedom))
    return Interval(clusters.mean, *_bound(clusters.mean, variance, freedom))


def estimate_difference(one: Clusters, other: Clusters, is_share: bool = False) -> Interval:
    """The mean of `one` minus that of `other`, paired by fact; training seeds are not paired.

    Where shares differ by the same amount on every fact, the interval reaches as far as facts that
    were not asked could move it, by as many of them as Clopper and Pearson's bound allows.
    """
    assert one.sums.shape[1] == other.sums.shape[1], "pairs need the same facts"
    mean = one.mean - other.mean
    ours, theirs = _find_influence(one), _find_influence(other)
    variance, freedom = _add_variances(
        [ours.sum(0) - theirs.sum(0), *_seeds_of(ours), *_seeds_of(theirs)]
    )
    if is_share and variance < 1e-24:
        reach = binomial_interval(0, one.sums.shape[1]).high
        # At worst the facts that were not asked differ by a whole hit.
        return Interval(mean, (1 - reach) * mean - reach, (1 - reach) * mean + reach)
    return Interval(mean, *_bound(mean, variance, freedom))


def mean_intervals(
    values: Float[np.ndarray, "F N"],
) -> tuple[Float[np.ndarray, "N"], Float[np.ndarray, "N"], Float[np.ndarray, "N"]]:
    """Mean, low and high of each column, a row a fact: as `estimate_mean` of one training seed.

    A fact without a value (NaN) does not count; without two facts the ends are not a number.
    """
    is_there = np.isfinite(values)
    count = is_there.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(is_there, values, 0.0).sum(0) / count
        squares = (np.where(is_there, values - mean, 0.0) ** 2).sum(0)
        reach = _t_quantile(count - 1) * np.sqrt(squares / (count - 1) / count)
    return mean, mean - reach, mean + reach


def binomial_interval(hits: float, trials: float) -> Interval:
    """Clopper and Pearson's exact interval of a share."""
    from scipy.special import betaincinv

    tail = ALPHA / 2
    low = betaincinv(hits, trials - hits + 1, tail) if hits > 0 else 0.0
    high = betaincinv(hits + 1, trials - hits, 1 - tail) if hits < trials else 1.0
    return Interval(hits / trials, float(low), float(high))


def is_clear(cell: Interval, placebos: Sequence[Interval], facts: int) -> bool:
    """Whether an effect is clear: enough facts, above 0 and above every placebo measured.

    Above means that the intervals do not meet.
    """
    return facts >= ENOUGH and cell.low > 0 and all(cell.low > each.high for each in placebos)


@dataclass(frozen=True)
class Difference:
    """The difference of two means over facts, with its interval and its test."""

    mean: float
    low: float
    high: float
    p: float
    """Of a permutation test: signs flipped where paired, else labels shuffled."""
    facts: int
    paired: bool


def compare(
    one: Mapping[str, float], other: Mapping[str, float], seed: int = 0, draws: int = DRAWS
) -> Difference | None:
    """The mean of `one` minus that of `other`, each a value for a fact.

    Paired over the facts that both have, if at least two; else unpaired. None without two a side.
    """
    shared = sorted(one.keys() & other.keys())
    generator = np.random.default_rng(derive_seed(seed, "compare", *shared))
    if len(shared) >= 2:
        values = np.array([one[fact] - other[fact] for fact in shared])
        mean, low, high = (float(each[0]) for each in mean_intervals(values[:, None]))
        null = generator.choice([-1.0, 1.0], size=(draws, len(values))) @ values / len(values)
        p = permutation_p(np.abs(null), abs(mean))
        return Difference(mean, low, high, p, len(values), True)
    ours, theirs = (np.array([side[fact] for fact in sorted(side)]) for side in (one, other))
    if min(len(ours), len(theirs)) < 2:
        return None
    mean = float(ours.mean() - theirs.mean())
    variance, freedom = _add_variances([(x - x.mean()) / len(x) for x in (ours, theirs)])
    low, high = _bound(mean, variance, freedom)
    pool = np.concatenate((ours, theirs))
    shuffled = generator.permuted(np.tile(pool, (draws, 1)), axis=1)
    null = shuffled[:, : len(ours)].mean(1) - shuffled[:, len(ours) :].mean(1)
    p = permutation_p(np.abs(null), abs(mean))
    return Difference(mean, low, high, p, len(pool), False)


def equivalence_p(values: ArrayLike, margin: float, seed: int = 0, draws: int = DRAWS) -> float:
    """The p of "as far from 0 as the margin, or farther" for the mean of differences by fact.

    Two one-sided tests by sign flips about either end of the margin; the larger p counts.
    """
    given = np.asarray(values, dtype=float)
    generator = np.random.default_rng(derive_seed(seed, "equivalence", len(given)))
    signs = generator.choice([-1.0, 1.0], size=(draws, len(given)))
    return max(
        permutation_p(signs @ inside / len(given), float(inside.mean()))
        for inside in (margin + given, margin - given)
    )


def permutation_p(null: Float[np.ndarray, "R"], observed: float) -> float:
    """The share of the null at least as large, the observed value counted in.

    Equal up to rounding counts as equal. A null that is not a number counts as larger, and so does
    all of it where the observed value is not a number.
    """
    scale = np.abs(null[np.isfinite(null)]).max(initial=abs(observed))
    reached = ~(null < observed - 1e-12 * scale)
    return float((1 + reached.sum()) / (1 + len(null)))


def max_statistic_p(
    observed: Float[np.ndarray, "L"], null: Float[np.ndarray, "R L"]
) -> Float[np.ndarray, "L"]:
    """A p for each layer, corrected for all: against the largest value over layers in the null."""
    largest = np.fmax.reduce(null, axis=1)
    return np.array([permutation_p(largest, float(value)) for value in observed])


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction for testing several hypotheses at once."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(np.argsort(p_values, kind="stable")):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def _find_influence(clusters: Clusters) -> Float[np.ndarray, "S F"]:
    """How far each seed and fact moves the mean (a ratio of sums, linearised)."""
    return (clusters.sums - clusters.mean * clusters.counts) / clusters.counts.sum()


def _seeds_of(moved: Float[np.ndarray, "S F"]) -> list[Float[np.ndarray, "S"]]:
    """How far each training seed moves the mean; nothing where there is but one."""
    return [moved.sum(1)] if len(moved) > 1 else []


def _add_variances(sources: Sequence[Float[np.ndarray, "_"]]) -> tuple[float, float]:
    """The variance of a mean that several sources move, and Satterthwaite's degrees of freedom."""
    if min(len(source) for source in sources) < 2:
        return float("nan"), float("nan")
    parts = np.array([len(x) / (len(x) - 1) * (x**2).sum() for x in sources])
    degrees = np.array([len(x) - 1.0 for x in sources])
    total = parts.sum()
    freedom = total**2 / (parts**2 / degrees).sum() if total > 0 else degrees.min()
    return float(total), float(freedom)


def _bound(mean: float, variance: float, freedom: float) -> tuple[float, float]:
    reach = float(_t_quantile(freedom)) * variance**0.5
    return mean - reach, mean + reach


def _bound_share(clusters: Clusters, variance: float, freedom: float) -> tuple[float, float]:
    """The ends of a share's interval: Clopper and Pearson's, of as many trials as say as much."""
    mean, facts = clusters.mean, clusters.counts.shape[1]
    trials = float(facts)
    if variance > 0:
        trials = min(mean * (1 - mean) / variance, clusters.counts.sum())
        trials *= float(_t_quantile(np.inf) / _t_quantile(freedom)) ** 2
    bounds = binomial_interval(mean * trials, trials)
    return bounds.low, bounds.high


def _t_quantile(freedom: float | Float[np.ndarray, "N"]) -> Float[np.ndarray, "..."]:
    """How many standard errors the ends of an interval lie from its mean."""
    from scipy.special import stdtrit

    return stdtrit(freedom, 1 - ALPHA / 2)

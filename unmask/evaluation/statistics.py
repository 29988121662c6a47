"""Intervals, tests and the rule for what is clear: the only place that computes them.

Prompts of one fact are not independent, and neither are the facts of one training seed. Every
interval is a cluster-robust t interval for other facts and, where a model was trained with several
seeds, other seeds. Half its length is the root of a sum over these two sources, each its variance
times its own squared quantile of Student's t: with three seeds that is 4.3 instead of 2. Intervals
of shares have the shape of Wilson's. Differences are paired by fact. How often the intervals hold
the truth: `benchmarks/coverage.py` and decision 0022. Where phrasings are given they are a third
source, crossed with the other two (`unmask.evaluation.crossed`). Effects of traces, knock-out and
paths are averaged over seeds before they come here (`mean_intervals`, `compare`): seeds keep
different facts, those that they recall.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from unmask.base.seeds import derive_seed
from unmask.evaluation.crossed import ALPHA, Cells, square_quantile, square_tests

ENOUGH = 6
"""The least number of facts for which anything is called clear."""
TAKEN_OFF = 0.4
"""How much of the interaction of facts and seeds is taken off the seeds' variance, found by
simulation: without it intervals are too long where seeds hardly differ, and with all of it too
short where three seeds happen to agree."""
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


@dataclass(frozen=True)
class Crossed(Clusters):
    """Sums and counts by training seed and fact, with phrasings that are a sample of all."""

    cells: Cells

    @classmethod
    def of(cls, cells: Cells) -> "Crossed":
        return cls(cells.sums.sum(2), cells.counts.sum(2), cells)


def cluster(
    values: ArrayLike,
    facts: ArrayLike,
    seeds: ArrayLike | None = None,
    phrasings: ArrayLike | None = None,
) -> Clusters:
    """Values by the fact and the training seed they belong to; facts in sorted order.

    Every seed must have met every fact. Several phrasings, where they are given, are a third source
    of how far a mean moves; a fact need not be asked in each.
    """
    names, fact_at = np.unique(facts, return_inverse=True)
    runs, seed_at = np.unique(
        np.zeros(len(fact_at)) if seeds is None else seeds, return_inverse=True
    )
    index, size = seed_at * len(names) + fact_at, len(runs) * len(names)
    counts = np.bincount(index, minlength=size).astype(float)
    assert counts.all(), "a training seed that did not meet every fact"
    weights = np.asarray(values, dtype=float)
    if phrasings is not None:
        ways, way_at = np.unique(phrasings, return_inverse=True)
        if len(ways) > 1:
            index, shape = index * len(ways) + way_at, (len(runs), len(names), len(ways))
            each = np.bincount(index, minlength=size * len(ways)).astype(float)
            sums = np.bincount(index, weights=weights, minlength=size * len(ways))
            return Crossed.of(Cells(sums.reshape(shape), each.reshape(shape)))
    sums = np.bincount(index, weights=weights, minlength=size)
    return Clusters(sums.reshape(len(runs), -1), counts.reshape(len(runs), -1))


def estimate_mean(clusters: Clusters, is_share: bool = False) -> Interval:
    """The mean over all values, with its interval for other facts and other training seeds.

    `is_share` says that all values lie between 0 and 1: the interval then does, too. Of one fact
    the interval is all of that for shares, and not a number for other values.
    """
    mean, moved = clusters.mean, _find_influence(clusters)
    if isinstance(clusters, Crossed):
        if is_share:
            return Interval(mean, *_bound_crossed(clusters))
        return _make_interval(mean, clusters.cells.square_tests() + _square_seeds(moved))
    if is_share:
        return Interval(mean, *_bound_share(mean, moved.sum(0), _square_seeds(moved)))
    return _make_interval(mean, _square_facts(moved.sum(0)) + _square_seeds(moved))


def estimate_difference(one: Clusters, other: Clusters, is_share: bool = False) -> Interval:
    """The mean of `one` minus that of `other`, paired by fact; training seeds are not paired.

    Of shares, the margins of both intervals are put together (Zou and Donner 2008), so that a
    share that was never hit keeps its bound. Where both intervals are symmetric, this is the paired
    t interval.
    """
    assert one.sums.shape[1] == other.sums.shape[1], "pairs need the same facts"
    mean, ours, theirs = one.mean - other.mean, _find_influence(one), _find_influence(other)
    facts = np.stack([ours.sum(0), theirs.sum(0), ours.sum(0) - theirs.sum(0)])
    by_seed = np.array([_square_seeds(moved) for moved in (ours, theirs)])
    if isinstance(one, Crossed) and isinstance(other, Crossed):
        assert one.cells.sums.shape[2] == other.cells.sums.shape[2], "pairs need the same phrasings"
        by_fact = _square_pairs(one.cells, other.cells)
        if is_share:
            by_seed = np.array([_square_crossed_seeds(side) for side in (one, other)])
    else:
        by_fact = np.array([_square_facts(moved) for moved in facts])
    if not is_share:
        return _make_interval(mean, by_fact[2] + by_seed.sum())
    # 1. How much both means go together: facts move both, seeds each its own.
    squares = by_fact[:2] + by_seed
    covariance = (by_fact[0] + by_fact[1] - by_fact[2]) / 2
    correlation = covariance / np.sqrt(squares.prod()) if (squares > 0).all() else 0.0
    # 2. Where no fact differs from the others, some still may: as many as of a share never hit.
    unseen = Clusters(np.zeros_like(one.sums), one.counts)
    if isinstance(one, Crossed):
        unseen = Crossed.of(Cells(np.zeros_like(one.cells.sums), one.cells.counts))
    least = _weigh_unseen(facts[2]) * estimate_mean(unseen, is_share).high

    def combine(a: float, b: float) -> float:
        squared = a**2 + b**2 - 2 * correlation * a * b
        return max(float(max(squared, 0.0)) ** 0.5, least)

    left, right = estimate_mean(one, is_share), estimate_mean(other, is_share)
    below = combine(left.mean - left.low, right.high - right.mean)
    above = combine(left.high - left.mean, right.mean - right.low)
    return Interval(mean, max(mean - below, -1.0), min(mean + above, 1.0))


def mean_intervals(
    values: Float[np.ndarray, "F N"],
) -> tuple[Float[np.ndarray, "N"], Float[np.ndarray, "N"], Float[np.ndarray, "N"]]:
    """Mean, low and high of each column; one row per fact, as in `estimate_mean` of one seed.

    A fact without a value (NaN) does not count; without two facts the ends are not a number.
    """
    is_there = np.isfinite(values)
    count = is_there.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(is_there, values, 0.0).sum(0) / count
        squares = (np.where(is_there, values - mean, 0.0) ** 2).sum(0)
        reach = _t_quantile(count - 1) * np.sqrt(squares / (count - 1) / count)
    return mean, mean - reach, mean + reach


def is_above_placebos(cell: Interval, placebos: Sequence[Interval], facts: int) -> bool:
    """Whether an effect is clear: enough facts, above 0 and above every placebo measured.

    Above means that the intervals do not meet. A placebo whose ends are not a number was not
    measured.
    """
    is_met = any(each.high >= cell.low for each in placebos)
    return facts >= ENOUGH and cell.low > 0 and not is_met


@dataclass(frozen=True)
class Difference:
    """The difference of two means over facts, with its interval and its test."""

    mean: float
    low: float
    high: float
    p: float
    """The p value of a permutation test: signs flipped where paired, else labels shuffled."""
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
    # 1. Paired [F]: under the null each difference might as well have the other sign.
    if len(shared) >= 2:
        values = np.array([one[fact] - other[fact] for fact in shared])
        mean, low, high = (float(end[0]) for end in mean_intervals(values[:, None]))
        null = generator.choice([-1.0, 1.0], size=(draws, len(values))) @ values / len(values)
        p = permutation_p(np.abs(null), abs(mean))
        return Difference(mean, low, high, p, len(values), True)
    # 2. Unpaired [F1] and [F2]: under the null any facts might be on either side.
    ours, theirs = (np.array([side[fact] for fact in sorted(side)]) for side in (one, other))
    if min(len(ours), len(theirs)) < 2:
        return None
    mean = float(ours.mean() - theirs.mean())
    bounds = _make_interval(
        mean, sum(_square_facts((side - side.mean()) / len(side)) for side in (ours, theirs))
    )
    pool = np.concatenate((ours, theirs))
    shuffled = generator.permuted(np.tile(pool, (draws, 1)), axis=1)
    null = shuffled[:, : len(ours)].mean(1) - shuffled[:, len(ours) :].mean(1)
    p = permutation_p(np.abs(null), abs(mean))
    return Difference(mean, bounds.low, bounds.high, p, len(pool), False)


def rank_correlation(
    one: ArrayLike, other: ArrayLike, seed: int = 0, draws: int = DRAWS
) -> Interval:
    """Spearman's correlation of two values per fact, with a percentile bootstrap over facts.

    Draws in which one side is constant have no correlation and do not count; without two facts that
    differ on both sides it is not a number.
    """
    pairs = np.stack([np.asarray(side, dtype=float) for side in (one, other)])
    count = pairs.shape[1]
    if count < 2:
        return Interval(np.nan, np.nan, np.nan)
    generator = np.random.default_rng(derive_seed(seed, "rank correlation", count))
    drawn = generator.integers(0, count, size=(draws, count))
    values = _correlate_ranks(pairs[:, np.concatenate((np.arange(count)[None], drawn))])
    rest = values[1:][np.isfinite(values[1:])]
    low, high = np.quantile(rest, [ALPHA / 2, 1 - ALPHA / 2]) if len(rest) else (np.nan, np.nan)
    return Interval(float(values[0]), float(low), float(high))


def _correlate_ranks(pairs: Float[np.ndarray, "2 B N"]) -> Float[np.ndarray, "B"]:
    """Spearman's correlation of each pair of rows; equal values share the mean of their ranks."""
    from scipy.stats import rankdata

    ranks = rankdata(pairs, axis=-1)
    moved = ranks - ranks.mean(-1, keepdims=True)
    sizes = np.sqrt((moved**2).sum(-1)).prod(0)
    products = moved.prod(0).sum(-1)
    return np.divide(products, sizes, out=np.full_like(sizes, np.nan), where=sizes > 0)


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
    """How far the values of each seed and fact move the mean; they sum to 0."""
    return (clusters.sums - clusters.mean * clusters.counts) / clusters.counts.sum()


def _square_facts(moved: Float[np.ndarray, "F"]) -> float:
    """The squared reach of a mean over other facts."""
    num = len(moved)
    return square_quantile(num - 1) * num / (num - 1) * float(moved @ moved) if num > 1 else np.nan


def _square_seeds(moved: Float[np.ndarray, "S F"]) -> float:
    """The squared reach of a mean over other training seeds; 0 where there is but one."""
    num_seeds, num_facts = moved.shape
    if num_seeds < 2 or num_facts < 2:
        return 0.0
    seeds, facts = moved.sum(1), moved.sum(0)
    variance = num_seeds / (num_seeds - 1) * float(seeds @ seeds)
    # What neither fact nor seed explains is in the variance of both, and would count twice.
    rest = moved - seeds[:, None] / num_facts - facts / num_seeds
    both = moved.size / ((num_seeds - 1) * (num_facts - 1)) * float((rest**2).sum())
    return square_quantile(num_seeds - 1) * max(variance - TAKEN_OFF * both, 0.0)


def _square_crossed_seeds(clusters: Crossed) -> float:
    return clusters.cells.square_seeds(clusters.mean * (1 - clusters.mean))


def _square_pairs(one: Cells, other: Cells) -> Float[np.ndarray, "3"]:
    """The squared reach of two means and of their difference over other facts and phrasings."""
    ours, theirs = (side.moved.sum(0) for side in (one, other))
    counts = one.counts.sum(0)
    paired = square_tests(ours - theirs, counts)
    return np.array([one.square_tests(), other.square_tests(), paired])


def _bound_crossed(clusters: Crossed) -> tuple[float, float]:
    """Both ends of a share's interval where phrasings are a source."""
    mean, cells = clusters.mean, clusters.cells
    spread = mean * (1 - mean)
    if cells.sums.shape[1] < 2:
        return 0.0, 1.0
    # Hits that lie more evenly than chance would have them are no evidence of less chance.
    chance = square_quantile(np.inf) * spread / float(cells.counts.sum())
    squared = max(cells.square_tests(), chance) + cells.square_seeds(spread)
    low, high = _bend(mean, squared / spread if spread > 0 else 0.0)
    # No end is nearer to 0 or 1 than that of a share that was never or always hit.
    unseen = cells.bound_unseen()
    return min(low, 1 - unseen), max(high, unseen)


def _bound_share(mean: float, moved: Float[np.ndarray, "F"], by_seed: float) -> tuple[float, float]:
    """Both ends of a share's interval, from what each fact moves and the seeds' squared reach."""
    num_facts = len(moved)
    if num_facts < 2:
        return 0.0, 1.0
    # 1. The squared reach in units of mean (1 - mean). If prompts of a fact always hit or miss
    #    together, facts are coins, and it is t² / facts. That is all there is to go by where no
    #    fact deviates; it weighs less and less where some do.
    coins = square_quantile(num_facts - 1) / num_facts
    weight, spread = _weigh_unseen(moved), mean * (1 - mean)
    ratio = weight * coins
    if spread > 0:
        ratio += ((1 - weight) * _square_facts(moved) + by_seed) / spread
    return _bend(mean, ratio)


def _bend(mean: float, ratio: float) -> tuple[float, float]:
    """Wilson's interval: all shares p with (p - mean)² at most ratio p (1 - p)."""
    spread = mean * (1 - mean)
    middle, reach = mean + ratio / 2, (ratio * spread + ratio**2 / 4) ** 0.5
    low, high = (middle - reach) / (1 + ratio), (middle + reach) / (1 + ratio)
    return min(max(low, 0.0), mean), max(min(high, 1.0), mean)


def _weigh_unseen(moved: Float[np.ndarray, "F"]) -> float:
    """How much the worst case weighs: 1 where no fact deviates, a tenth for each that does.

    Facts count by their part in the variance: n that deviate by the same amount count as n.
    """
    squares = moved[np.abs(moved) > 1e-12] ** 2
    return float(10.0 ** -(squares.sum() ** 2 / (squares**2).sum())) if len(squares) else 1.0


def _make_interval(mean: float, squared_reach: float) -> Interval:
    reach = float(squared_reach) ** 0.5
    return Interval(mean, mean - reach, mean + reach)


def _t_quantile(freedom: Int[np.ndarray, "*N"]) -> Float[np.ndarray, "*N"]:
    """How many standard errors an interval reaches to either side; for none, not a number."""
    from scipy.special import stdtrit

    return np.asarray(stdtrit(freedom, 1 - ALPHA / 2))

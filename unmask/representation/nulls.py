"""What a measure would be by chance, and how sure it is: permutations of pairs, draws of facts."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from unmask.base.seeds import derive_seed
from unmask.evaluation.statistics import ALPHA, Clusters, Interval, estimate_mean, permutation_p
from unmask.representation.measures import (
    Found,
    Measure,
    Side,
    choose_rank,
    find_overlap,
    varies,
)

PERMUTATIONS = 999
STACK = 128
"""Pairings that are compared at once."""


@dataclass(frozen=True)
class Assessed:
    """A measure with its interval by fact and its null."""

    value: Interval
    p: float
    """The share of shuffled pairings at least as alike, the true one counted in; 1 where nothing
    could be measured."""
    null: Float[np.ndarray, "R"]
    per_fact: Float[np.ndarray, "N"]
    """What each fact gives; the mean is the value."""
    found: Found
    """The true pairs alone, with all that the measure tells."""

    @property
    def is_measured(self) -> bool:
        """Whether there is a value: not where a side does not vary over the facts."""
        return bool(np.isfinite(self.value.mean))

    @property
    def null_mean(self) -> float:
        return float(self.null.mean())

    @property
    def null_low(self) -> float:
        return float(np.quantile(self.null, ALPHA / 2))

    @property
    def null_high(self) -> float:
        return float(np.quantile(self.null, 1 - ALPHA / 2))


def assess(
    measure: Measure, left: Side, right: Side, permutations: int = PERMUTATIONS, seed: int = 0
) -> Assessed:
    """The measure of the true pairs against that of shuffled ones.

    The sides are turned first, which no measure notices, so that a few numbers a fact remain.
    """
    if not (varies(left) and varies(right)):
        return _tell_nothing(len(left), permutations)
    left, right = _compress(left, right, measure.one_space)
    one, other = measure.prepare(left, right, choose_rank(len(left)))
    generator = np.random.default_rng(derive_seed(seed, "pairs", len(left)))
    orders = [generator.permutation(len(right)) for _ in range(permutations)]
    null = [measure.compare(one, other[some]).value for some in _cut(orders)]
    return _conclude(measure, left, right, np.concatenate(null))


def assess_overlap(
    left: Side, right: Side, permutations: int = PERMUTATIONS, seed: int = 0
) -> Assessed:
    """The overlap of the sides' directions against that with random directions of the space."""
    if not (varies(left) and varies(right)):
        return _tell_nothing(len(left), permutations)
    width, rank = left.shape[1], min(choose_rank(len(left)), left.shape[1])
    assert right.shape[1] == width
    generator = np.random.default_rng(derive_seed(seed, "directions", width))
    ways, _ = find_overlap.prepare(left, right, rank)
    drawn = [np.linalg.qr(generator.normal(size=(width, rank)))[0] for _ in range(permutations)]
    null = [find_overlap.compare(ways, some).value for some in _cut(drawn)]
    return _conclude(find_overlap, *_compress(left, right, True), np.concatenate(null))


def _cut(each: list[np.ndarray]) -> Iterator[np.ndarray]:
    """Stacks that fit into a processor's cache or two."""
    return (np.stack(each[i : i + STACK]) for i in range(0, len(each), STACK))


def _tell_nothing(num_facts: int, permutations: int) -> Assessed:
    """Of sides that do not vary, which resemble each other neither more nor less than chance."""
    nothing = float("nan")
    null, per_fact = np.full(permutations, nothing), np.full(num_facts, nothing)
    found = Found(np.array(nothing), None)
    return Assessed(Interval(nothing, nothing, nothing), 1.0, null, per_fact, found)


def _conclude(measure: Measure, left: Side, right: Side, null: np.ndarray) -> Assessed:
    found = measure(left, right)
    whole, per_fact = float(found.value), found.per_fact
    if per_fact is None:
        per_fact = _jackknife(measure, left, right, whole)
    clusters = Clusters(per_fact[None], np.ones((1, len(per_fact))))
    value = estimate_mean(clusters, measure.is_share)
    # No measure is above 1; the shares of the jackknife do not know that.
    value = Interval(value.mean, value.low, max(value.mean, min(value.high, 1.0)))
    return Assessed(value, permutation_p(null, whole), null, per_fact, found)


def _jackknife(measure: Measure, left: Side, right: Side, value: float) -> Float[np.ndarray, "N"]:
    """Each fact's share in a value that is no mean, from leaving it out; their mean is the value.

    Drawing facts with replacement would compare copies of a fact with each other, which these
    measures take for likeness; drawing these shares does not.
    """
    count, rank = len(left), choose_rank(len(left))
    without = np.array(
        [measure(np.delete(left, i, 0), np.delete(right, i, 0), rank).value for i in range(count)]
    )
    return value + (count - 1) * (without.mean() - without)


def _compress(left: Side, right: Side, together: bool) -> tuple[Side, Side]:
    """The sides in as few coordinates as they have vectors."""
    left, right = left.astype(np.float64), right.astype(np.float64)
    if together:
        stacked = np.vstack((left - left.mean(0), right - right.mean(0)))
        turned = _turn(stacked)
        return turned[: len(left)], turned[len(left) :]
    return _turn(left - left.mean(0)), _turn(right - right.mean(0))


def _turn(side: Side) -> Side:
    if side.shape[1] <= len(side):
        return side
    u, s, _ = np.linalg.svd(side, full_matrices=False)
    return u * s

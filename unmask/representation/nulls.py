"""What a measure would be by chance, and how sure it is: permutations of pairs, draws of facts."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from unmask.base.seeds import derive_seed
from unmask.evaluation.intervals import Clusters, Interval, estimate_mean
from unmask.representation.measures import Found, Side, choose_rank, find_angles, find_overlap

PERMUTATIONS = 999


@dataclass(frozen=True)
class Assessed:
    """A measure with its interval by fact and its null."""

    value: Interval
    p: float
    """The share of shuffled pairings at least as alike, the true one counted in."""
    null: Float[np.ndarray, "R"]
    per_fact: Float[np.ndarray, "N"]
    """What each fact gives; the mean is the value."""

    @property
    def null_mean(self) -> float:
        return float(self.null.mean())

    @property
    def null_low(self) -> float:
        return float(np.quantile(self.null, 0.025))

    @property
    def null_high(self) -> float:
        return float(np.quantile(self.null, 0.975))


def assess(
    measure: Callable[[Side, Side], Found],
    left: Side,
    right: Side,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
    shared_space: bool | None = None,
) -> Assessed:
    """The measure of the true pairs against that of shuffled ones.

    The sides are turned first, which no measure notices, so that a few numbers a fact remain.
    `shared_space` says that they must be turned together; by default wherever they are as wide.
    """
    together = left.shape[1] == right.shape[1] if shared_space is None else shared_space
    left, right = _compress(left, right, together)
    measure = _settle(measure, len(left))
    found = measure(left, right)
    generator = np.random.default_rng(derive_seed(seed, "pairs", len(left)))
    null = np.array(
        [measure(left, right[generator.permutation(len(right))]).value for _ in range(permutations)]
    )
    return _conclude(measure, left, right, found, null, seed)


def assess_overlap(
    left: Side, right: Side, permutations: int = PERMUTATIONS, seed: int = 0
) -> Assessed:
    """The overlap of the sides' directions against that with random directions of the space."""
    width, rank = left.shape[1], choose_rank(len(left))
    assert right.shape[1] == width
    generator = np.random.default_rng(derive_seed(seed, "directions", width))
    ways = np.linalg.svd(left - left.mean(0), full_matrices=False)[2][:rank]
    null = []
    for _ in range(permutations):
        drawn = np.linalg.qr(generator.normal(size=(width, rank)))[0]
        null.append(np.linalg.svd(ways @ drawn, compute_uv=False).mean())
    left, right = _compress(left, right, True)
    measure = _settle(find_overlap, len(left))
    return _conclude(measure, left, right, measure(left, right), np.array(null), seed)


def _settle(
    measure: Callable[[Side, Side], Found], num_facts: int
) -> Callable[[Side, Side], Found]:
    """The measure with the rank of all facts, also where one of them is left out."""
    rank = choose_rank(num_facts)
    if measure is find_angles:
        return lambda left, right: find_angles(left, right, rank)
    if measure is find_overlap:
        return lambda left, right: find_overlap(left, right, rank)
    return measure


def _conclude(
    measure: Callable[[Side, Side], Found],
    left: Side,
    right: Side,
    found: Found,
    null: np.ndarray,
    seed: int,
) -> Assessed:
    per_fact = found.per_fact
    is_share = per_fact is not None and bool(np.isin(per_fact, (0.0, 1.0)).all())
    if per_fact is None:
        per_fact = _jackknife(measure, left, right, found.value)
    clusters = Clusters(per_fact[None], np.ones((1, len(per_fact))))
    drawn = estimate_mean(clusters, is_share, seed=seed)
    # No measure is above 1; the shares of the jackknife do not know that.
    value = Interval(drawn.mean, drawn.low, max(drawn.mean, min(drawn.high, 1.0)))
    p = float((1 + (null >= found.value - 1e-12).sum()) / (1 + len(null)))
    return Assessed(value, p, null, per_fact)


def _jackknife(
    measure: Callable[[Side, Side], Found], left: Side, right: Side, value: float
) -> Float[np.ndarray, "N"]:
    """Each fact's share in a value that is no mean, from leaving it out; their mean is the value.

    Drawing facts with replacement would compare copies of a fact with each other, which these
    measures take for likeness; drawing these shares does not.
    """
    count = len(left)
    without = np.array(
        [measure(np.delete(left, i, 0), np.delete(right, i, 0)).value for i in range(count)]
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

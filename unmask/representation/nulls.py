"""What a likeness would be by chance, and its interval: permutations of pairs, shares of facts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float, Int

from unmask.base.seeds import derive_seed
from unmask.evaluation.statistics import (
    ALPHA,
    Clusters,
    Interval,
    estimate_mean,
    max_statistic_p,
    permutation_p,
)
from unmask.representation.likeness import (
    SHARED_DIRECTIONS,
    Likeness,
    Other,
    Score,
    Side,
    choose_rank,
    score_pairs,
    varies,
)

PERMUTATIONS = 999
STACK = 128
"""Pairings that are compared at once: they fit into a processor's cache or two."""


@dataclass(frozen=True)
class Assessed:
    """A likeness with its interval by fact and its null."""

    value: Interval
    p: float
    """The share of shuffled pairings at least as alike, the true one counted in; 1 where nothing
    could be measured."""
    null: Float[np.ndarray, "R"]
    per_fact: Float[np.ndarray, "N"]
    """What each fact gives; the mean is the value."""
    score: Score
    """The score of the true pairs."""

    @property
    def is_measured(self) -> bool:
        """Whether there is a value: not where a side does not vary over the facts."""
        return bool(np.isfinite(self.value.mean))

    @property
    def null_low(self) -> float:
        return float(np.quantile(self.null, ALPHA / 2))

    @property
    def null_high(self) -> float:
        return float(np.quantile(self.null, 1 - ALPHA / 2))


def assess(
    likeness: Likeness, left: Side, right: Other, permutations: int = PERMUTATIONS, seed: int = 0
) -> Assessed:
    """The likeness of the true pairs against that of shuffled ones.

    The sides are rotated first, which no likeness notices, so that few numbers per fact remain.
    """
    if not (varies(left) and varies(right)):
        return _make_unmeasured(len(left), permutations)
    left, right = _compress(left, right, likeness.one_space)
    one, other = likeness.prepare(left, right, choose_rank(len(left)))
    generator = np.random.default_rng(derive_seed(seed, "pairs", len(left)))
    orders = np.stack([generator.permutation(len(right)) for _ in range(permutations)])
    stacks = (other[orders[i : i + STACK]] for i in range(0, permutations, STACK))
    null = [likeness.compare(one, stack).value for stack in stacks]
    return _conclude(likeness, left, right, np.concatenate(null))


def assess_layers(
    layers: Sequence[tuple[Sequence[str], Side, Side]], permutations: int, seed: int = 0
) -> dict[str, Float[np.ndarray, "L"]]:
    """A p of `retrieval` and `top-1` for each layer, corrected for all: against the largest value
    over layers when facts are paired at random.

    Layers are given as (facts, left, right). Facts are shuffled alike in all layers; where a layer
    lacks some, the others keep their order.
    """
    union = sorted({fact for facts, _, _ in layers for fact in facts})
    at = {fact: i for i, fact in enumerate(union)}
    observed: dict[str, list[float]] = {}
    nulls: dict[str, list[np.ndarray]] = {}
    for facts, left, right in layers:
        orders = _shuffle(len(union), tuple(at[fact] for fact in facts), permutations, seed)
        measured = varies(left) and varies(right)
        for name, scores in score_pairs(left, right).items():
            null = scores[orders, np.arange(len(facts))].mean(1)
            observed.setdefault(name, []).append(scores.diagonal().mean() if measured else np.nan)
            nulls.setdefault(name, []).append(null)
    return {
        name: max_statistic_p(np.array(values), np.stack(nulls[name], 1))
        for name, values in observed.items()
    }


@lru_cache(maxsize=8)
def _shuffle(
    count: int, kept: tuple[int, ...], permutations: int, seed: int
) -> Int[np.ndarray, "R N"]:
    """Random orders of some of so many facts: those of all of them, with the others left out."""
    generator = np.random.default_rng(derive_seed(seed, "layers", count))
    draws = generator.random((permutations, count), dtype=np.float32)
    return draws[:, list(kept)].argsort(1).astype(np.int16)


def assess_overlap(
    left: Side, right: Side, permutations: int = PERMUTATIONS, seed: int = 0
) -> Assessed:
    """The overlap of the sides' directions against that with random directions of the space."""
    if not (varies(left) and varies(right)):
        return _make_unmeasured(len(left), permutations)
    width, rank = left.shape[1], min(choose_rank(len(left)), left.shape[1])
    assert right.shape[1] == width
    axes, _ = SHARED_DIRECTIONS.prepare(left, right, rank)
    drawn = _draw_directions(width, rank, permutations, seed)
    null = np.asarray(SHARED_DIRECTIONS.compare(axes, drawn).value)
    return _conclude(SHARED_DIRECTIONS, *_compress(left, right, True), null)


@lru_cache(maxsize=1)
def _draw_directions(
    width: int, rank: int, permutations: int, seed: int
) -> Float[np.ndarray, "R D r"]:
    """Orthonormal columns, the same for all layers."""
    generator = np.random.default_rng(derive_seed(seed, "directions", width))
    return np.linalg.qr(generator.normal(size=(permutations, width, rank)))[0]


def _make_unmeasured(num_facts: int, permutations: int) -> Assessed:
    """For sides that do not vary, which resemble each other neither more nor less than chance."""
    nan = float("nan")
    null, per_fact = np.full(permutations, nan), np.full(num_facts, nan)
    return Assessed(Interval(nan, nan, nan), 1.0, null, per_fact, Score(np.array(nan)))


def _conclude(likeness: Likeness, left: Side, right: Other, null: np.ndarray) -> Assessed:
    score = likeness(left, right)
    whole, per_fact = float(score.value), score.per_fact
    if per_fact is None:
        per_fact = _jackknife(likeness, left, right, whole)
    clusters = Clusters(per_fact[None], np.ones((1, len(per_fact))))
    value = estimate_mean(clusters, likeness.is_share)
    # No likeness is above 1; the shares of the jackknife may be.
    value = Interval(value.mean, value.low, max(value.mean, min(value.high, 1.0)))
    # Without some fact there may be no value at all: then no interval either, and nothing is found.
    p = permutation_p(null, whole) if np.isfinite(value.mean) else 1.0
    return Assessed(value, p, null, per_fact, score)


def _jackknife(
    likeness: Likeness, left: Side, right: Other, value: float
) -> Float[np.ndarray, "N"]:
    """Each fact's share in a value that is not a mean, by leaving it out; their mean is the value.

    Drawing facts with replacement would compare copies of a fact with each other, which these
    likenesses take for likeness; the shares of different facts do not.
    """
    count, rank = len(left), choose_rank(len(left))
    without = np.array(
        [likeness(np.delete(left, i, 0), np.delete(right, i, 0), rank).value for i in range(count)]
    )
    return value + (count - 1) * (without.mean() - without)


def _compress(left: Side, right: Other, together: bool) -> tuple[np.ndarray, np.ndarray]:
    """The sides, centred, in as few coordinates as they have vectors."""
    one, other = (side.astype(np.float64) - side.mean(0, np.float64) for side in (left, right))
    if together:
        rotated = _rotate(np.vstack((one, other)))
        return rotated[: len(left)], rotated[len(left) :]
    return _rotate(one), _rotate(other)


def _rotate(side: Side) -> Float[np.ndarray, "N r"]:
    if side.shape[1] <= len(side):
        return side
    u, s, _ = np.linalg.svd(side, full_matrices=False)
    return u * s

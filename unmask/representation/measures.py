"""Measures of how alike two sets of vectors are, one vector a concept on each side, in one order.

All of them ignore the sides' means, which hold what every concept has in common. `cosine`,
`retrieval`, `top-1` and `map` need both sides in one space; the others compare how the concepts lie
to each other, and take sides of any width.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.linalg import orthogonal_procrustes
from sklearn.decomposition import PCA

Side = Float[np.ndarray, "N D"]

FOLDS = 5
NEEDED_FACTS = 2 * FOLDS
"""The fewest facts: two in each held-out part, and enough for the estimates without bias."""
_TINY = 1e-12


@dataclass(frozen=True)
class Found:
    """A measure's value; larger is more alike."""

    value: float
    per_fact: Float[np.ndarray, "N"] | None = None
    """What each fact gives to it, where the value is their mean."""


@dataclass(frozen=True)
class Cosine(Found):
    matched: float = np.nan
    unmatched: float = np.nan


@dataclass(frozen=True)
class Retrieval(Found):
    hits: float = np.nan
    """The share of concepts whose own vector comes first."""


@dataclass(frozen=True)
class Spectrum(Found):
    singular: Float[np.ndarray, "r"] | None = None


@dataclass(frozen=True)
class Angles(Found):
    cosines: Float[np.ndarray, "r"] | None = None


@dataclass(frozen=True)
class Procrustes(Found):
    train: float = np.nan
    """The same on the facts that the rotation was fitted to."""


def choose_rank(num_facts: int) -> int:
    """Dimensions kept by PCA: few against the facts, so that what is fitted can fail."""
    return max(2, num_facts // 4)


@dataclass(frozen=True)
class Measure:
    """A measure in two steps, so that shuffling the pairs repeats the second alone.

    `prepare` treats every pairing of the same vectors alike: shuffling its right side is the same
    as preparing shuffled vectors. It is told the number of dimensions that PCA keeps.
    """

    prepare: Callable[[Side, Side, int], tuple[np.ndarray, np.ndarray]]
    compare: Callable[[np.ndarray, np.ndarray], Found]
    one_space: bool = False
    """Whether both sides must lie in one space."""

    def __call__(self, left: Side, right: Side, rank: int | None = None) -> Found:
        rank = choose_rank(len(left)) if rank is None else rank
        return self.compare(*self.prepare(left, right, rank))


def _prepare_directions(left: Side, right: Side, _rank: int) -> tuple[Side, Side]:
    return _normalise(_centre(left)), _normalise(_centre(right))


def compare_cosine(left: Side, right: Side) -> Cosine:
    """The mean cosine of matched pairs minus that of unmatched ones."""
    cosines = left @ right.T
    own = np.diag(cosines)
    others = (cosines.sum(1) - own) / (len(own) - 1)
    each = own - others
    return Cosine(float(each.mean()), each, float(own.mean()), float(others.mean()))


def compare_ranks(left: Side, right: Side) -> Retrieval:
    """The mean reciprocal rank at which a right vector finds its left one among all concepts."""
    cosines = right @ left.T
    ranks = 1 + (cosines > np.diag(cosines)[:, None]).sum(1)
    each = 1 / ranks
    return Retrieval(float(each.mean()), each, float((ranks == 1).mean()))


def compare_hits(left: Side, right: Side) -> Found:
    """The share of right vectors that find their left one first."""
    cosines = right @ left.T
    each = (cosines.max(1) <= np.diag(cosines)).astype(float)
    return Found(float(each.mean()), each)


def _prepare_map(left: Side, right: Side, _rank: int) -> tuple[Side, Side]:
    return project_map(left, right)[0]


def compare_map(left: Side, right: Side) -> Found:
    """How much nearer pairs lie than strangers on the map of both, as a share of the distance."""
    apart = np.linalg.norm(left[:, None] - right, axis=-1)
    own, count = np.trace(apart), len(apart)
    others = (apart.sum() - own) / (count * (count - 1))
    return Found(float(1 - own / count / max(others, _TINY)))


def _prepare_unit(left: Side, right: Side, _rank: int) -> tuple[Side, Side]:
    return _scale(_centre(left)), _scale(_centre(right))


def compare_spectrum(left: Side, right: Side) -> Spectrum:
    """The sum of the singular values of the sides' product, 1 where one is the other turned."""
    singular = np.linalg.svd(left.T @ right, compute_uv=False)[: len(left)]
    return Spectrum(float(singular.sum()), None, singular)


def _prepare_scores(left: Side, right: Side, rank: int) -> tuple[Side, Side]:
    """What varies over the concepts: the first principal components' scores, orthonormal."""
    one, other = (np.linalg.svd(_centre(side), full_matrices=False)[0] for side in (left, right))
    return one[:, :rank], other[:, :rank]


def _prepare_ways(left: Side, right: Side, rank: int) -> tuple[Side, Side]:
    """The directions of the network's space that each side uses most, as columns."""
    one, other = (np.linalg.svd(_centre(side), full_matrices=False)[2] for side in (left, right))
    return one[:rank].T, other[:rank].T


def compare_angles(left: Side, right: Side) -> Angles:
    """The mean cosine of the principal angles between the spaces of orthonormal columns."""
    cosines = np.linalg.svd(left.T @ right, compute_uv=False)
    return Angles(float(cosines.mean()), None, cosines)


def _prepare_folds(left: Side, right: Side, _rank: int) -> tuple[np.ndarray, Side]:
    """The left side as each fold's PCA sees it; the right side's depends on the pairing."""
    size = len(left) - -(-len(left) // FOLDS)
    rank = min(choose_rank(size), left.shape[1], right.shape[1])
    folds = [_fit_pca(left[~out], rank)(left) for out in _split(len(left))]
    return np.stack(folds, 1), right


def compare_folds(left: np.ndarray, right: Side) -> Procrustes:
    """The mean cosine of held-out left vectors, turned, with their right ones.

    For every part of the facts, PCA and the rotation are fitted to the others.
    """
    each, train = np.zeros(len(right)), []
    for fold, out in enumerate(_split(len(right))):
        one = left[:, fold]
        other = _fit_pca(right[~out], one.shape[1])(right)
        turn, _ = orthogonal_procrustes(one[~out], other[~out], check_finite=False)
        cosines = (_normalise(one @ turn) * _normalise(other)).sum(1)
        each[out] = cosines[out]
        train.append(cosines[~out].mean())
    return Procrustes(float(each.mean()), each, float(np.mean(train)))


def _split(count: int) -> list[np.ndarray]:
    return [np.arange(count) % FOLDS == fold for fold in range(FOLDS)]


def _prepare_grams(left: Side, right: Side, _rank: int) -> tuple[Side, Side]:
    return _centre(left), _centre(right)


def compare_grams(left: Side, right: Side) -> Found:
    """Debiased linear CKA: 0 on average for strangers, 1 for sides that are each other turned.

    Song et al. 2012's unbiased HSIC in Kornblith et al. 2019's ratio; not a number where a side
    has no variance left.
    """
    one, other = (_zero_diagonal(side @ side.T) for side in (left, right))
    size = _find_hsic(one, one) * _find_hsic(other, other)
    return Found(_find_hsic(one, other) / size**0.5 if size > 0 else float("nan"))


find_cosine = Measure(_prepare_directions, compare_cosine, one_space=True)
find_retrieval = Measure(_prepare_directions, compare_ranks, one_space=True)
find_procrustes = Measure(_prepare_folds, compare_folds)
find_overlap = Measure(_prepare_ways, compare_angles, one_space=True)
"""Between the directions each side uses. It does not know which vector belongs to which: its null
is a random space, not a shuffling."""

MEASURES: dict[str, Measure] = {
    "cosine": find_cosine,
    "retrieval": find_retrieval,
    "top-1": Measure(_prepare_directions, compare_hits, one_space=True),
    "map": Measure(_prepare_map, compare_map, one_space=True),
    "spectrum": Measure(_prepare_unit, compare_spectrum),
    "angles": Measure(_prepare_scores, compare_angles),
    "procrustes": find_procrustes,
    "cka": Measure(_prepare_grams, compare_grams),
}
MEANINGS = {
    "cosine": "cosine, matched minus unmatched",
    "retrieval": "retrieval, mean reciprocal rank",
    "top-1": "retrieval, first hit",
    "map": "PCA map, pairs nearer by",
    "spectrum": "SVD, shared spectrum",
    "angles": "principal angles, mean cosine",
    "procrustes": "Procrustes, held-out cosine",
    "cka": "debiased linear CKA",
}


def project_map(left: Side, right: Side) -> tuple[tuple[Side, Side], Float[np.ndarray, "2"]]:
    """Both sides on the plane of their first principal components, and the variance it shows."""
    sides = [_scale(_centre(side)) for side in (left, right)]
    fitted = PCA(2).fit(np.vstack(sides))
    one, other = (fitted.transform(side) for side in sides)
    return (one, other), fitted.explained_variance_ratio_


def find_singular_values(side: Side) -> Float[np.ndarray, "r"]:
    """Shares of a side's variance along its own directions, largest first."""
    squares = np.linalg.svd(_centre(side), compute_uv=False) ** 2
    return squares / max(squares.sum(), _TINY)


def _centre(side: Side) -> Side:
    return side - side.mean(0)


def _scale(side: Side) -> Side:
    return side / max(np.linalg.norm(side), _TINY)


def _normalise(side: Side) -> Side:
    return side / np.maximum(np.linalg.norm(side, axis=1, keepdims=True), _TINY)


def _fit_pca(side: Side, rank: int) -> Callable[[Side], Side]:
    """PCA fitted to some vectors, as a function of any."""
    mean = side.mean(0)
    ways = np.linalg.svd(side - mean, full_matrices=False)[2][:rank]
    return lambda other: (other - mean) @ ways.T


def _zero_diagonal(gram: np.ndarray) -> np.ndarray:
    np.fill_diagonal(gram, 0.0)
    return gram


def _find_hsic(one: np.ndarray, other: np.ndarray) -> float:
    """Unbiased HSIC of two Gram matrices with empty diagonals."""
    n = len(one)
    trace = (one * other).sum()
    sums = one.sum() * other.sum() / ((n - 1) * (n - 2))
    cross = 2 * (one.sum(0) @ other.sum(0)) / (n - 2)
    return float((trace + sums - cross) / (n * (n - 3)))

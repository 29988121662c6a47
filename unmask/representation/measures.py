"""Measures of how alike two sets of vectors are, one vector a concept on each side, in one order.

All of them ignore the sides' means, which hold what every concept has in common. `cosine`,
`retrieval`, `top-1` and `map` need both sides in one space; the others compare how the concepts lie
to each other, and take sides of any width.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.linalg import orthogonal_procrustes, subspace_angles
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


def find_cosine(left: Side, right: Side) -> Cosine:
    """The mean cosine of matched pairs minus that of unmatched ones."""
    cosines = _compare(left, right)
    own, count = np.diag(cosines), len(cosines)
    others = (cosines.sum(1) - own) / (count - 1)
    each = own - others
    return Cosine(float(each.mean()), each, float(own.mean()), float(others.mean()))


def find_retrieval(left: Side, right: Side) -> Retrieval:
    """The mean reciprocal rank at which a right vector finds its left one among all concepts."""
    cosines = _compare(right, left)
    ranks = 1 + (cosines > np.diag(cosines)[:, None]).sum(1)
    each = 1 / ranks
    return Retrieval(float(each.mean()), each, float((ranks == 1).mean()))


def find_top(left: Side, right: Side) -> Found:
    """The share of right vectors that find their left one first."""
    ranked = find_retrieval(left, right).per_fact
    assert ranked is not None
    each = np.equal(ranked, 1.0).astype(float)
    return Found(float(each.mean()), each)


def find_map(left: Side, right: Side) -> Found:
    """How much nearer pairs lie than strangers on the map of both, as a share of the distance.

    The map is the plane of the first two principal components of both sides together.
    """
    one, other = project_map(left, right)[0]
    apart = np.linalg.norm(one[:, None] - other, axis=-1)
    own, count = np.diag(apart), len(apart)
    others = (apart.sum() - own.sum()) / (count * (count - 1))
    each = 1 - own / max(others, _TINY)
    return Found(float(each.mean()))


def find_spectrum(left: Side, right: Side) -> Spectrum:
    """The sum of the singular values of the sides' product, 1 where one is the other turned.

    Both sides are scaled to unit size first. `singular` is the spectrum itself.
    """
    one, other = (_scale(_centre(side)) for side in (left, right))
    singular = np.linalg.svd(one.T @ other, compute_uv=False)[: len(left)]
    return Spectrum(float(singular.sum()), None, singular)


def find_angles(left: Side, right: Side, rank: int | None = None) -> Angles:
    """The mean cosine of the principal angles between what varies over the concepts on each side.

    The subspaces are those of the first principal components' scores, in the space of concepts,
    so that the pairing counts.
    """
    rank = choose_rank(len(left)) if rank is None else rank
    scores = [
        np.linalg.svd(_centre(side), full_matrices=False)[0][:, :rank] for side in (left, right)
    ]
    cosines = np.cos(subspace_angles(*scores))[::-1]
    return Angles(float(cosines.mean()), None, cosines)


def find_overlap(left: Side, right: Side, rank: int | None = None) -> Angles:
    """The same between the directions of the network's space that each side uses.

    It does not know which vector belongs to which: its null is a random subspace, not a shuffling.
    """
    rank = choose_rank(len(left)) if rank is None else rank
    ways = [np.linalg.svd(_centre(side), full_matrices=False)[2][:rank].T for side in (left, right)]
    cosines = np.cos(subspace_angles(*ways))[::-1]
    return Angles(float(cosines.mean()), None, cosines)


def find_procrustes(left: Side, right: Side, folds: int = FOLDS) -> Procrustes:
    """The mean cosine of held-out right vectors with their left ones, turned and scaled.

    For every part of the facts, PCA and the rotation are fitted to the others.
    """
    count = len(left)
    each, train = np.zeros(count), []
    for fold in range(folds):
        out = np.arange(count) % folds == fold
        rank = min(choose_rank(int((~out).sum())), *left.shape, *right.shape)
        one, other = (_fit_pca(side[~out], rank)(side) for side in (left, right))
        turn, _ = orthogonal_procrustes(one[~out], other[~out])
        cosines = _pair_cosines(one @ turn, other)
        each[out] = cosines[out]
        train.append(cosines[~out].mean())
    return Procrustes(float(each.mean()), each, float(np.mean(train)))


def find_cka(left: Side, right: Side) -> Found:
    """Debiased linear CKA: 0 on average for strangers, 1 for sides that are each other turned.

    Song et al. 2012's unbiased HSIC in Kornblith et al. 2019's ratio; not a number where a side
    has no variance left.
    """
    one, other = (_zero_diagonal(side @ side.T) for side in (_centre(left), _centre(right)))
    size = _find_hsic(one, one) * _find_hsic(other, other)
    return Found(_find_hsic(one, other) / size**0.5 if size > 0 else float("nan"))


MEASURES: dict[str, Callable[[Side, Side], Found]] = {
    "cosine": find_cosine,
    "retrieval": find_retrieval,
    "top-1": find_top,
    "map": find_map,
    "spectrum": find_spectrum,
    "angles": find_angles,
    "procrustes": find_procrustes,
    "cka": find_cka,
}
IN_ONE_SPACE = ("cosine", "retrieval", "top-1", "map")
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


def _compare(left: Side, right: Side) -> Float[np.ndarray, "N N"]:
    """Cosines of every left vector with every right one."""
    return _normalise(_centre(left)) @ _normalise(_centre(right)).T


def _pair_cosines(left: Side, right: Side) -> Float[np.ndarray, "N"]:
    return (_normalise(left) * _normalise(right)).sum(1)


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

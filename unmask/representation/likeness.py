"""How alike two sets of vectors are, one vector for each concept on either side, in one order.

All likenesses ignore the sides' means, which hold what every concept has in common. `cosine`,
`retrieval`, `top-1` and `map` need both sides in one space; the others compare how the concepts lie
to each other, and take sides of any width. Right sides may come as a stack of pairings, which are
compared at once: a null is a thousand of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

Side = Float[np.ndarray, "N D"]
Other = Float[np.ndarray, "N E"]
"""A right side that may have another width."""
Sides = Float[np.ndarray, "*R N D"]
Others = Float[np.ndarray, "*R N E"]
Values = Float[np.ndarray, "*R"] | float
"""One for each pairing of a stack; a number for a single pairing."""

FOLDS = 5
NEEDED_FACTS = 2 * FOLDS
"""The fewest facts: two in each held-out part, and enough for the estimates without bias."""
_TINY = 1e-12
_TIE = 1e-9
"""Cosines that differ by less are equal but for rounding."""


@dataclass(frozen=True)
class Score:
    """How alike two sides are; larger is more alike."""

    value: Values
    per_fact: Float[np.ndarray, "*R N"] | None = None
    """What each fact gives to it, where the value is their mean."""
    matched: Values | None = None
    unmatched: Values | None = None
    """The mean cosines of pairs and of strangers, whose difference is `cosine`."""
    train: Values | None = None
    """`procrustes` on the facts that the rotation was fitted to."""
    cosines: Float[np.ndarray, "*R r"] | None = None
    """Cosines of the principal angles."""


@dataclass(frozen=True)
class Likeness:
    """A likeness in two steps, so that shuffling the pairs repeats the second alone.

    `prepare` treats every pairing of the same vectors alike: shuffling its right side is the same
    as preparing shuffled vectors. Its last argument is the number of dimensions that PCA keeps.
    """

    prepare: Callable[[Side, Other, int], tuple[np.ndarray, np.ndarray]]
    compare: Callable[[np.ndarray, np.ndarray], Score]
    """The right side may be a stack of them."""
    one_space: bool = False
    """Whether both sides must lie in one space."""
    is_share: bool = False
    """Whether each fact gives a number from 0 to 1, and the value is their mean."""

    def __call__(self, left: Side, right: Other, rank: int | None = None) -> Score:
        rank = choose_rank(len(left)) if rank is None else rank
        return self.compare(*self.prepare(left, right, rank))


def choose_rank(num_facts: int) -> int:
    """Dimensions kept by PCA: few against the facts, so that what is fitted can fail."""
    return max(2, num_facts // 4)


def varies(side: Side) -> bool:
    """Whether the concepts' vectors differ by more than rounding."""
    return bool(np.linalg.norm(_centre(side)) > 1e-9 * np.linalg.norm(side))


def prepare_directions(left: Side, right: Side, _rank: int = 0) -> tuple[Side, Side]:
    """Centred vectors of length 1: their products are cosines."""
    return _normalise(_centre(left)), _normalise(_centre(right))


def compare_cosine(left: Side, right: Sides) -> Score:
    """The mean cosine of matched pairs minus that of unmatched ones."""
    cosines = left @ right.mT
    own = _diagonal(cosines)
    others = (cosines.sum(-1) - own) / (len(left) - 1)
    each = own - others
    return Score(each.mean(-1), each, own.mean(-1), others.mean(-1))


def compare_ranks(left: Side, right: Sides) -> Score:
    """The mean reciprocal rank at which a right vector finds its left one among all concepts.

    Concepts that tie share the mean of their ranks.
    """
    nearer, tied = _count_nearer(left, right)
    each = 1 / (1 + nearer + (tied - 1) / 2)
    return Score(each.mean(-1), each)


def score_pairs(left: Side, right: Side) -> dict[str, Float[np.ndarray, "N N"]]:
    """What right vector j gives to `retrieval` and `top-1` where left vector i is its own, [j, i].

    Any pairing's value is the mean of its entries, so that nulls need no further comparing.
    """
    one, other = prepare_directions(left, right)
    cosines = other @ one.T
    apart = cosines[:, None, :] - cosines[:, :, None]  # [j, i, rival]
    nearer, tied = (apart > _TIE).sum(-1), (np.abs(apart) <= _TIE).sum(-1)
    return {"retrieval": 1 / (1 + nearer + (tied - 1) / 2), "top-1": (nearer == 0) / tied}


def compare_hits(left: Side, right: Sides) -> Score:
    """The share of right vectors that find their left one first; of n that tie, one in n does."""
    nearer, tied = _count_nearer(left, right)
    each = (nearer == 0) / tied
    return Score(each.mean(-1), each)


def _count_nearer(left: Side, right: Sides) -> tuple[np.ndarray, np.ndarray]:
    """For each right vector, how many left ones are nearer than its own, and as near, it included.

    Ties must not count for the truth: vectors that are all alike would find each other.
    """
    cosines = right @ left.T
    apart = cosines - _diagonal(cosines)[..., None]
    return (apart > _TIE).sum(-1), (np.abs(apart) <= _TIE).sum(-1)


def _prepare_map(left: Side, right: Side, _rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Both sides on the plane of their first two principal components."""
    from sklearn.decomposition import PCA

    one, other = _prepare_scaled(left, right)
    plane = PCA(2).fit(np.vstack((one, other)))
    return plane.transform(one), plane.transform(other)


def compare_map(left: Side, right: Sides) -> Score:
    """How much nearer pairs lie than strangers on the map of both, as a share of the distance."""
    apart = np.linalg.norm(left[:, None] - right[..., None, :, :], axis=-1)
    own, count = _diagonal(apart).sum(-1), len(left)
    others = (apart.sum((-1, -2)) - own) / (count * (count - 1))
    return Score(1 - own / count / np.maximum(others, _TINY))


def _prepare_scaled(left: Side, right: Other, _rank: int = 0) -> tuple[Side, Other]:
    """Centred sides of norm 1."""
    sides = _prepare_centred(left, right)
    one, other = (side / max(np.linalg.norm(side), _TINY) for side in sides)
    return one, other


def compare_spectrum(left: Side, right: Others) -> Score:
    """The sum of the singular values of the sides' product, 1 where one is the other turned."""
    singular = np.linalg.svd(left.T @ right, compute_uv=False)[..., : len(left)]
    return Score(singular.sum(-1))


def _prepare_scores(left: Side, right: Other, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """What varies over the concepts: the first principal components' scores, orthonormal."""
    one, other = (np.linalg.svd(_centre(side), full_matrices=False)[0] for side in (left, right))
    return one[:, :rank], other[:, :rank]


def _prepare_axes(left: Side, right: Side, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """The directions of the network's space that each side uses most, as columns."""
    one, other = (np.linalg.svd(_centre(side), full_matrices=False)[2] for side in (left, right))
    return one[:rank].T, other[:rank].T


def compare_angles(left: Float[np.ndarray, "n r"], right: Float[np.ndarray, "*R n q"]) -> Score:
    """The mean cosine of the principal angles between the spaces of orthonormal columns."""
    cosines = np.linalg.svd(left.T @ right, compute_uv=False)
    return Score(cosines.mean(-1), cosines=cosines)


def _prepare_folds(left: Side, right: Other, _rank: int) -> tuple[np.ndarray, Other]:
    """The left side as each fold's PCA sees it; the right side's depends on the pairing."""
    size = len(left) - -(-len(left) // FOLDS)
    rank = min(choose_rank(size), left.shape[1], right.shape[1])
    return np.stack([_reduce(left, ~out, rank) for out in _split(len(left))], 1), right


def compare_folds(left: np.ndarray, right: Others) -> Score:
    """The mean cosine of held-out left vectors, turned, with their right ones.

    For every part of the facts, PCA and the rotation are fitted to the others. The rotation is
    that of `scipy.linalg.orthogonal_procrustes`, which takes no stacks.
    """
    each, train = np.zeros(right.shape[:-1]), []
    for fold, out in enumerate(_split(len(left))):
        one = left[:, fold]
        other = _reduce(right, ~out, one.shape[1])
        u, _, vt = np.linalg.svd(one[~out].T @ other[..., ~out, :])
        cosines = (_normalise(one @ (u @ vt)) * _normalise(other)).sum(-1)
        each[..., out] = cosines[..., out]
        train.append(cosines[..., ~out].mean(-1))
    return Score(each.mean(-1), each, train=np.mean(train, 0))


def _split(count: int) -> list[np.ndarray]:
    return [np.arange(count) % FOLDS == fold for fold in range(FOLDS)]


def _reduce(sides: Sides, fitted: np.ndarray, rank: int) -> Float[np.ndarray, "*R N r"]:
    """All vectors as the PCA of some of them sees them."""
    some = sides[..., fitted, :]
    mean = some.mean(-2, keepdims=True)
    axes = np.linalg.svd(some - mean, full_matrices=False)[2][..., :rank, :]
    return (sides - mean) @ axes.mT


def _prepare_centred(left: Side, right: Other, _rank: int = 0) -> tuple[Side, Other]:
    return _centre(left), _centre(right)


def compare_grams(left: Side, right: Others) -> Score:
    """Debiased linear CKA: 0 on average for unrelated sides, 1 if one is the other rotated.

    Song et al. 2012's unbiased HSIC in Kornblith et al. 2019's ratio; not a number where a side
    has no variance left.
    """
    empty_diagonal = 1 - np.eye(len(left))
    one, other = ((side @ side.mT) * empty_diagonal for side in (left, right))
    size = _estimate_hsic(one, one) * _estimate_hsic(other, other)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = _estimate_hsic(one, other) / np.sqrt(size)
    return Score(np.where(size > 0, ratio, np.nan))


def _estimate_hsic(one: np.ndarray, other: np.ndarray) -> Values:
    """Unbiased HSIC of Gram matrices with empty diagonals."""
    n = one.shape[-1]
    trace = (one * other).sum((-1, -2))
    sums = one.sum((-1, -2)) * other.sum((-1, -2)) / ((n - 1) * (n - 2))
    cross = 2 * (one.sum(-2) * other.sum(-2)).sum(-1) / (n - 2)
    return (trace + sums - cross) / (n * (n - 3))


def _centre(side: Side) -> Side:
    return side - side.mean(0)


def _normalise(sides: Sides) -> Sides:
    return sides / np.maximum(np.linalg.norm(sides, axis=-1, keepdims=True), _TINY)


def _diagonal(square: np.ndarray) -> np.ndarray:
    return np.diagonal(square, axis1=-2, axis2=-1)


LIKENESSES: dict[str, Likeness] = {
    "cosine": Likeness(prepare_directions, compare_cosine, one_space=True),
    "retrieval": Likeness(prepare_directions, compare_ranks, one_space=True, is_share=True),
    "top-1": Likeness(prepare_directions, compare_hits, one_space=True, is_share=True),
    "map": Likeness(_prepare_map, compare_map, one_space=True),
    "spectrum": Likeness(_prepare_scaled, compare_spectrum),
    "angles": Likeness(_prepare_scores, compare_angles),
    "procrustes": Likeness(_prepare_folds, compare_folds),
    "cka": Likeness(_prepare_centred, compare_grams),
}
"""By the names that tables have for them; their words are in `unmask.blocks.labels`."""
OVERLAP = "overlap"
SHARED_DIRECTIONS = Likeness(_prepare_axes, compare_angles, one_space=True)
"""`OVERLAP`: between the directions each side uses. It does not know which vector belongs to which:
its null is a random space, not a shuffling."""

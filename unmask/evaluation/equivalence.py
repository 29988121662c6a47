"""Are two groups alike? Shares of a total with their intervals, equivalence tests, halves.

That no difference was detected does not mean that there is none. Two groups are alike where the
difference of their means lies within a margin that was written down before, by two one-sided t
tests (Schuirmann 1987); beside the outcome stand the smallest margin that the data would have
passed, and how often the test would pass if there were no difference at all.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from unmask.base.seeds import derive_seed
from unmask.evaluation.statistics import ALPHA

MARGIN = 0.1
"""Shares of a total effect that differ by less are alike."""


@dataclass(frozen=True)
class Equivalence:
    """A difference of two means, and whether it lies within a margin."""

    gap: float
    p_equivalent: float
    """The p value of "as large as the margin, or larger": alike where it is at most 0.05."""
    smallest_margin: float
    """The smallest margin at which they would be called alike."""
    power: float
    """How often they would be called alike without any difference, given errors of this size."""
    facts: int
    paired: bool


def measure_equivalence(
    one: Mapping[str, float], other: Mapping[str, float], margin: float
) -> Equivalence | None:
    """Two one-sided t tests of the mean of `one` minus that of `other`, each a value for a fact.

    Paired over the facts that both have, if at least two; else Welch's test of the two groups. None
    without two facts a side.
    """
    from scipy.special import stdtr, stdtrit

    # 1. The gap, its squared standard error and the degrees of freedom: of differences by fact, or
    #    of two groups by Welch and Satterthwaite.
    shared = sorted(one.keys() & other.keys())
    if len(shared) >= 2:
        gaps = np.array([one[fact] - other[fact] for fact in shared])
        gap, variance, freedom = gaps.mean(), gaps.var(ddof=1) / len(gaps), len(gaps) - 1.0
    else:
        sides = [np.array([*side.values()]) for side in (one, other)]
        if min(map(len, sides)) < 2:
            return None
        variances = np.array([side.var(ddof=1) / len(side) for side in sides])
        gap, variance = sides[0].mean() - sides[1].mean(), variances.sum()
        freedoms = np.array([len(side) - 1.0 for side in sides])
        freedom = variance**2 / (variances**2 / freedoms).sum() if variance else freedoms.sum()
    # 2. How far the gap reaches to one side: the margin must lie beyond both of its ends.
    error = max(float(variance) ** 0.5, 1e-12)
    reach = float(stdtrit(freedom, 1 - ALPHA)) * error
    # 3. Without a difference, the mean must lie within the margin by that reach, on both sides.
    inside = stdtr(freedom, (margin - reach) / error)
    return Equivalence(
        gap=float(gap),
        p_equivalent=float(stdtr(freedom, (abs(gap) - margin) / error)),
        smallest_margin=float(abs(gap) + reach),
        power=max(0.0, float(2 * inside - 1)),
        facts=len(shared) if len(shared) >= 2 else len(one) + len(other),
        paired=len(shared) >= 2,
    )


def find_shares(values: ArrayLike, totals: ArrayLike) -> Float[np.ndarray, "F *N"]:
    """Values by fact whose mean is the mean value as a share of the mean total, in each column.

    The share is a ratio of two means over the facts that have a value (others are NaN). To first
    order a fact moves it by how far its value lies from that share of its own total, so that
    intervals and tests of these values are those of the ratio (the delta method), the total's own
    variation included. There is no share of a total of 0.
    """
    value = np.asarray(values, dtype=float)
    total = np.where(np.isfinite(value), np.asarray(totals, dtype=float), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_total = np.nansum(total, 0) / np.isfinite(value).sum(0)
        share = np.where(mean_total, np.nansum(value, 0) / np.nansum(total, 0), np.nan)
        return share + (value - share * total) / mean_total


def divide(names: Iterable[str]) -> dict[str, int]:
    """Two halves, 0 and 1, of one size: names sorted by a hash of theirs, in turn."""
    by_hash = sorted(names, key=lambda name: (derive_seed(0, "half", name), name))
    return {name: rank % 2 for rank, name in enumerate(by_hash)}

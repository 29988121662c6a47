"""How far a mean moves with facts, phrasings and training seeds, which are crossed.

Every source has a squared reach: the variance of the mean over it, times a squared quantile. For
facts and phrasings that is Student's of their own number. What neither explains counts once, with
the facts. Few seeds say little of how far seeds deviate, so that of shares their variance is its
mean given the seeds and a half-normal prior: in logits deviations are seldom more than `PRIOR`.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

ALPHA = 0.05
"""A p at most this large is significant."""
PRIOR = 0.9
"""The scale of the prior, by simulation: `benchmarks/coverage.py`."""
_DEVIATIONS = np.concatenate(([0.0], np.geomspace(0.02, 6.0, 60)))
"""Deviations of seeds, in logits, over which the prior is summed."""
_STEPS = np.gradient(_DEVIATIONS)


@dataclass(frozen=True)
class Cells:
    """Sums and counts of values by training seed, fact and phrasing; a cell may have none."""

    sums: Float[np.ndarray, "S F P"]
    counts: Float[np.ndarray, "S F P"]

    @cached_property
    def moved(self) -> Float[np.ndarray, "S F P"]:
        """How far the values of each cell move the mean; they sum to 0."""
        mean = self.sums.sum() / self.counts.sum()
        return (self.sums - mean * self.counts) / self.counts.sum()

    def square_tests(self) -> float:
        """The squared reach over other facts and other phrasings."""
        return square_tests(self.moved.sum(0), self.counts.sum(0))

    def square_seeds(self, spread: float) -> float:
        """The squared reach of a share over other seeds; `spread` is the mean times its rest."""
        num, moved, counts = len(self.sums), self.moved, self.counts
        if num < 2 or spread <= 0:
            return 0.0
        rest = _take_off(moved.reshape(num, -1), counts.reshape(num, -1))
        seeds = num / (num - 1) * float((moved.sum((1, 2)) ** 2).sum())
        noise = _scale(_count(counts), num, _count(counts.sum(0))) * rest
        # In logits, of one seed.
        seen, blurred = (num * each / spread**2 for each in (seeds, noise))
        total = _DEVIATIONS**2 + max(blurred, 1e-6)
        logs = (num - 1) / 2 * (np.log(total) + seen / total) + (_DEVIATIONS / PRIOR) ** 2 / 2
        weights = np.exp(logs.min() - logs) * _STEPS
        variance = float(weights @ _DEVIATIONS**2 / weights.sum())
        return square_quantile(np.inf) * variance / num * spread**2

    def bound_unseen(self) -> float:
        """The upper end of a share that was never hit: three prompts are as one coin.

        At worst all prompts of a fact are.
        """
        facts = self.sums.shape[1]
        ratio = square_quantile(facts - 1) * min(3 / float(self.counts.sum()), 1 / facts)
        return ratio / (1 + ratio)


def square_tests(moved: Float[np.ndarray, "F P"], counts: Float[np.ndarray, "F P"]) -> float:
    """The squared reach over facts and phrasings, from what their cells move the mean."""
    facts, phrasings = moved.shape
    if facts < 2:
        return np.nan
    noise = _scale(_count(counts), facts, phrasings) * _take_off(moved, counts)
    squares = [
        num / (num - 1) * float((moved.sum(axis) ** 2).sum())
        for num, axis in ((facts, 1), (phrasings, 0))
    ]
    left = max(squares[1] - noise, 0.0)
    return square_quantile(facts - 1) * squares[0] + square_quantile(phrasings - 1) * left


def square_quantile(freedom: float) -> float:
    """How many standard errors an interval reaches to either side, squared."""
    from scipy.special import ndtri, stdtrit

    level = 1 - ALPHA / 2
    return float(stdtrit(freedom, level) if np.isfinite(freedom) else ndtri(level)) ** 2


def _take_off(moved: Float[np.ndarray, "A B"], counts: Float[np.ndarray, "A B"]) -> float:
    """The sum of squares that neither rows nor columns explain."""
    mean = [
        moved.sum(axis, keepdims=True) / counts.sum(axis, keepdims=True).clip(1) for axis in (0, 1)
    ]
    return float(((moved - counts * (mean[0] + mean[1])) ** 2).sum())


def _count(counts: np.ndarray) -> int:
    """How many cells have values."""
    return int(np.count_nonzero(counts))


def _scale(cells: int, rows: int, columns: int) -> float:
    """What turns that sum into the variance of a mean; 0 where nothing is left to see it."""
    freedom = cells - rows - columns + 1
    return cells / freedom if freedom > 0 else 0.0

"""How well a score tells what is so from what is not: AUROC with its interval, and false alarms."""

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from unmask.evaluation.crossed import square_quantile
from unmask.evaluation.statistics import Interval


def find_area(values: Float[np.ndarray, "N"], is_true: Bool[np.ndarray, "N"]) -> float | None:
    """AUROC: how often what is true scores above what is not; ties count half."""
    if not is_true.any() or is_true.all():
        return None
    return float(_place(values, is_true)[is_true].mean())


def estimate_area(values: ArrayLike, is_true: ArrayLike, facts: ArrayLike) -> Interval | None:
    """AUROC with its interval for other facts, of scores of which several may be about one fact.

    A score moves the area by the share of the other side that it is on the right side of (DeLong et
    al. 1988); those of one fact move together (Obuchowski 1997). The interval has Wilson's shape,
    with as many independent facts as that variance is worth: where no fact errs, as many as the
    smaller side has. None where one side is empty.
    """
    scores, truth = np.asarray(values, float), np.asarray(is_true, bool)
    names, fact_at = np.unique(np.asarray(facts), return_inverse=True)
    area = find_area(scores, truth)
    if area is None or len(names) < 2:
        return None if area is None else Interval(area, 0.0, 1.0)
    # 1. How far each fact moves the area [F]; these sum to 0.
    sides = np.where(truth, truth.sum(), (~truth).sum())
    moved = np.bincount(fact_at, (_place(scores, truth) - area) / sides)
    variance = len(names) / (len(names) - 1) * float((moved**2).sum())
    # 2. Wilson's interval of a share of so many independent facts.
    smaller = min(len(np.unique(fact_at[side])) for side in (truth, ~truth))
    number = area * (1 - area) / variance if variance > 0 else float(smaller)
    squared = square_quantile(len(names) - 1)
    middle = (area + squared / (2 * number)) / (1 + squared / number)
    reach = np.sqrt(area * (1 - area) / number * squared + squared**2 / (4 * number**2))
    reach = float(reach / (1 + squared / number))
    return Interval(area, max(0.0, min(area, middle - reach)), min(1.0, max(area, middle + reach)))


def choose_alarm(values: ArrayLike, is_true: ArrayLike, most: float = 0.05) -> float:
    """A limit that at most this share of what is not so lies above, halfway to what is."""
    scores, truth = np.asarray(values, float), np.asarray(is_true, bool)
    others = np.sort(scores[~truth])
    allowed = int(most * len(others))
    if not len(others):
        return -np.inf
    highest = float(others[len(others) - 1 - allowed])
    above = scores[truth & (scores > highest)]
    return (highest + float(above.min())) / 2 if len(above) else highest


def _place(values: Float[np.ndarray, "N"], is_true: Bool[np.ndarray, "N"]) -> np.ndarray:
    """The share of the other side that each score is on the right side of; ties count half."""
    from scipy.stats import rankdata

    ranks, placed = rankdata(values), np.empty(len(values))
    for side in (is_true, ~is_true):
        below = ranks[side] - rankdata(values[side])
        share = below / (~side).sum()
        placed[side] = share if side is is_true else 1 - share
    return placed

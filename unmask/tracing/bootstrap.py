"""Intervals and tests over facts: facts are drawn again, never their prompts or tokens alone."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from unmask.base.seeds import derive_seed

DRAWS = 2_000
LEVEL = 0.95


def resample(num_facts: int, seed: int = 0, draws: int = DRAWS) -> np.ndarray:
    """How often each fact occurs in each resample [draws, facts].

    The same for every quantity of the same facts, so that their intervals are paired.
    """
    generator = np.random.default_rng(derive_seed(seed, "facts", num_facts))
    return generator.multinomial(num_facts, np.full(num_facts, 1 / num_facts), size=draws)


def mean_interval(
    values: np.ndarray, weights: np.ndarray, level: float = LEVEL
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean of each column of [facts, columns] and the ends of its bootstrap interval.

    A fact without a value (NaN) does not count; under two facts the ends are NaN.
    """
    there = np.isfinite(values)
    filled = np.where(there, values, 0.0)
    count = there.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = filled.sum(0) / count
        means = (weights @ filled) / (weights @ there.astype(float))
    ends = np.full((2, values.shape[1]), np.nan)
    enough = count >= 2
    if enough.any():
        tails = [(1 - level) / 2, (1 + level) / 2]
        ends[:, enough] = np.nanquantile(means[:, enough], tails, axis=0)
    return mean, ends[0], ends[1]


@dataclass(frozen=True)
class Difference:
    """The difference of two means over facts, with its interval and its test."""

    mean: float
    low: float
    high: float
    p: float
    """Of a permutation test: signs flipped where paired, else labels shuffled."""
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
    if len(shared) >= 2:
        values = np.array([one[fact] - other[fact] for fact in shared])
        mean, low, high = mean_interval(values[:, None], resample(len(values), seed, draws))
        signs = generator.choice([-1.0, 1.0], size=(draws, len(values)))
        p = _share(np.abs(signs @ values / len(values)), abs(float(mean[0])))
        return Difference(float(mean[0]), float(low[0]), float(high[0]), p, len(values), True)
    a, b = (np.array([side[fact] for fact in sorted(side)]) for side in (one, other))
    if min(len(a), len(b)) < 2:
        return None
    means = [
        resample(len(x), derive_seed(seed, side), draws) @ x / len(x)
        for side, x in (("one", a), ("other", b))
    ]
    low, high = np.quantile(means[0] - means[1], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    pool, size = np.concatenate((a, b)), len(a)
    shuffled = generator.permuted(np.tile(pool, (draws, 1)), axis=1)
    gaps = shuffled[:, :size].mean(1) - shuffled[:, size:].mean(1)
    mean = float(a.mean() - b.mean())
    p = _share(np.abs(gaps), abs(mean))
    return Difference(mean, float(low), float(high), p, len(pool), False)


def adjust(p_values: list[float]) -> list[float]:
    """Holm's correction for testing several differences at once."""
    order = np.argsort(p_values, kind="stable")
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def _share(null: np.ndarray, found: float) -> float:
    """The share of the null at least as large, the found one counted in; ties by rounding too."""
    return float((1 + (null >= found * (1 - 1e-12)).sum()) / (1 + len(null)))

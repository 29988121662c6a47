"""Ways to make an interval of a share, or of a difference of shares, for many tables at once.

The installed one is held against the package's by `tests/laws/test_coverage.py`; what is gained by
the others: `benchmarks/coverage_tries.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from scipy.special import expit, logit, ndtri, stdtrit

from benchmarks.coverage import FACTS, PHRASINGS
from unmask.evaluation.crossed import PRIOR

NORMAL = float(ndtri(0.975)) ** 2
DEVIATIONS = np.concatenate(([0.0], np.geomspace(0.02, 6.0, 60)))
"""Deviations of a source, in logits, over which the prior is summed."""
Ends = tuple[np.ndarray, np.ndarray]


def t_square(freedom: float | np.ndarray) -> np.ndarray:
    """Student's quantile, squared."""
    return stdtrit(freedom, 0.975) ** 2


@dataclass(frozen=True)
class Tables:
    """Hits of many repetitions [R, S, F, P]; variances are of the mean and in squared logits."""

    hits: np.ndarray

    @cached_property
    def mean(self) -> np.ndarray:
        return self.hits.mean((1, 2, 3), dtype=float)

    @cached_property
    def is_seen(self) -> np.ndarray:
        """Where some prompts hit and some missed."""
        return (self.mean > 0) & (self.mean < 1)

    @cached_property
    def inner(self) -> np.ndarray:
        """The mean, or a half where there is nothing to see."""
        return np.where(self.is_seen, self.mean, 0.5)

    @cached_property
    def spread(self) -> np.ndarray:
        return self.inner * (1 - self.inner)

    @property
    def prompts(self) -> int:
        return self.hits[0].size

    @cached_property
    def tests(self) -> np.ndarray:
        """By how much each fact in each phrasing moves the mean [R, F, P]."""
        return (self.hits.mean(1, dtype=float) - self.mean[:, None, None]) / (FACTS * PHRASINGS)

    @cached_property
    def seen(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Over facts and over phrasings, as seen, and what is in both."""
        return tuple(each / self.spread**2 for each in split(self.tests))

    @cached_property
    def seeds(self) -> tuple[np.ndarray, np.ndarray]:
        """Over seeds, as seen, and what of it is not theirs."""
        num, cells = self.hits.shape[1], FACTS * PHRASINGS
        moved = (self.hits.mean((2, 3), dtype=float) - self.mean[:, None]) / num
        whole = self.mean * (1 - self.mean) / self.prompts
        rest = whole - (moved**2).sum(1) / cells - (self.tests**2).sum((1, 2)) / num
        seen = num / (num - 1) * (moved**2).sum(1)
        rest = rest * self.prompts / ((num - 1) * (cells - 1))
        return seen / self.spread**2, rest / self.spread**2


def split(moved: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The variance of a mean over rows and over columns, as seen, and what neither explains."""
    rows, columns = moved.shape[1:]
    squares = [(moved.sum(axis) ** 2).sum(1) for axis in (2, 1)]
    rest = (moved**2).sum((1, 2)) - squares[0] / columns - squares[1] / rows
    noise = rows * columns / ((rows - 1) * (columns - 1)) * rest
    return rows / (rows - 1) * squares[0], columns / (columns - 1) * squares[1], noise


@cache
def tabulate() -> tuple[np.ndarray, np.ndarray]:
    """Distances of means from a half, and for each by deviation a rate's variance, in logits."""
    distances, normal = np.linspace(0, 8, 33), ndtri((np.arange(200) + 0.5) / 200)
    mean = expit(distances)[:, None]
    low, high = np.full((2, 33, len(DEVIATIONS)), 60.0) * [[[-1]], [[1]]]
    for _ in range(40):
        middle = (low + high) / 2
        rate = expit(middle[..., None] + DEVIATIONS[:, None] * normal).mean(-1)
        low, high = np.where(rate < mean, middle, low), np.where(rate < mean, high, middle)
    rates = expit(low[..., None] + DEVIATIONS[:, None] * normal)
    return distances, rates.var(-1) / (mean * (1 - mean)) ** 2


def expect(mean: np.ndarray) -> np.ndarray:
    """The variance of a level's rate for each mean and each deviation [R, D], squared logits."""
    distances, table = tabulate()
    at = np.abs(logit(mean)).clip(0, 8 - 1e-9) / distances[1]
    part = (at % 1)[:, None]
    return table[at.astype(int)] * (1 - part) + table[at.astype(int) + 1] * part


def shrink(seen: np.ndarray, noise: np.ndarray, num: int, expected: np.ndarray) -> np.ndarray:
    """A source's variance, its mean given what is seen and the half-normal prior."""
    total = expected + np.maximum(num * noise, 1e-6)[:, None]
    logs = (num - 1) / 2 * (np.log(total) + num * seen[:, None] / total)
    logs = logs + (DEVIATIONS / PRIOR) ** 2 / 2
    weights = np.exp(logs.min(1, keepdims=True) - logs) * np.gradient(DEVIATIONS)
    return (weights * expected).sum(1) / weights.sum(1) / num


def square_tests(tables: Tables) -> np.ndarray:
    """Facts and phrasings by their own quantiles of Student's, no less than chance."""
    facts, phrasings, noise = tables.seen
    left = t_square(PHRASINGS - 1) * np.maximum(phrasings - noise, 0)
    chance = NORMAL / tables.prompts / tables.spread
    return np.maximum(t_square(FACTS - 1) * facts + left, chance)


def square_seeds(tables: Tables, expected: np.ndarray | None = None) -> np.ndarray:
    """Seeds by the prior; a level's variance is its deviation's square unless it is given."""
    given = np.broadcast_to(DEVIATIONS**2, (len(tables.mean), len(DEVIATIONS)))
    expected = given if expected is None else expected
    return NORMAL * shrink(*tables.seeds, tables.hits.shape[1], expected)


def square_by_t(tables: Tables) -> np.ndarray:
    """Every source by its own quantile: with three seeds that of two degrees of freedom."""
    seen, noise = tables.seeds
    return square_tests(tables) + t_square(tables.hits.shape[1] - 1) * np.maximum(seen - noise, 0)


def square_by_satterthwaite(tables: Tables) -> np.ndarray:
    """The variances together, by one quantile of Satterthwaite's degrees of freedom."""
    facts, phrasings, noise = tables.seen
    seen, rest = tables.seeds
    num = tables.hits.shape[1]
    parts = [facts, np.maximum(phrasings - noise, 0), np.maximum(seen - rest, 0)]
    squares = [part**2 / (n - 1) for part, n in zip(parts, (FACTS, PHRASINGS, num), strict=True)]
    total = np.maximum(sum(parts), 1 / tables.prompts / tables.spread)
    return t_square((total**2 / np.maximum(sum(squares), 1e-12)).clip(1, 1e6)) * total


def split_alike(tables: Tables) -> tuple[np.ndarray, np.ndarray]:
    """Variances over tests and over seeds where every source has the same prior."""
    facts, phrasings, noise = tables.seen
    expected, (seen, rest) = expect(tables.inner), tables.seeds
    sources = [(facts, noise, FACTS), (phrasings, noise, PHRASINGS)]
    sources.append((seen, rest, tables.hits.shape[1]))
    parts = [
        np.maximum(shrink(level, other, num, expected), level - other)
        for level, other, num in sources
    ]
    chance = np.maximum(noise, 1 / tables.prompts / tables.spread)
    return parts[0] + parts[1] + chance, parts[2]


def bound_unseen(prompts: int) -> float:
    """The upper end of a share that was never hit."""
    ratio = float(t_square(FACTS - 1)) * min(3 / prompts, 1 / FACTS)
    return ratio / (1 + ratio)


def finish(tables: Tables, low: np.ndarray, high: np.ndarray) -> Ends:
    """No end is nearer to 0 or 1 than that of a share that was never or always hit."""
    low, high = (np.where(tables.is_seen, end, tables.mean) for end in (low, high))
    unseen = bound_unseen(tables.prompts)
    return np.minimum(low, 1 - unseen), np.maximum(high, unseen)


def by_wilson(tables: Tables, square: np.ndarray) -> Ends:
    """All p with (p - mean)² at most the squared reach scaled by p (1 - p)."""
    mean, ratio = tables.inner, square * tables.spread
    middle, reach = mean + ratio / 2, np.sqrt(ratio * tables.spread + ratio**2 / 4)
    return finish(tables, (middle - reach) / (1 + ratio), (middle + reach) / (1 + ratio))


def by_logit(tables: Tables, square: np.ndarray, moved: np.ndarray | float = 0.0) -> Ends:
    """Both ends as many logits away, about the mean or what is so far from it."""
    middle, reach = logit(tables.inner) + moved, np.sqrt(square)
    return finish(tables, expit(middle - reach), expit(middle + reach))


def bound_installed(tables: Tables) -> Ends:
    """As the package does."""
    return by_wilson(tables, square_tests(tables) + square_seeds(tables))


def bound_moved(tables: Tables) -> Ends:
    """Ends on the logit, moved away from the near end by a quarter of the variance."""
    square = square_tests(tables) + square_seeds(tables)
    moved = np.minimum(square / NORMAL, 2) * (1 - 2 * tables.inner) / 4
    return by_logit(tables, square, moved)


def bound_alike(tables: Tables) -> Ends:
    """Every source with the same prior, ends on the logit."""
    return by_logit(tables, t_square(FACTS - 1) * sum(split_alike(tables)))


SHARES: Mapping[str, Callable[[Tables], Ends]] = {
    "installed": bound_installed,
    "Student's t by source": lambda tables: by_wilson(tables, square_by_t(tables)),
    "Satterthwaite's t": lambda tables: by_wilson(tables, square_by_satterthwaite(tables)),
    "installed, on the logit": lambda tables: by_logit(
        tables, square_tests(tables) + square_seeds(tables)
    ),
    "on the logit, moved for the skew": bound_moved,
    "on the logit, seeds' variance exact": lambda tables: by_logit(
        tables, square_tests(tables) + square_seeds(tables, expect(tables.inner))
    ),
    "every source with one prior": bound_alike,
}


def put_together(one: Tables, other: Tables, ends: Ends, others: Ends, correlation: np.ndarray):
    """Both ends of a difference from the margins of each (Zou and Donner 2008)."""
    facts = (one.tests - other.tests).sum(2) ** 2
    alike = (facts**2).sum(1)
    count = np.where(alike > 0, facts.sum(1) ** 2 / np.where(alike > 0, alike, 1), 0)
    least = 10.0**-count * bound_unseen(one.prompts)

    def combine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.maximum(np.sqrt(np.maximum(a**2 + b**2 - 2 * correlation * a * b, 0)), least)

    gap = one.mean - other.mean
    low = gap - combine(one.mean - ends[0], others[1] - other.mean)
    high = gap + combine(ends[1] - one.mean, other.mean - others[0])
    return np.maximum(low, -1), np.minimum(high, 1)


def divide(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.where(other > 0, one / np.where(other > 0, other, 1), 0)


def subtract_installed(one: Tables, other: Tables) -> Ends:
    """As the package does."""

    def square(parts: tuple[np.ndarray, ...]) -> np.ndarray:
        facts, phrasings, noise = parts
        left = np.maximum(phrasings - noise, 0)
        return t_square(FACTS - 1) * facts + t_square(PHRASINGS - 1) * left

    ours, theirs, paired = (
        square(split(moved)) for moved in (one.tests, other.tests, one.tests - other.tests)
    )
    by_seed = (np.where(x.is_seen, square_seeds(x) * x.spread**2, 0) for x in (one, other))
    squares = [each + seeds for each, seeds in zip((ours, theirs), by_seed, strict=True)]
    correlation = divide((ours + theirs - paired) / 2, np.sqrt(squares[0] * squares[1]))
    return put_together(one, other, bound_installed(one), bound_installed(other), correlation)


def correlate(one: Tables, other: Tables) -> np.ndarray:
    """How much two means go together where every source has the same prior."""

    def sum_up(parts: tuple[np.ndarray, ...]) -> np.ndarray:
        return parts[0] + np.maximum(parts[1] - parts[2], 0)

    ours, theirs, paired = (
        sum_up(split(moved)) for moved in (one.tests, other.tests, one.tests - other.tests)
    )
    together = divide((ours + theirs - paired) / 2, np.sqrt(ours * theirs)).clip(-1, 1)
    (tests, seeds), (others, theirs) = split_alike(one), split_alike(other)
    return together * np.sqrt(tests * others / ((tests + seeds) * (others + theirs)))


def subtract_alike(one: Tables, other: Tables) -> Ends:
    """Margins of `bound_alike`, put together."""
    return put_together(one, other, bound_alike(one), bound_alike(other), correlate(one, other))


def subtract_quantiles(one: Tables, other: Tables) -> Ends:
    """Both logits jointly normal, and quantiles of the difference over a grid of them."""
    normal = ndtri((np.arange(24) + 0.5) / 24)
    grid = np.meshgrid(normal / normal.std(), normal / normal.std())
    turn = np.arcsin(correlate(one, other).clip(-0.99, 0.99))[:, None] / 2
    shares = []
    for side, (a, b) in ((one, grid), (other, grid[::-1])):
        deviation = np.sqrt(sum(split_alike(side)))[:, None]
        mixed = np.cos(turn) * a.ravel() + np.sin(turn) * b.ravel()
        shares.append(expit(logit(side.inner)[:, None] + deviation * mixed))
    low, high = np.quantile(shares[0] - shares[1], [0.025, 0.975], axis=1)
    apart = put_together(one, other, bound_alike(one), bound_alike(other), np.zeros_like(low))
    is_seen = one.is_seen & other.is_seen
    return np.where(is_seen, low, apart[0]), np.where(is_seen, high, apart[1])


DIFFERENCES: Mapping[str, Callable[[Tables, Tables], Ends]] = {
    "installed": subtract_installed,
    "every source with one prior": subtract_alike,
    "the same, quantiles of normal logits": subtract_quantiles,
}

"""Loss against compute where text is repeated: envelopes, crossings, the worth of an epoch.

Muennighoff et al. 2023 (arXiv 2305.16264): U unique tokens read for e epochs are worth
D' = U + U R* (1 - exp(-(e - 1) / R*)) fresh tokens, and L = E + B / D'^beta at a fixed network.
R* is the number of further epochs after which a repeated token is worth 1/e of a fresh one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from unmask.base.errors import UserError
from unmask.base.seeds import derive_seed
from unmask.evaluation.statistics import ALPHA, Clusters, Interval

WORTHS = np.geomspace(1.0, 10_000.0, 81)
"""Values of R* that are tried. An interval that reaches either end is not identified there."""
_BETAS = np.linspace(0.02, 1.5, 75)


def count_effective(unique: ArrayLike, epochs: ArrayLike, worth: float) -> np.ndarray:
    """How many fresh tokens repeated ones are worth; `worth` is R*. One epoch is all fresh."""
    unique, epochs = np.asarray(unique, float), np.asarray(epochs, float)
    fresh, more = np.minimum(epochs, 1), np.maximum(epochs - 1, 0)
    # -expm1 keeps its digits where the share is small: R* may be far above the epochs.
    return unique * (fresh + worth * -np.expm1(-more / worth))


@dataclass(frozen=True)
class RepetitionFit:
    """The law that fits losses best, with the profile interval of R*."""

    worth: float
    low: float | None
    """None: the interval has no lower end among the values tried."""
    high: float | None
    floor: float
    scale: float
    beta: float
    deviation: float
    """Root mean square of what is left of the log losses."""

    @property
    def is_identified(self) -> bool:
        """Whether the losses say where R* is, to both sides."""
        return self.low is not None and self.high is not None

    def predict(self, unique: ArrayLike, epochs: ArrayLike) -> np.ndarray:
        tokens = count_effective(unique, epochs, self.worth)
        return self.floor + self.scale * tokens**-self.beta


def fit_repetition(unique: ArrayLike, epochs: ArrayLike, losses: ArrayLike) -> RepetitionFit:
    """Least squares on log losses, and the values of R* that fit nearly as well.

    The profile interval holds every R* whose best fit has a sum of squares below that of the best
    one by the F test at the usual level.
    """
    unique, epochs, losses = (np.asarray(each, float) for each in (unique, epochs, losses))
    if len(losses) < 6 or not (losses > 0).all():
        raise UserError(
            f"{len(losses)} losses were given: expected at least 6 above 0, of several epochs."
        )
    # 1. All values; 2. a finer grid over those that fit, and one more to either side.
    _, first, last = _profile(WORTHS, unique, epochs, losses)
    ends = WORTHS[max(first - 1, 0)], WORTHS[min(last + 1, len(WORTHS) - 1)]
    finer = np.geomspace(*ends, len(WORTHS))
    fits, low, high = _profile(finer, unique, epochs, losses)
    best = min(range(len(fits)), key=lambda i: fits[i][0])
    total, floor, scale, beta = fits[best]
    return RepetitionFit(
        float(finer[best]),
        float(finer[low]) if first > 0 else None,
        float(finer[high]) if last < len(WORTHS) - 1 else None,
        floor,
        scale,
        beta,
        (total / len(losses)) ** 0.5,
    )


def _profile(
    worths: np.ndarray, unique: np.ndarray, epochs: np.ndarray, losses: np.ndarray
) -> tuple[list[tuple[float, float, float, float]], int, int]:
    """The best fit at each R*, and the first and the last of those that fit nearly as well."""
    from scipy.special import fdtri

    fits = [_fit_rest(count_effective(unique, epochs, worth), losses) for worth in worths]
    squares, freedom = np.array([each[0] for each in fits]), len(losses) - 4
    # Losses that a law fits exactly leave rounding alone: everything below it counts as equal.
    least = max(float(squares.min()), 1e-18 * len(losses))
    is_inside = squares <= least * (1 + fdtri(1, freedom, 1 - ALPHA) / freedom)
    first, last = np.flatnonzero(is_inside)[[0, -1]]
    return fits, int(first), int(last)


def _fit_rest(
    tokens: Float[np.ndarray, "N"], losses: Float[np.ndarray, "N"]
) -> tuple[float, float, float, float]:
    """The smallest sum of squared log residuals over E >= 0, B >= 0 and beta; and these three."""
    falls = (tokens / tokens.min()) ** -_BETAS[:, None]  # [betas, N]
    floor, scale = _fit_lines(falls, losses, np.ones_like(falls))
    for _ in range(3):  # weights 1 / prediction turn relative residuals into log residuals
        floor, scale = _fit_lines(falls, losses, np.maximum(floor + scale * falls, 1e-12) ** -2)
    rest = np.log(losses) - np.log(np.maximum(floor + scale * falls, 1e-12))
    totals = (rest**2).sum(1)
    best = int(totals.argmin())
    beta = float(_BETAS[best])
    return (
        float(totals[best]),
        float(floor[best, 0]),
        float(scale[best, 0] * tokens.min() ** beta),
        beta,
    )


def _fit_lines(
    x: Float[np.ndarray, "M N"], y: Float[np.ndarray, "N"], weight: Float[np.ndarray, "M N"]
) -> tuple[Float[np.ndarray, "M 1"], Float[np.ndarray, "M 1"]]:
    """The best y = a + b x with a and b at least 0, for each row of x."""

    def mean(values: np.ndarray) -> np.ndarray:
        return (weight * values).sum(1, keepdims=True) / weight.sum(1, keepdims=True)

    mean_x, mean_y = mean(x), mean(np.broadcast_to(y, x.shape))
    slope = mean((x - mean_x) * y) / np.maximum(mean((x - mean_x) ** 2), 1e-30)
    slope = np.maximum(slope, 0.0)
    start = mean_y - slope * mean_x
    # Through 0 where the start would be below it.
    slope = np.where(start < 0, mean(x * y) / mean(x * x), slope)
    return np.maximum(start, 0.0), slope


def find_envelope(losses: Float[np.ndarray, "*S P"]) -> Float[np.ndarray, "*S P"]:
    """The lowest loss up to each point: who may stop earlier never does worse."""
    return np.minimum.accumulate(losses, axis=-1)


def find_crossing(
    compute: Float[np.ndarray, "P"], one: Float[np.ndarray, "P"], other: Float[np.ndarray, "P"]
) -> float | None:
    """The compute from which `one` stays at or below `other`, by lines in log compute.

    None where it is not below at the last point; the first point where it is below at all of them.
    """
    gap, place = np.asarray(one) - np.asarray(other), np.log(compute)
    if not gap[-1] <= 0:  # nor where it is not a number
        return None
    above = np.flatnonzero(gap > 0)
    if not len(above):
        return float(compute[0])
    i = int(above[-1])
    share = gap[i] / (gap[i] - gap[i + 1])
    return float(np.exp(place[i] + share * (place[i + 1] - place[i])))


@dataclass(frozen=True)
class Crossing:
    """Where one curve stays below another, over training seeds."""

    value: Interval | None
    """Where the mean curves cross, with a percentile interval; None where they do not."""
    share: float
    """The share of draws of training seeds in which the curves cross."""


def estimate_crossing(
    compute: Float[np.ndarray, "P"],
    one: Sequence[Clusters],
    other: Sequence[Clusters],
    seed: int = 0,
    draws: int = 2_000,
) -> Crossing:
    """The crossing of the envelopes of mean curves, whose points have costs by seed and document.

    Its bootstrap is over training seeds and over documents, the same ones for both sides where they
    have as many. The interval is of all draws; those that do not cross do so at infinity.
    """
    sides = [_stack(side) for side in (one, other)]
    mean = find_crossing(compute, *(_average(side, slice(None)) for side in sides))
    crossings = (find_crossing(compute, *each) for each in _resample(sides, seed, draws))
    drawn = [np.inf if each is None else each for each in crossings]
    share = float(np.isfinite(drawn).mean())
    if mean is None:
        return Crossing(None, share)
    low, high = _find_quantiles(drawn, (ALPHA / 2, 1 - ALPHA / 2))
    return Crossing(Interval(mean, low, high), share)


def estimate_envelope(
    points: Sequence[Clusters], seed: int = 0, draws: int = 2_000
) -> list[Interval]:
    """The envelope of a mean curve at each point, by the same bootstrap as crossings."""
    side = _stack(points)
    curves = np.stack([curve for (curve,) in _resample([side], seed, draws)])
    ends = np.quantile(curves, (ALPHA / 2, 1 - ALPHA / 2), axis=0)
    values = np.stack([_average(side, slice(None)), *ends], 1)
    return [Interval(*map(float, row)) for row in values]


def _stack(points: Sequence[Clusters]) -> Float[np.ndarray, "P 2 S D"]:
    """Costs and tokens of all points, by seed and document."""
    return np.stack([[point.sums, point.counts] for point in points])


def _resample(
    sides: Sequence[Float[np.ndarray, "P 2 S D"]], seed: int, draws: int
) -> Iterator[list[Float[np.ndarray, "P"]]]:
    """Envelopes of drawn seeds and documents; sides with as many documents share their draw."""
    sizes = [side.shape[2:] for side in sides]  # seeds and documents
    generator = np.random.default_rng(derive_seed(seed, "crossing", *(size[0] for size in sizes)))
    for _ in range(draws):
        weights = {
            number: generator.multinomial(number, np.full(number, 1 / number)).astype(float)
            for number in sorted({size[1] for size in sizes})
        }
        yield [
            _average(side, generator.integers(0, seeds, seeds), weights[documents])
            for side, (seeds, documents) in zip(sides, sizes, strict=True)
        ]


def _average(
    side: Float[np.ndarray, "P 2 S D"], seeds: Any, weights: Float[np.ndarray, "D"] | None = None
) -> Float[np.ndarray, "P"]:
    """The envelope of the mean over some seeds; documents count as often as they were drawn."""
    sums, counts = np.moveaxis(side.sum(-1) if weights is None else side @ weights, 1, 0)
    return find_envelope((sums / counts)[:, seeds].mean(1))


def _find_quantiles(values: Sequence[float], shares: Sequence[float]) -> list[float]:
    """Values of the sorted list, without interpolation: infinity has no neighbours."""
    ordered = sorted(values)
    return [ordered[min(int(share * len(ordered)), len(ordered) - 1)] for share in shares]

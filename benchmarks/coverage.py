"""How often intervals hold the truth, and how wide they are, on data whose truth is known.

    python -m benchmarks.coverage --out docs/results/coverage.md

Facts are asked in ten phrasings by models of several training seeds, all crossed. A prompt hits
with probability sigmoid(a + fact + phrasing + seed), where all three have normal effects; a makes
the rate over all of them what it should be. With several seeds that rate is the truth that
intervals should hold; with one seed it is that seed's rate over all facts and phrasings. The oracle
is an interval that knows how far means scatter: 2 times 1.96 standard deviations.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from unmask.base.seeds import derive_seed
from unmask.evaluation.crossed import Cells
from unmask.evaluation.statistics import (
    Clusters,
    Crossed,
    Interval,
    estimate_difference,
    estimate_mean,
)

FACTS, PHRASINGS = 30, 10
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


@dataclass(frozen=True)
class Cell:
    """A population that data are drawn from; deviations are in logits."""

    seeds: int
    rate: float
    fact_deviation: float
    seed_deviation: float
    phrasing_deviation: float = 1.0


@dataclass(frozen=True)
class Coverage:
    """How intervals did in a cell."""

    share: float
    """Of repetitions whose interval held the truth."""
    above: float
    """Of repetitions whose interval lay above the truth."""
    below: float
    width: float
    oracle: float


CELLS = [Cell(*each) for each in product((3, 8), (0.01, 0.5, 0.97), (1.0,), (0.0, 0.5, 1.0))]
CELLS += [Cell(*each, 2.0) for each in product((3, 8), (0.5,), (0.5,), (0.0, 0.5, 1.0))]
SINGLE = [Cell(1, rate, 1.0, 0.0) for rate in (0.01, 0.5, 0.97)]
"""One training seed: whatever its effect, it is part of what the interval is about."""
PAIRS = [(0.01, 0.01), (0.5, 0.5), (0.5, 0.02), (0.9, 0.5), (0.97, 0.01)]
"""Rates of two models that are compared."""
OWN_DEVIATION = 0.5
"""How far facts, and phrasings, deviate in one of two models alone, beside what they do in both."""
OPENINGS = list(product((2, 3), (0.01, 0.5, 0.97), (0.5, 1.0), (0.5,)))
"""Numbers of openings, rates, and how far openings and the seeds of one opening deviate."""
SEEDS_EACH = 3
"""Training seeds of each opening."""


def solve_intercept(rate: float, deviation: float) -> float:
    """The logit at which sigmoid(logit + effect) is the rate on average over normal effects."""
    return brentq(lambda a: float(WEIGHTS @ expit(a + deviation * NODES)) - rate, -20, 20)


def draw_means(cell: Cell, repetitions: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Hits by repetition, training seed, fact and phrasing [R, S, F, P], and each one's truth."""
    rng = np.random.default_rng(derive_seed(seed, "coverage", cell))
    tests = np.hypot(cell.fact_deviation, cell.phrasing_deviation)
    a = solve_intercept(cell.rate, np.hypot(tests, cell.seed_deviation))
    by_seed = cell.seed_deviation * rng.normal(size=(repetitions, cell.seeds, 1, 1))
    truth = np.full(repetitions, cell.rate)
    if cell.seeds == 1:
        truth = expit(a + by_seed[:, 0, 0] + tests * NODES) @ WEIGHTS
    return _hit(rng, a + by_seed + _draw_tests(rng, repetitions, cell)), truth


def _draw_tests(
    rng: np.random.Generator, repetitions: int, cell: Cell, own: float | None = None
) -> np.ndarray:
    """Effects of facts and phrasings together, of a cell or of so many logits each."""
    facts, phrasings = (cell.fact_deviation, cell.phrasing_deviation) if own is None else (own, own)
    by_fact = facts * rng.normal(size=(repetitions, 1, FACTS, 1))
    return by_fact + phrasings * rng.normal(size=(repetitions, 1, 1, PHRASINGS))


def _hit(rng: np.random.Generator, logits: np.ndarray) -> np.ndarray:
    return rng.random(logits.shape) < expit(logits)


def measure_means(cell: Cell, repetitions: int, seed: int = 0) -> Coverage:
    """How `estimate_mean` does in a cell."""
    hits, truth = draw_means(cell, repetitions, seed)
    return _judge([estimate_mean(count_hits(each), is_share=True) for each in hits], truth)


def measure_differences(
    rates: tuple[float, float], cell: Cell, repetitions: int, seed: int = 0
) -> Coverage:
    """How `estimate_difference` does for two models of given rates on the same prompts.

    `cell` says how many seeds each has, and how far facts, phrasings and seeds deviate.
    """
    rng = np.random.default_rng(derive_seed(seed, "differences", rates, cell))
    together = _draw_tests(rng, repetitions, cell)
    own = [OWN_DEVIATION] * 2
    deviations = [cell.fact_deviation, cell.phrasing_deviation, *own, cell.seed_deviation]
    deviation = float(np.linalg.norm(deviations))
    sides = []
    for rate in rates:
        by_seed = cell.seed_deviation * rng.normal(size=(repetitions, cell.seeds, 1, 1))
        alone = _draw_tests(rng, repetitions, cell, OWN_DEVIATION)
        sides.append(_hit(rng, solve_intercept(rate, deviation) + together + alone + by_seed))
    intervals = [
        estimate_difference(count_hits(one), count_hits(other), is_share=True)
        for one, other in zip(*sides, strict=True)
    ]
    return _judge(intervals, np.full(repetitions, rates[0] - rates[1]))


def measure_openings(
    openings: int, rate: float, by_opening: float, by_seed: float, repetitions: int
) -> tuple[Coverage, Coverage]:
    """How `estimate_mean` does where seeds share openings: by opening, and by seed regardless."""
    rng = np.random.default_rng(derive_seed(0, "openings", openings, rate, by_opening, by_seed))
    cell = Cell(openings * SEEDS_EACH, rate, 1.0, by_seed)
    a = solve_intercept(rate, float(np.linalg.norm([1.0, 1.0, by_opening, by_seed])))
    runs = by_opening * rng.normal(size=(repetitions, openings, 1))
    runs = (runs + by_seed * rng.normal(size=(repetitions, openings, SEEDS_EACH))).reshape(
        repetitions, -1, 1, 1
    )
    hits = _hit(rng, a + runs + _draw_tests(rng, repetitions, cell))
    truth = np.full(repetitions, rate)
    shape = (openings, SEEDS_EACH, FACTS, PHRASINGS)
    counted = (
        [count_hits(each.reshape(shape).sum(1), SEEDS_EACH) for each in hits],
        [count_hits(each) for each in hits],
    )
    by_openings, by_seeds = (
        _judge([estimate_mean(each, is_share=True) for each in way], truth) for way in counted
    )
    return by_openings, by_seeds


def count_hits(hits: np.ndarray, prompts: int = 1) -> Clusters:
    """Hits by training run, fact and phrasing, each of so many prompts."""
    return Crossed.of(Cells(hits.astype(float), np.full(hits.shape, float(prompts))))


def _judge(intervals: Sequence[Interval], truth: np.ndarray) -> Coverage:
    low, high, mean = (
        np.array([getattr(each, name) for each in intervals]) for name in ("low", "high", "mean")
    )
    return Coverage(
        share=float(((low <= truth) & (truth <= high)).mean()),
        above=float((low > truth).mean()),
        below=float((high < truth).mean()),
        width=float((high - low).mean()),
        oracle=float(2 * 1.96 * (mean - truth).std()),
    )


def tabulate_means(repetitions: int) -> Iterator[tuple[Cell, Coverage]]:
    """Every cell with its coverage."""
    for cell in [*CELLS, *SINGLE]:
        yield cell, measure_means(cell, repetitions)


def list_means(measured: Sequence[tuple[Cell, Coverage]]) -> list[list[str]]:
    """The rows of the table of means."""
    return [
        [
            str(cell.seeds),
            f"{100 * cell.rate:g}",
            f"{cell.fact_deviation:g}",
            f"{cell.phrasing_deviation:g}",
            f"{cell.seed_deviation:g}" if cell.seeds > 1 else "–",
            *_format(coverage),
        ]
        for cell, coverage in measured
    ]


DEVIATIONS = ["facts' s.d.", "phrasings' s.d."]
HEADER = ["held, %", "too high, %", "too low, %", "width, %", "oracle's", "ratio"]
MEANS = ["seeds", "rate, %", *DEVIATIONS, "seeds' s.d.", *HEADER]
DIFFERENCES = ["rates, %", "seeds", "seeds' s.d.", *HEADER]


def _format(found: Coverage) -> list[str]:
    shares = [f"{100 * share:.1f}" for share in (found.share, found.above, found.below)]
    widths = [f"{100 * width:.2f}" for width in (found.width, found.oracle)]
    return [*shares, *widths, f"{found.width / found.oracle:.2f}"]


def format_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of numbers."""
    lines = [header, ["---:"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def list_differences(repetitions: int) -> list[list[str]]:
    """The rows of the table of differences."""
    rows = []
    for rates, seeds, deviation in product(PAIRS, (1, 3, 8), (0.0, 0.5, 1.0)):
        if seeds == 1 and deviation > 0:
            continue
        found = measure_differences(rates, Cell(seeds, 0.0, 1.0, deviation), repetitions)
        named = f"{100 * rates[0]:g} − {100 * rates[1]:g}"
        rows.append([named, str(seeds), f"{deviation:g}", *_format(found)])
    return rows


def format_short(tables: Mapping[str, tuple[int, Sequence[Sequence[str]]]]) -> str:
    """From the rows of tables, and where each has its seeds: the range of what was held, of misses
    on one side and of widths beside the oracle's, by the number of seeds."""
    lines = []
    for name, (at, rows) in tables.items():
        for seeds in ("1", "3", "8"):
            own = [[float(each) for each in row[-6:]] for row in rows if row[at] == seeds]
            held, ratio = ([row[i] for row in own] for i in (0, -1))
            cells = [f"{min(held):.1f} to {max(held):.1f}", f"{sum(held) / len(held):.1f}"]
            cells += [str(sum(share >= 93 for share in held)), str(len(own))]
            lines.append([name, seeds, *cells, f"{min(ratio):.2f} to {max(ratio):.2f}"])
    return format_lines(["of", "seeds", "held, %", "mean", "lines ≥ 93 %", "lines", "ratio"], lines)


def format_openings(repetitions: int) -> str:
    """The table of training runs that share openings, in Markdown."""
    rows = []
    for openings, rate, *deviations in OPENINGS:
        found, regardless = measure_openings(openings, rate, *deviations, repetitions)
        named = [str(openings), f"{100 * rate:g}", *(f"{each:g}" for each in deviations)]
        rows.append([*named, *_format(found), f"{100 * regardless.share:.1f}"])
    deviate = ["openings' s.d.", "seeds' s.d."]
    return format_lines(["openings", "rate, %", *deviate, *HEADER, "by seed: held, %"], rows)


def format_few_hits() -> str:
    """Intervals of few hits, each on a fact of its own."""
    rows = []
    for hits in (0, 1, 2, 3, 4, 6, 9, 15):
        cells = []
        for seeds, spread in ((1, 1), (3, 3), (3, 1)):
            counts = np.zeros((seeds, FACTS, PHRASINGS))
            for i in range(hits):
                counts[i % spread, i, i % PHRASINGS] += 1
            found = estimate_mean(count_hits(counts), is_share=True)
            cells.append(f"{100 * found.mean:.2f} [{100 * found.low:.2f}, {100 * found.high:.2f}]")
        rows.append([str(hits), *cells])
    header = ["hits", "300 of one seed", "900, hits spread over 3 seeds", "900, hits of one seed"]
    return format_lines(header, rows)


def format_falls(repetitions: int) -> str:
    """How often a hit more, at a random place, lowers the upper end, and by how much at most."""
    rows = []
    for seeds, rate in product((1, 3, 8), (0.01, 0.1, 0.5, 0.9)):
        falls = np.zeros(repetitions)
        rng = np.random.default_rng(derive_seed(0, "falls", seeds, rate))
        for i, hits in enumerate(draw_means(Cell(seeds, rate, 1.0, 0.5), repetitions)[0]):
            places = np.flatnonzero(~hits)
            before = estimate_mean(count_hits(hits), is_share=True).high
            hits.flat[rng.choice(places)] = True
            falls[i] = before - estimate_mean(count_hits(hits), is_share=True).high
        numbers = [f"{100 * (falls > 1e-12).mean():.1f}", f"{100 * max(falls.max(), 0):.2f}"]
        rows.append([str(seeds), f"{100 * rate:g}", *numbers])
    return format_lines(["seeds", "rate, %", "falls in, %", "by at most, points"], rows)


def main() -> None:
    from benchmarks.coverage_tries import format_tries
    from benchmarks.timing import write_record

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repetitions", type=int, default=2_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    means = list_means(list(tabulate_means(options.repetitions)))
    differences = list_differences(options.repetitions)
    short = format_short({"shares": (0, means), "differences": (1, differences)})
    text = f"""# How often intervals hold the truth

`python -m benchmarks.coverage --repetitions {options.repetitions}`

{FACTS} facts in {PHRASINGS} phrasings, {options.repetitions:,} repetitions a line. A prompt hits
with probability sigmoid(a + fact + phrasing + seed); deviations are in logits. Truth: the rate over
all of these; with one seed, that seed's rate over all facts and phrasings. Intervals say 95 %.
*too high*, *too low*: intervals that miss the truth on that side. *oracle's*: 2 · 1.96 standard
deviations of the mean. Widths are in percentage points, on average.

## In short

{short}

## Shares

{format_lines(MEANS, means)}

## Differences of two models

On the same prompts: effects of facts, and of phrasings, deviate by 1 logit in both models and by
{OWN_DEVIATION:g} in each alone; each model has its own seeds.

{format_lines(DIFFERENCES, differences)}

## Training runs that share openings

{SEEDS_EACH} seeds of each opening; facts and phrasings deviate by 1 logit. Intervals go by opening;
*by seed*: as if all runs were independent.

{format_openings(options.repetitions)}

## Few hits

Each hit is of a fact of its own, and the phrasings take turns; in %. In this order the upper end
never falls when a hit is added, and no upper end at all is below that of no hit.

{format_few_hits()}

A hit at a random place may make facts, phrasings or seeds more alike; then the upper end may fall
(facts and phrasings deviate by 1 logit, seeds by 0.5):

{format_falls(options.repetitions // 10)}

{format_tries(options.repetitions, format_lines)}"""
    write_record(text, options.out)


if __name__ == "__main__":
    main()

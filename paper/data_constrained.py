"""The page on little text, read many times: curves, crossings, the worth of an epoch.

    python paper/data_constrained.py DIR=1000000 DIR=2000000 --page docs/results/data-constrained.md

Each DIR is the folder of a sweep (paper/sweeps/data-constrained.yaml), with its unique tokens.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from data_constrained_scaling import (
    Crossing,
    RepetitionFit,
    estimate_crossing,
    estimate_envelope,
    find_envelope,
    fit_repetition,
)

from unmask.base.errors import UserError
from unmask.blocks import blocks, tidy
from unmask.blocks.blocks import Column, Row, Section, Table, Text
from unmask.evaluation.statistics import Clusters, Interval, estimate_difference, estimate_mean
from unmask.report.document import Document
from unmask.report.page import write_document
from unmask.sweep.compare import describe_sweep
from unmask.sweep.run import SweepOutcome, read_outcome
from unmask.sweep.summary import ComparedRow, compare_sweep

KIND, COST, CHAIN = "kind of training", "cost", "chain"
DIFFUSION, CAUSAL = "diffusion", "causal"
PUBLISHED = (
    ("Muennighoff et al. 2023 (2305.16264)", CAUSAL, "15.4"),
    ("Prabhudesai et al. 2025 (2507.15857), text", CAUSAL, "31.93"),
    ("Prabhudesai et al. 2025, Table 1b", CAUSAL, "31.19"),
    ("Prabhudesai et al. 2025, text", DIFFUSION, "512.85"),
    ("Prabhudesai et al. 2025, Table 1b", DIFFUSION, "493.89"),
)
"""R_D* as published; where a paper disagrees with itself, both."""
STATED = (
    ("Prabhudesai et al. 2025 (2507.15857)", "dropout in attention, 0.25 to 0.75; masked inputs",
     "do not help (140M, 50 epochs)"),
    ("Ni et al. 2025 (2511.03276)", "masked inputs or dropout, 0.1 to 0.9",
     "help, but do not close the gap; masking above 0.3 collapses (1B)"),
    ("Gao et al. 2025 (2510.04071)", "masked inputs; dropout and weight decay",
     "give most of what diffusion gains; dropout and decay about as much"),
    ("Prabhudesai et al. 2025", "training on several fixed orders",
     "the cost falls with their number; 16 come near diffusion (278M, 100 epochs)"),
)  # fmt: skip
"""What others say of causal training that is regularised; they do not agree."""
METHOD = (
    "Envelope: the lowest mean cost up to that compute. Crossing: where diffusion's "
    "envelope stays at or below the other's, by straight lines in log compute; the "
    "interval is a bootstrap over held-out documents and training seeds (of a kind with one "
    "seed, documents alone), its upper end infinite where some draws do not cross. Points are "
    "chosen by the text that they are judged on, for all kinds alike, and lie far apart: causal "
    "training that is stopped between two of them may cost less."
)
WORTH = (
    "R_D*: the number of further epochs after which a repeated token keeps 1/e of its worth "
    "(Muennighoff et al. 2023), by least squares on log costs of all points of both texts, each "
    "kind for itself, with its profile interval at 95 %; … is an end that was not found, and with "
    "one R_D* is not identified. The law has no place for overfitting, so that it is fitted to the "
    "envelopes, in which all points after the lowest are flat; and without those points as well."
)
LEAD = (
    "Diffusion and causal training of one small network on little text, read many times. Facts "
    "planted in it stand there with the description first (d2p) or the name first (p2d), and are "
    "asked for what stands second (same) or first (reverse)."
)


@dataclass(frozen=True)
class Curves:
    """Costs of every kind of training by point, on one text."""

    unique: int
    outcome: SweepOutcome
    rows: Mapping[str, Sequence[ComparedRow]]
    """By kind of training, in the order of steps."""
    chain: Clusters | None = None
    """What diffusion's last points cost from left to right, which is exact."""

    def points(self, kind: str) -> list[Clusters]:
        """Costs by seed and document, of each point."""
        points = [row.clusters for row in self.rows[kind]]
        numbers = [len(point.sums) for point in points]
        if len(set(numbers)) > 1:
            raise UserError(
                f"{self.outcome.folder} has points of {kind!r} with {min(numbers)} and with "
                f"{max(numbers)} seeds: a cell has not come to its end; the command of the sweep "
                "goes on with it."
            )
        return points

    def costs(self, kind: str) -> np.ndarray:
        """[seeds, points]"""
        points = self.points(kind)
        return np.stack([point.sums.sum(1) / point.counts.sum(1) for point in points], 1)

    def epochs(self, kind: str) -> np.ndarray:
        return np.array([row.columns["tokens"] / self.unique for row in self.rows[kind]])

    def compute(self, kind: str) -> np.ndarray:
        return np.array([row.columns["flops"] for row in self.rows[kind]])


def read_curves(folder: Path, unique: int) -> Curves:
    """A finished sweep, read from its folder."""
    outcome = read_outcome(folder)
    compared = compare_sweep(outcome.sweep, folder)
    if not compared[COST]:
        raise UserError(f"{folder} has no finished cell of {COST!r}: run the sweep first.")
    groups = tidy.group_by([{"row": row, **row.columns} for row in compared[COST]], KIND)
    chains = [row.clusters for row in compared[CHAIN] if row.columns[KIND] == DIFFUSION]
    rows = {
        kind: [each["row"] for each in sorted(own, key=lambda each: each["step"])]
        for kind, own in groups.items()
    }
    return Curves(unique, outcome, rows, chains[-1] if chains else None)


def cross(curves: Curves) -> Iterator[tuple[str, Crossing]]:
    """Where diffusion stays below each other kind, by compute of the points that both have."""
    for kind in curves.rows:
        if kind != DIFFUSION:
            number = min(len(curves.rows[kind]), len(curves.rows[DIFFUSION]))
            compute = curves.compute(kind)[:number]
            pair = (curves.points(each)[:number] for each in (DIFFUSION, kind))
            yield kind, estimate_crossing(compute, *pair)


def fit(curves: Sequence[Curves], kind: str, is_flat_kept: bool = True) -> RepetitionFit | None:
    """R_D* of a kind from the envelopes on all texts; None where there are too few points.

    Points after an envelope's lowest are flat, and may be left out.
    """
    unique, epochs, costs = [], [], []
    for each in curves:
        if kind in each.rows:
            envelope = find_envelope(each.costs(kind).mean(0))
            number = len(envelope) if is_flat_kept else int(envelope.argmin()) + 1
            unique += [each.unique] * number
            epochs += list(each.epochs(kind)[:number])
            costs += list(envelope[:number])
    return fit_repetition(unique, epochs, costs) if len(costs) >= 6 else None


def describe_crossings(curves: Sequence[Curves]) -> Section:
    """Crossings in epochs and compute, with the literature's extrapolation beside them."""
    rows = []
    for each in curves:
        for kind, crossing in cross(each):
            epochs = _scale(crossing.value, each.epochs(kind)[-1] / each.compute(kind)[-1])
            rows.append(Row([f"{each.unique:,}", kind, epochs, _scale(crossing.value, 1e-15),
                             crossing.share]))  # fmt: skip
    columns = [Column("unique tokens"), Column("diffusion stays below"), Column("from epoch", 1)]
    columns += [Column("PFLOP", is_short=True), Column("share of draws that cross", 0, True)]
    caption = "Where diffusion's envelope crosses; no number: not within these epochs"
    literature = (
        "Extrapolated from the published law C_crit ∝ U^2.174 (fitted to 25M to 100M "
        "tokens, its constant not confirmed): about 44 epochs for one million tokens and "
        "100 for two."
    )
    parts = [Text(METHOD), Table("crossings", caption, columns, rows, most=20)]
    if any(each.unique == 1_000_000 for each in curves):
        parts.append(Text(literature))
    return Section("crossings", "Crossings", parts)


def describe_worth(curves: Sequence[Curves]) -> Section:
    """R_D* of every kind with its interval, and the published values."""
    rows = []
    for kind in dict.fromkeys(kind for each in curves for kind in each.rows):
        without = _say_worth(fit(curves, kind, is_flat_kept=False))
        rows.append(Row([kind, *_say_worth(fit(curves, kind)), *without[:2]]))
    rows += [Row([f"published: {source}, {kind}", value, "", None, "", ""], "published")
             for source, kind, value in PUBLISHED]  # fmt: skip
    columns = [Column("kind of training"), Column("R_D*"), Column("95 % profile interval"),
               Column("deviation of log cost", 4), Column("without flat points"),
               Column("interval")]  # fmt: skip
    table = Table("worth", "R_D*, epochs", columns, rows, most=20)
    return Section("worth", "What an epoch is worth", [Text(WORTH), table])


def describe_regularised(curves: Sequence[Curves]) -> Section:
    """The best point of each causal kind against plain causal training, and what others say."""
    rows = []
    for each in curves:
        for kind in each.rows:
            if kind in (DIFFUSION, CAUSAL):
                continue
            gain = compare_best(each, kind, CAUSAL)
            rows.append(Row([f"{each.unique:,}", kind, gain, compare_best(each, kind, DIFFUSION)]))
    columns = [Column("unique tokens"), Column("kind of training"),
               Column("minus plain causal", 3), Column("minus diffusion's bound", 3)]  # fmt: skip
    caption = "Lowest point of each curve against another's, nats per token; below 0 is better"
    stated = [Row(list(each), "published") for each in STATED]
    return Section("regularised", "Causal training, regularised", [
        Text("Intervals are paired by document; of kinds with one seed they hold for that "
             "training alone."),
        Table("regularised", caption, columns, rows, most=20),
        Table("stated", "What others report",
              [Column("source"), Column("training"), Column("finding")], stated),
    ])  # fmt: skip


def describe_gap(curves: Sequence[Curves]) -> Section:
    """Diffusion's bound against its exact cost of one order, at the last point, and causal's."""
    rows = []
    for each in curves:
        if each.chain is not None:
            bound, chain = each.points(DIFFUSION)[-1], each.chain
            gap = estimate_mean(subtract(bound, chain))
            ahead = estimate_difference(chain, find_lowest(each, CAUSAL))
            values = [estimate_mean(bound), estimate_mean(chain), gap, ahead]
            rows.append(Row([f"{each.unique:,}", *values]))
    columns = [Column("unique tokens"), Column("bound, mean over orders", 3),
               Column("exact, left to right", 3), Column("bound minus exact", 3),
               Column("exact minus plain causal's lowest", 3)]  # fmt: skip
    caption = "Diffusion after its last epoch, nats per token of the same documents"
    about = ("The bound is the mean cost over all orders in which a text can be written; causal "
             "models are held against it on this page. From left to right, one order, the cost "
             "is exact, and may be above or below. Bound and exact cost are of the same networks "
             "and documents, and paired by both; causal networks by document.")  # fmt: skip
    return Section("gap", "The bound, and one order",
                   [Text(about), Table("gap", caption, columns, rows)])  # fmt: skip


def compare_best(curves: Curves, kind: str, other: str) -> Interval:
    """The cost of the lowest point minus that of another kind's, paired by document."""
    return estimate_difference(*(find_lowest(curves, each) for each in (kind, other)))


def find_lowest(curves: Curves, kind: str) -> Clusters:
    """The point of a kind with the lowest mean cost."""
    return curves.points(kind)[int(curves.costs(kind).mean(0).argmin())]


def subtract(one: Clusters, other: Clusters) -> Clusters:
    """Two costs of the same networks and tokens, as one."""
    assert (one.counts == other.counts).all(), "both measures read the same tokens"
    return Clusters(one.sums - other.sums, one.counts)


def _say_worth(law: RepetitionFit | None) -> tuple[str, str, float | None]:
    if law is None:
        return "too few points", "", None
    low = "…" if law.low is None else f"{law.low:.3g}"
    high = "…" if law.high is None else f"{law.high:.3g}"
    value = f"{law.worth:.3g}" if law.is_identified else "not identified"
    return value, f"[{low}, {high}]", law.deviation


def _scale(value: Interval | None, factor: float) -> Interval | None:
    if value is None:
        return None
    return Interval(value.mean * factor, value.low * factor, value.high * factor)


def draw_envelopes(curves: Curves) -> blocks.Figure:
    """Lowest cost up to each point of every kind, by compute."""
    records: list[dict[str, Any]] = []
    for kind, own in curves.rows.items():
        for row, cost in zip(own, estimate_envelope(curves.points(kind)), strict=True):
            records.append({"kind": kind, "flops": row.columns["flops"], "all": ""} | vars(cost))
    names = tidy.distinct(records, "kind")
    return tidy.draw_lines(
        records,
        f"envelopes-{curves.unique}",
        f"Envelopes, {curves.unique:,} unique tokens",
        "The lowest mean cost up to that compute. Bands are 95 % intervals by document and seed.",
        x="flops",
        line="kind",
        colour=lambda row: f"p{names.index(row['kind'])}",
        panel="all",
        xlabel="training compute (floating-point operations)",
        ylabel="nats per token (an upper bound for diffusion)",
        is_log2=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("sweeps", nargs="+", metavar="DIR=TOKENS", help="sweeps and unique tokens")
    parser.add_argument("--page", type=Path, required=True, help="the Markdown page to write")
    options = parser.parse_args()
    pairs = [each.rpartition("=") for each in options.sweeps]
    curves = [read_curves(Path(folder), int(tokens)) for folder, _, tokens in pairs]
    tables = (describe_crossings, describe_regularised, describe_gap, describe_worth)
    sections = [describe(curves) for describe in tables]
    for each in curves:
        compared = compare_sweep(each.outcome.sweep, each.outcome.folder)
        section = describe_sweep(each.outcome, compared)
        parts = [draw_envelopes(each), *section.blocks]
        title = f"{each.unique:,} unique tokens"
        sections.append(Section(f"tokens-{each.unique}", title, parts))
    title = curves[0].outcome.sweep.file.title
    write_document(Document(title, LEAD, [], sections), options.page)


if __name__ == "__main__":
    main()

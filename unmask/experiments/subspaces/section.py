"""What searches found: how often the exchanged subspace brings what it should, beside controls."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from unmask.base.errors import NotMeasuredError
from unmask.blocks import tidy
from unmask.blocks.blocks import Finding, ReportBlock
from unmask.blocks.labels import count
from unmask.experiments.subspaces.exchanges import HELD_OUT, ROLES, TRAINED, VARIABLES, WAYS
from unmask.measures.measure import Rows, Summary, Tables
from unmask.measures.result import Result
from unmask.results.comparison import ASKED, KIND, MODEL, Comparison, Factor, Quantity

SUBSPACES = {
    "aligned": "aligned subspace",
    "permuted": "permuted labels",
    "untrained": "untrained network",
    "random": "random subspace",
    "noise": "noise of its length",
    "whole": "whole state (ceiling)",
}
CONTROLS = ("permuted", "untrained", "random", "noise")
PEOPLE = Factor("people", "of facts", {HELD_OUT: "held out", TRAINED: "searched on"})
WHAT = (
    Factor("variable", "carried", VARIABLES),
    Factor("way", "source in", WAYS),
    Factor("role", "states of", ROLES),
)
LEAST = 0.30
"""A difference that would be called large; an interval below it rules such a one out."""
METRICS = {
    "brings": Quantity("brings what follows", "%"),
    "keeps": Quantity("keeps its own answer", "%"),
}
COMPARISON = Comparison(
    metrics=METRICS,
    groups=(MODEL, KIND, ASKED, *WHAT, PEOPLE),
    variant=Factor("subspace", "exchanged", SUBSPACES),
    against=[("aligned", control) for control in CONTROLS],
    compared=("brings",),
    title="How often the exchanged subspace brings what follows from the source",
    caption="Share of bases' exchanges, by the rank of the subspace, at the layer chosen on the "
    "facts searched on; the whole state has no rank. Bands are 95 % intervals by fact.",
    means="What exchanges bring, at the layer and rank chosen on the facts searched on",
    differences="The aligned subspace minus each control",
    controls=CONTROLS,
    most=60,
)
KNOWN = replace(
    COMPARISON,
    groups=(Factor("mechanism", "network"), *WHAT),
    title="Searches in networks of known mechanism",
    means="Searches across directions in hand-written networks, other phrasings of the facts "
    "searched on",
    differences="The aligned subspace minus each control, in hand-written networks",
    names=("known", "known_differences"),
)
GROUP = [factor.column for factor in COMPARISON.groups if factor is not PEOPLE]
KNOWN_GROUP = [factor.column for factor in KNOWN.groups]


def summarise(tables: Tables, settings: Any) -> Summary:
    """Means and differences at the chosen layer and rank, and curves over ranks at that layer."""
    rows, known = (tables[name].to_pylist() for name in ("subspaces", "known"))
    if not rows:
        raise NotMeasuredError("no exchanges")
    chosen, curves = list[dict[str, Any]](), list[dict[str, Any]]()
    for own in tidy.group_by(rows, *GROUP).values():
        layer, rank = choose_cell(own)
        at = [row for row in own if row["layer"] == layer]
        curves += _stretch(at)
        chosen += [row for row in _stretch(at) if row["rank"] == rank]
    summary: dict[str, Rows] = {
        "means": COMPARISON.average(chosen, "layer", "rank"),
        "differences": COMPARISON.subtract(chosen, "layer", "rank"),
        "curves": COMPARISON.average(curves, "layer", "rank"),
    }
    if known:
        best = []
        for own in tidy.group_by(known, *KNOWN_GROUP).values():
            rank = choose_cell(own)[1]
            best += [row for row in _stretch(own) if row["rank"] == rank]
        summary["known"] = KNOWN.average(best, "rank")
        summary["known_differences"] = KNOWN.subtract(best, "rank")
    return summary


def choose_cell(rows: Rows) -> tuple[int, int]:
    """The layer and rank at which the aligned subspace exceeds its best control furthest, on the
    facts searched on; of equals the lowest."""
    known = [row for row in rows if row["people"] == TRAINED and row["subspace"] != "whole"]
    gaps = {}
    for cell, own in tidy.group_by(known, "layer", "rank").items():
        means = {
            name: sum(row["brings"] for row in same) / len(same)
            for name, same in tidy.group_by(own, "subspace").items()
        }
        gaps[cell] = means.pop("aligned") - max(means.values())
    return max(gaps, key=lambda cell: (gaps[cell], -cell[1], -cell[0]))


def _stretch(rows: Rows) -> Iterator[dict[str, Any]]:
    """The rows, those of the whole state at every rank."""
    ranks = sorted({row["rank"] for row in rows if row["subspace"] != "whole"})
    for row in rows:
        for rank in ranks if row["subspace"] == "whole" else (row["rank"],):
            yield {**row, "rank": rank}


def describe(result: Result) -> Sequence[ReportBlock]:
    """What crosses, what does not, the rank curves, and the tables."""
    summary = result.summary
    at = {"layer": "layer", "rank": "rank"}
    known = []
    if "known" in summary:
        known = [
            *(_compare(KNOWN, KNOWN_GROUP, own, summary["known"]) for own in _split(
                summary["known_differences"], KNOWN_GROUP)),
            KNOWN.tabulate(summary["known"], rank="rank"),
        ]  # fmt: skip
    held_out = tidy.select(summary["differences"], people=HELD_OUT)
    return [
        *_conclude(held_out),
        *(_compare(COMPARISON, GROUP, own, tidy.select(summary["means"], people=HELD_OUT))
          for own in _split(held_out, GROUP)),
        COMPARISON.draw(summary["curves"], Factor("rank", "rank of the subspace")),
        COMPARISON.tabulate(summary["means"], **at),
        COMPARISON.tabulate_differences(summary["differences"], **at),
        *known,
    ]  # fmt: skip


def _split(differences: Rows, group: Sequence[str]) -> list[Rows]:
    return list(tidy.group_by(differences, *group).values())


def find_worst(differences: Rows) -> dict[str, Any]:
    """The difference from the control that comes nearest."""
    return dict(min(differences, key=lambda row: row["mean"]))


def _conclude(differences: Rows) -> Iterator[Finding]:
    """For each model whether a fact crosses directions, in one sentence."""
    across = tidy.select(differences, variable="fact", way="across")
    for name, own in tidy.group_by(across, "model").items():
        worst = [find_worst(each) for each in _split(own, GROUP)]
        large = [row for row in worst if row["mean"] >= LEAST and row["low"] > 0]
        most = max(row["high"] for row in worst)
        if large:
            where = "; ".join(f"{ASKED.say(row['split'])}, {ROLES[row['role']]}" for row in large)
            text = "by at least 30 points more than its worst control, a subspace carries the fact"
            yield Finding(f"In {name}, {text} across directions: {where}.", "above")
        elif most < LEAST:
            yield Finding(
                f"In {name}, no subspace was found that carries a held-out fact across directions: "
                f"in {count(len(worst), 'search')} none exceeds its worst control by 30 points; "
                f"the highest upper end of an interval is {100 * most:.0f}.",
                "below",
            )
        else:
            text = "whether a subspace carries the fact across directions by 30 points or more"
            yield Finding(f"In {name}, it is not settled {text}.", "unsettled")


def _compare(
    comparison: Comparison, group: Sequence[str], differences: Rows, means: Rows
) -> Finding:
    """The aligned subspace beside its worst control and the ceiling."""
    row = find_worst(differences)
    where = {name: row[name] for name in group}
    shares = {each["subspace"]: each for each in tidy.select(means, **where, metric="brings")}
    aligned, control, whole = (
        METRICS["brings"].say(shares[name]) for name in ("aligned", row["minus"], "whole")
    )
    lead = ", ".join(factor.say(row[factor.column]) for factor in comparison.groups
                     if factor.heading and factor is not PEOPLE)  # fmt: skip
    gap = METRICS["brings"].say(row, is_difference=True)
    text = (
        f"{lead}: the aligned subspace (rank {row['rank']}) brings {aligned}, its worst control "
        f"({SUBSPACES[row['minus']]}) {control}, the whole state {whole}. The difference is {gap}"
        f" ({row['facts']} facts)."
    )
    return Finding(text, row["outcome"])

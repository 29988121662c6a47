"""What searches found: how often the exchanged subspace brings what it should, beside controls."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from unmask.base.errors import NotMeasuredError
from unmask.blocks import tidy
from unmask.blocks.blocks import Finding, ReportBlock
from unmask.blocks.labels import count
from unmask.evaluation.equivalence import divide
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
LAYER = Factor("layer", "after layer")
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
    groups=(MODEL, KIND, ASKED, *WHAT),
    variant=Factor("subspace", "exchanged", SUBSPACES),
    against=[("aligned", control) for control in CONTROLS],
    compared=("brings",),
    title="How often the exchanged subspace brings what follows from the source",
    means="What exchanges bring of held-out facts, each half of them at the layer and rank chosen "
    "on the other half",
    differences="The aligned subspace minus each control, of held-out facts",
    controls=CONTROLS,
    most=60,
)
CURVES = replace(
    COMPARISON,
    groups=(*COMPARISON.groups, LAYER, PEOPLE),
    caption="Share of a base's exchanges after which what follows from the source is likeliest, by "
    "the rank of the subspace; the whole state has no rank. Bands are 95 % intervals by fact.",
)
KNOWN = replace(
    COMPARISON,
    groups=(Factor("mechanism", "network"), *WHAT),
    means="Searches across directions in hand-written networks, other phrasings of the facts "
    "searched on",
    differences="The aligned subspace minus each control, in hand-written networks",
    names=("known", "known_differences"),
)
GROUP, KNOWN_GROUP = (
    [factor.column for factor in comparison.groups] for comparison in (COMPARISON, KNOWN)
)


def summarise(tables: Tables, settings: Any) -> Summary:
    """Means and differences of held-out facts, curves over ranks, and known networks."""
    rows, known = (tables[name].to_pylist() for name in ("subspaces", "known"))
    if not rows:
        raise NotMeasuredError("no exchanges")
    chosen = [row for own in tidy.group_by(rows, *GROUP).values() for row in choose_rows(own)]
    summary: dict[str, Rows] = {
        "means": COMPARISON.average(chosen, "chosen"),
        "differences": COMPARISON.subtract(chosen, "chosen"),
        "curves": CURVES.average(list(_stretch(rows)), "rank"),
    }
    if known:
        ranks = [{**row, "chosen": f"rank {row['rank']}"} for row in _stretch(known)]
        summary["known"] = KNOWN.average(ranks, "chosen")
        summary["known_differences"] = KNOWN.subtract(ranks, "chosen")
    return summary


def choose_rows(rows: Rows) -> Iterator[dict[str, Any]]:
    """A group's rows of held-out facts, each half of the facts at the layer and rank that are best
    for the other half."""
    rows = list(_stretch(rows))
    halves = divide({row["fact"] for row in tidy.select(rows, people=HELD_OUT, subspace="aligned")})
    held_out = [row for row in tidy.select(rows, people=HELD_OUT) if row["fact"] in halves]
    cells = [
        choose_cell([row for row in held_out if halves[row["fact"]] != half] or rows)
        for half in (0, 1)
    ]
    chosen = " / ".join(dict.fromkeys(f"layer {layer}, rank {rank}" for layer, rank in cells))
    for row in held_out:
        if (row["layer"], row["rank"]) == cells[halves[row["fact"]]]:
            yield {**row, "chosen": chosen}


def choose_cell(rows: Rows) -> tuple[int, int]:
    """The layer and rank at which the aligned subspace exceeds its best control furthest; of equals
    the lowest."""
    gaps = {}
    for cell, own in tidy.group_by(rows, "layer", "rank").items():
        means = {
            name: sum(row["brings"] for row in same) / len(same)
            for name, same in tidy.group_by(own, "subspace").items()
        }
        gaps[cell] = means["aligned"] - max(means.get(name, 0.0) for name in CONTROLS)
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
    known = []
    if "known" in summary:
        known = [
            *_compare(KNOWN, summary["known"], summary["known_differences"]),
            KNOWN.tabulate(summary["known"], chosen="chosen"),
        ]
    return [
        *_conclude(summary["differences"]),
        *_compare(COMPARISON, summary["means"], summary["differences"]),
        CURVES.draw(summary["curves"], Factor("rank", "rank of the subspace")),
        COMPARISON.tabulate(summary["means"], chosen="chosen"),
        COMPARISON.tabulate_differences(summary["differences"], chosen="chosen"),
        *known,
    ]


def find_worst(differences: Rows) -> dict[str, Any]:
    """The difference from the control that comes nearest."""
    return dict(min(differences, key=lambda row: row["mean"]))


def _conclude(differences: Rows) -> Iterator[Finding]:
    """For each model whether a fact crosses directions, in one sentence."""
    across = tidy.select(differences, variable="fact", way="across")
    for name, own in tidy.group_by(across, "model").items():
        worst = [find_worst(each) for each in tidy.group_by(own, *GROUP).values()]
        large = [row for row in worst if row["mean"] >= LEAST and row["outcome"] == "above"]
        most = max(row["high"] for row in worst)
        if large:
            where = "; ".join(f"{ASKED.say(row['split'])}, {ROLES[row['role']]}" for row in large)
            text = "by at least 30 points more than its worst control, a subspace carries the fact"
            yield Finding(f"In {name}, {text} across directions: {where}.", "above")
        elif most < LEAST:
            yield Finding(
                f"In {name}, no subspace was found that carries a held-out fact across directions: "
                f"none brings 30 points more than its worst control (looked for in "
                f"{count(len(worst), 'place')}; the highest upper end of an interval is "
                f"{100 * most:.0f} points).",
                "below",
            )
        else:
            text = "whether a subspace carries the fact across directions by 30 points or more"
            yield Finding(f"In {name}, it is not settled {text}.", "unsettled")


def _compare(comparison: Comparison, means: Rows, differences: Rows) -> Iterator[Finding]:
    """The aligned subspace of each group beside its worst control and the ceiling."""
    names, brings = [factor.column for factor in comparison.groups], METRICS["brings"]
    for own in tidy.group_by(differences, *names).values():
        row = find_worst(own)
        same = tidy.select(means, **{name: row[name] for name in names}, metric="brings")
        shares = {each["subspace"]: brings.say(each) for each in same}
        first = comparison.groups[0]
        way = f", asked {ASKED.say(row['split'])}" if "split" in row else ""
        what, source, at = (factor.say(row[factor.column]) for factor in WHAT)
        yield Finding(
            f"In {first.say(row[first.column])}{way}, the {what} of a source in {source}, at the "
            f"{at}: the aligned subspace ({row['chosen']}) brings {shares['aligned']}, its worst "
            f"control ({SUBSPACES[row['minus']]}) {shares[row['minus']]}, the whole state "
            f"{shares['whole']}. The difference is {brings.say(row, is_difference=True)} "
            f"({row['facts']} facts).",
            row["outcome"],
        )

"""Tables of a trace's shares: roles at layers chosen on other facts, and which groups are alike."""

from collections.abc import Iterator
from typing import Any

from unmask.blocks import labels, tidy
from unmask.blocks.blocks import Column, Fold, ReportBlock, Table, Text
from unmask.evaluation.statistics import ALPHA, ENOUGH
from unmask.measures.measure import Rows, Summary
from unmask.measures.trace_effects import count_outcomes, name_likeness_outcome
from unmask.measures.trace_summary import list_pairs
from unmask.measures.trace_words import Words
from unmask.tracing.table import ONE_TOKEN, RESULT

SHARE = ("share", "share_low", "share_high")
BEYOND = ("beyond_share", "beyond_share_low", "beyond_share_high")
_CELL = ("model", "split", "corruption", "stage", "part", "role")
_MOST_ROLES = 24


def tabulate_shares(shares: Rows, metric: str, words: Words) -> Iterator[Table]:
    """Each role at the layers that other facts chose, the largest shares of a group first."""
    results = [row for row in shares if row["control"] in (RESULT, ONE_TOKEN)]
    if not results:
        return
    placebos = tidy.group_by(
        [row for row in shares if row["control"] not in (RESULT, ONE_TOKEN)], *_CELL
    )
    several = {name: len(tidy.distinct(results, name)) > 1 for name in ("corruption", "stage")}

    def find_placebo(row: tidy.Record) -> Any:
        """The highest placebo of the same cells."""
        own = placebos.get(tuple(row[name] for name in _CELL), []) if _is_whole(row) else []
        return max((tidy.to_interval(each, SHARE) for each in own), key=_read_mean, default=None)

    columns: dict[str | Column, tidy.Get] = {"model": "model", "asked": tidy.name_asked}
    if several["corruption"]:
        columns["hidden by"] = labels.name_corruption
    if several["stage"]:
        columns["step"] = lambda row: labels.name_stage(row["stage"])
    columns |= {
        "scored": lambda row: "whole answer" if _is_whole(row) else "single tokens",
        words.done: lambda row: f"{labels.name_part(row['part'])}, {labels.ROLES[row['role']]}",
        "layers": name_layers,
        Column(f"{words.effect}, {labels.name_metric(metric)}", is_short=True): tidy.to_interval,
        Column("of lost, %", digits=0, is_percent=True): lambda row: tidy.to_interval(row, SHARE),
        Column("highest placebo, %", digits=0, is_percent=True): find_placebo,
    }
    if any(row["beyond_share"] is not None for row in results):
        columns[Column("beyond its embedding, %", digits=0, is_percent=True)] = lambda row: (
            None if row["beyond_share"] is None else tidy.to_interval(row, BEYOND)
        )
    groups = tidy.group_by(results, "model", "split", "corruption", "stage").values()
    yield tidy.tabulate(
        "shares",
        "Each role, at the layers that are best for other facts: the first is read on one half of "
        "the facts and was chosen on the other half, the second the other way round",
        [row for rows in groups for row in sorted(rows, key=lambda row: -row["share"])],
        columns | {"facts": "facts"},
        most=_MOST_ROLES,
    )


def say_chosen_share(shares: Rows, cell: tidy.Record) -> str:
    """A cell's role at the layers that other facts chose, where there are facts enough."""
    own = tidy.select(shares, control=RESULT, **{name: cell[name] for name in _CELL})
    if not own or own[0]["facts"] < ENOUGH:
        return ""
    share = tidy.say(tidy.to_interval(own[0], SHARE), "%")
    return f" At layers that other facts chose ({name_layers(own[0])}) it is {share}."


def _is_whole(row: tidy.Record) -> bool:
    return row["control"] == RESULT


def _read_mean(value: Any) -> float:
    return value.mean


def name_layers(row: tidy.Record) -> str:
    """The layers that the two halves of the facts chose."""
    sides = (("layer", "head"), ("other_layer", "other_head"))
    names = [
        f"{row[layer]}" + (f", head {row[head]}" if row[head] >= 0 else "") for layer, head in sides
    ]
    return " / ".join(names)


_PAIR: dict[str | Column, tidy.Get] = {
    "one": lambda row: f"{row['model']}, {tidy.name_asked(row)}",
    "other": lambda row: f"{row['other_model']}, {labels.name_split(row['other_split'])}",
    "at": lambda row: f"{labels.name_stage(row['stage'])}, {labels.name_corruption(row)}",
}
_FACTS: dict[str | Column, tidy.Get] = {
    "facts": lambda row: f"{row['facts']} {'' if row['paired'] else 'un'}paired"
}


def tabulate_alike(bands: Rows) -> list[ReportBlock]:
    """Pairs of groups: how many bands of layers differ and are alike, and what that is."""
    margin = bands[0]["margin"]
    pairs = []
    for rows in list_pairs(bands).values():
        differ, alike, neither = count_outcomes(rows)
        row = dict(rows[0]) | {"bands": len(rows), "differ": differ, "alike": alike}
        row |= {"neither": neither, "widest": max(each["smallest_margin"] for each in rows)}
        row |= {"weakest": min(each["power"] for each in rows)}
        row["verdict"] = _judge(rows)
        pairs.append(row)
    sentence = Text(
        "Two models asked alike, and one model asked the same of facts that training showed this "
        "way or the other way. Shares of the total effect, by part, role and third of the layers; "
        "the unit is a fact. Two groups are alike where two one-sided tests at "
        f"{ALPHA} put every difference within ±{margin:g} of the total effect; where neither that "
        "nor a difference (permutation test, Holm over a pair) is shown, no difference was "
        "detected, which is not the same. Power: how often such a test would pass without any "
        "difference."
    )
    whole = tidy.tabulate(
        "alike",
        f"Which groups are alike, margin ±{margin:g} of the total effect",
        pairs,
        _PAIR
        | {"compared": "bands", "differ": "differ", "alike": "alike", "neither": "neither"}
        | {Column("smallest margin for all"): "widest", Column("least power"): "weakest"}
        | {"": "verdict"}
        | _FACTS,
        most=_MOST_ROLES,
    )
    return [sentence, whole]


def fold_bands(summary: Summary) -> Iterator[ReportBlock]:
    """What pairs of groups show, and the rows behind that."""
    bands = summary.get("bands", ())
    if not bands:
        return
    single = tidy.tabulate(
        "bands",
        "Every comparison",
        sorted(bands, key=lambda row: (row["p_holm"], -row["smallest_margin"])),
        _PAIR
        | {
            "restored": lambda row: f"{labels.name_part(row['part'])}, {labels.ROLES[row['role']]}",
            "layers": lambda row: f"{row['first']} to {row['last']}",
            Column("difference of shares", has_sign=True): tidy.to_interval,
            Column("p (Holm)", 3): "p_holm",
            Column("p of a difference beyond the margin", 3): "p_equivalent",
            Column("smallest margin"): "smallest_margin",
            Column("power"): "power",
            "": name_likeness_outcome,
        }
        | _FACTS,
        most=40,
    )
    yield Fold("Are they alike?", [*tabulate_alike(bands), single])


def _judge(rows: Rows) -> str:
    """What all bands of a pair show together."""
    if rows[0]["facts"] < ENOUGH:
        return "too few facts"
    outcomes = {name_likeness_outcome(row) for row in rows}
    if len(outcomes) == 1:
        return outcomes.pop()
    if outcomes == {"alike", "no difference detected"}:
        return "no difference detected"
    within = "differ, within the margin"
    return within if outcomes == {"alike", within} else "differ"

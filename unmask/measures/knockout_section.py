"""The section of attention knock-out: sentences, curves over layers, and tables."""

from collections.abc import Iterator, Sequence
from typing import Any

from unmask.blocks import blocks, labels, tidy
from unmask.evaluation.statistics import ALPHA
from unmask.measures.knockout_summary import (
    BY_ANSWER,
    BY_OTHERS,
    COMPARED,
    GROUP,
    HIDDEN,
    METRICS,
    WHOLE,
    name_edge_claim,
)
from unmask.measures.measure import Rows
from unmask.measures.result import Result

ROLES = {
    "subject": "subject",
    "prompt": "rest of prompt",
    "last": "last prompt token",
    "answer": "answer",
    "written": "written tokens",
    "masks": "other masks",
    "others": "all others",
}
"""Roles of positions, in the figure's words."""
COLOURS = {
    "subject": "p0",
    "masks": "p1",
    "prompt": "p2",
    "last": "p3",
    "written": "p4",
    "answer": "p6",
    "others": "p7",
}
"""Colours of roles; p5 is left out, which is hard to tell from p0."""
COUNTS: dict[str | blocks.Column, tidy.Get] = {
    "model": "model",
    "asked": tidy.name_asked,
    "answers scored by": lambda row: row["joint"].replace("_", " "),
    "prompts": "prompts",
    "kept": "kept",
}
"""Columns of the counts of prompts."""


def name_edge(row: tidy.Record) -> str:
    """An edge in words."""
    reads, colon, is_read = row["edge"].partition(":")
    return f"{ROLES[is_read]} read by {ROLES[reads]}" if colon else row["edge"]


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """What is needed: sentences, curves over layers, all layers at once, tests, counts."""
    effects = [
        {**row, "label": name_edge(row), "at": labels.name_stage(row["stage"])}
        for row in result.summary["effects"]
    ]
    whole = [row for row in effects if row["window"] == WHOLE]
    table = tidy.tabulate_means(
        "whole",
        "What the answer loses when an edge is cut in all layers",
        whole,
        {"model": "model", "asked": tidy.name_asked, "step": "at", "cut": "label"},
        METRICS,
        most=24,
    )
    findings, further = (list(_state(whole, result, edge)) for edge in (BY_ANSWER, BY_OTHERS))
    more = [_tabulate_tests(result)] if result.summary["tests"] else []
    counts = tidy.tabulate(
        "counts",
        "Prompts asked, and those kept: recalled by the model, and cut",
        result.summary["counts"],
        COUNTS,
    )
    return [
        *findings,
        _draw_curves(effects),
        blocks.Fold("Numbers", [*further, table, counts]),
        *more,
    ]


def _name_group(row: tidy.Record) -> tuple[Any, ...]:
    return tuple(row[name] for name in GROUP)


def _draw_curves(effects: Rows) -> blocks.Figure:
    """What each edge takes by layer, in % of what hiding the subject takes.

    A group from which hiding it takes nothing for certain has no such shares; where none has them,
    the axis is in nats per token.
    """
    rows = tidy.select(effects, metric=COMPARED)
    curves = [row for row in rows if row["window"] != WHOLE]
    certain = {_name_group(row) for row in tidy.select(rows, edge=HIDDEN) if row["low"] > 0}
    shares = []
    for row in curves:
        if _name_group(row) in certain and row["mean"] and row["share"] is not None:
            percent = 100 * row["share"] / row["mean"]  # one unit of loss, of the same facts' total
            shares.append({**row, **{end: percent * row[end] for end in tidy.ENDS}})
    kept = tidy.distinct(shares, "model", "split")
    without = [pair for pair in tidy.distinct(curves, "model", "split") if pair not in kept]
    missing = "; ".join(f"{model}, {labels.name_split(split)}" for model, split in without)
    note = f" Left out, as hiding the subject takes nothing for certain: {missing}."
    unit = ", in % of what hiding the subject takes," if shares else ""
    return tidy.draw_lines(
        shares or curves,
        "knockout",
        "What the answer loses when some positions cannot attend to others",
        f"Loss of log p per token{unit} with an edge cut in a window of layers around this one. "
        "Solid: what the answer's positions read; dashed: who else reads the subject. Bands: 95 % "
        f"intervals of the loss, by fact.{note if shares and without else ''}",
        x="layer",
        line="label",
        colour=_choose_colour,
        dash=lambda row: "dash" if _reads_for_others(row) else "solid",
        choose=[
            tidy.ASKED,
            tidy.Choose("layers cut together", "window"),
            tidy.Choose("step", "at"),
        ],
        xlabel="layer",
        ylabel="% of what hiding\nthe subject takes" if shares else "nats per token lost",
    )


def _reads_for_others(row: tidy.Record) -> bool:
    """Whether an edge is from the subject to positions that are not the answer's."""
    reads, _, is_read = row["edge"].partition(":")
    return is_read == "subject" and reads != "answer"


def _choose_colour(row: tidy.Record) -> str:
    """That of the role at the end of an edge that tells it from others of its kind."""
    reads, _, is_read = row["edge"].partition(":")
    return COLOURS[reads if _reads_for_others(row) else is_read]


def _state(whole: Rows, result: Result, edge: str) -> Iterator[blocks.Finding]:
    """What an answer loses where its positions, or all, cannot read the subject, by model."""
    who = "its positions cannot" if edge == BY_ANSWER else "no other position can"
    compared = tidy.select(whole, metric=COMPARED)
    taken = {_name_group(row) for row in tidy.select(compared, edge=HIDDEN) if not row["low"] <= 0}
    reading = {_name_group(row): row for row in result.summary["reading"]}
    for row in tidy.select(compared, edge=edge):
        part, group = "", _name_group(row)
        if edge == BY_ANSWER and group in reading:
            share = tidy.say(reading[group], "%")
            part = f", {share} of what is lost where no other position can"
        elif row["share"] is not None and group in taken:
            part = f", {tidy.say_share(row['share'])} of what hiding the subject takes"
        yield blocks.Finding(
            f"In {row['model']}, asked {labels.name_split(row['split'])}, an answer loses "
            f"{tidy.say(row, 'nats per token')} where {who} read the subject in any layer"
            f"{part} ({labels.count(row['facts'], 'fact')}).",
            result.verdicts[name_edge_claim(row)],
        )


def _tabulate_tests(result: Result) -> blocks.Fold:
    """Shares of the total effect, one group minus another."""
    margin = result.settings.to_record()["margin"]

    def name_groups(row: tidy.Record) -> str:
        one = f"{row['model']}, {labels.name_split(row['split'])}"
        return f"{one} − {row['other_model']}, {labels.name_split(row['other_split'])}"

    def say_outcome(row: tidy.Record) -> str:
        if row["p_holm"] <= ALPHA:
            return "differ"
        return "alike" if row["is_alike"] else "no difference detected"

    table = tidy.tabulate(
        "tests",
        "Effects of two groups compared, as shares of each group's total effect on log p per "
        f"token; alike: within ±{margin:g} in every layer",
        result.summary["tests"],
        {
            "groups": name_groups,
            "step": "stage",
            "cut": name_edge,
            "layers cut together": lambda row: row["window"] or "all",
            blocks.Column("difference of shares", has_sign=True): tidy.to_interval,
            blocks.Column("p of no difference (Holm)", 3): "p_holm",
            blocks.Column("p of a layer beyond the margin", 3): "p_equivalent",
            blocks.Column("smallest margin that would hold"): "smallest_margin",
            blocks.Column("power to find them alike"): "power",
            "outcome": say_outcome,
        },
        most=40,
    )
    return blocks.Fold("Groups compared", [table])

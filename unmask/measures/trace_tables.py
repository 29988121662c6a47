"""The tables of traces: groups, steps, facts, every role, and differences."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unmask.blocks.blocks import Column, Fold, Row, Table, Text, Value, Verdict
from unmask.blocks.labels import (
    CORRUPTIONS,
    METRICS,
    PARTS,
    ROLES,
    name_split,
    name_stage,
    order_splits,
)
from unmask.blocks.tidy import to_interval
from unmask.measures.measure import Rows
from unmask.measures.trace_figures import name_layer
from unmask.measures.trace_summary import Group, claim_test
from unmask.tracing.averages import TOTAL
from unmask.tracing.table import FLOW

_CELL_COLUMNS = [
    Column("given back", is_short=True),
    Column("of lost, %", digits=0, is_percent=True),
    Column("highest placebo", is_short=True),
]


def tabulate_groups(groups: Sequence[Group], verdicts: Mapping[str, Verdict], metric: str) -> Table:
    """What is lost, and what the subject's best state gives back."""
    columns = [*_name_columns(groups), Column("facts")]
    columns += [Column(f"lost, {METRICS.get(metric, metric)}", is_short=True)]
    columns += [Column("best at the subject"), *_CELL_COLUMNS]
    rows = []
    for group in groups:
        cell = group.best_subject()
        values: list[Value] = [*_name_group(group, groups), group.total["facts"]]
        values.append(to_interval(group.total))
        values += [None] * 4 if cell is None else _show_cell(group, cell)
        is_clear = cell is not None and verdicts[group.claim(cell)].is_clear
        rows.append(Row(values, "strong" if is_clear else "plain"))
    caption = "What hiding the subject takes, and what its best state gives back"
    return Table("groups", caption, columns, rows)


def tabulate_steps(groups: Sequence[Group], metric: str) -> Table:
    """What is asked and lost at each step, and where p comes from."""
    has_flow = any(group.flow("committed") for group in groups)
    columns = [*_name_columns(groups), Column("facts"), Column("tokens asked", digits=1)]
    columns += [Column(f"lost, {METRICS.get(metric, metric)}", is_short=True)]
    columns += [Column("per token", is_short=True)] if metric == "logp" else []
    if has_flow:
        columns += [Column("p from the subject", is_short=True)]
        columns += [Column("p from written tokens", is_short=True)]
    rows = []
    for group in groups:
        total = group.total
        values: list[Value] = [*_name_group(group, groups), total["facts"], group.asked]
        values.append(to_interval(total))
        values += [total["mean"] / group.asked] if metric == "logp" else []
        values += [group.flow("subject"), group.flow("committed")] if has_flow else []
        rows.append(Row(values))
    caption = (
        "Step by step; a step asks for the tokens that are still masked, and early steps are those "
        "of facts that begin early: compare steps with as many facts"
    )
    return Table("steps", caption, columns, rows)


def _name_columns(groups: Sequence[Group]) -> list[Column]:
    """What tells groups apart: corruption and step only where there are several."""
    columns = [Column("model"), Column("asked")]
    columns += [Column("hidden by")] if len({group.corruption for group in groups}) > 1 else []
    return columns + ([Column("step")] if len({group.stage for group in groups}) > 1 else [])


def _name_group(group: Group, groups: Sequence[Group]) -> list[Value]:
    values: list[Value] = [group.model, name_split(group.split)]
    if len({each.corruption for each in groups}) > 1:
        values.append(CORRUPTIONS.get(group.corruption, group.corruption))
    return values + ([name_stage(group.stage)] if len({each.stage for each in groups}) > 1 else [])


def _show_cell(group: Group, cell: Mapping[str, Any]) -> list[Value]:
    """Where a cell is, its effect, its share of what was lost, and its highest placebo."""
    placebos = [to_interval(row) for row in group.placebos(cell).values()]
    highest = max(placebos, key=lambda placebo: placebo.mean, default=None)
    part = "" if cell["part"] == "resid" else f"{PARTS[cell['part']]}, "
    where = f"{part}{ROLES[cell['role']]}, layer {name_layer(cell)}"
    return [where, to_interval(cell), find_share(cell, group), highest]


def fold_peaks(groups: Sequence[Group], verdicts: Mapping[str, Verdict]) -> Fold:
    """Every part and role at its best layer, the clear ones first."""
    columns = [*_name_columns(groups), Column("restored")]
    columns += [*_CELL_COLUMNS, Column("facts")]
    lines = []
    for group in groups:
        for cell in group.peaks():
            is_clear = verdicts[group.claim(cell)].is_clear
            values = [*_name_group(group, groups), *_show_cell(group, cell), cell["facts"]]
            lines.append((is_clear, cell["mean"], Row(values, "strong" if is_clear else "plain")))
    lines.sort(key=lambda line: (not line[0], -line[1]))
    caption = "Restored states, or outputs where named; bold: above 0 and above every placebo"
    table = Table("peaks", caption, columns, [row for *_, row in lines])
    return Fold("Every part and role, at its best layer", [table])


def tabulate_counts(counts: Rows) -> Table:
    """Which facts were traced, and why others were not."""
    is_ranked = any(row["considered"] is not None for row in counts)
    columns = [Column("model"), Column("asked"), Column("subject hidden by"), Column("prompts")]
    columns += [Column("recalled of considered")] if is_ranked else []
    columns += [Column("traced"), Column("left out"), Column("p of the answer", is_short=True)]
    splits = order_splits([row["split"] for row in counts])
    rows = []
    for row in sorted(counts, key=lambda row: splits.index(row["split"])):
        hidden = CORRUPTIONS.get(row["corruption"], row["corruption"])
        values: list[Value] = [row["model"], name_split(row["split"]), hidden, row["prompts"]]
        if is_ranked:
            is_first = row["considered"] is not None
            values.append(f"{row['recalled']} of {row['considered']}" if is_first else None)
        rows.append(Row([*values, row["kept"], row["left_out"] or None, row["clean"]]))
    return Table("facts", "Facts that were traced", columns, rows)


def fold_tests(tests: Rows, verdicts: Mapping[str, Verdict], metric: str) -> Iterator[Fold]:
    """Differences between groups, the total effects and what passes its test first."""
    compared = [test for test in tests if test["part"] != FLOW]
    if not compared:
        return
    is_clear = {id(test): verdicts[claim_test(test)].is_clear for test in compared}
    ordered = sorted(compared, key=lambda test: (not is_clear[id(test)], test["p_holm"]))
    rows = []
    for test in ordered:
        pair = [(test["model"], test["split"]), (test["other_model"], test["other_split"])]
        one, other = (f"{model}, {name_split(split)}" for model, split in pair)
        at = f"{name_stage(test['stage'])}, {CORRUPTIONS.get(test['corruption'], '')}"
        what = "total effect" if test["part"] == TOTAL else _name_role(test)
        how = f"{test['facts']} {'paired' if test['paired'] else 'unpaired'}"
        values = [one, other, at.rstrip(", "), what, to_interval(test), test["p_holm"], how]
        rows.append(Row(values, "strong" if is_clear[id(test)] else "plain"))
    columns = [Column("one"), Column("minus"), Column("at"), Column("what")]
    columns += [Column(f"difference, {METRICS.get(metric, metric)}", is_short=True)]
    columns += [Column("p (Holm)", digits=3), Column("facts")]
    sentence = Text(
        f"Mean effects over layers, one group minus the other; permutation tests by fact, "
        f"corrected within each pair of groups. {sum(is_clear.values())} of {len(compared)} pass."
    )
    table = Table("tests", "Differences between groups", columns, rows)
    yield Fold("Differences between models and ways of asking", [sentence, table])


def _name_role(test: Mapping[str, Any]) -> str:
    return f"{PARTS.get(test['part'], test['part'])}, {ROLES.get(test['role'], test['role'])}"


def find_share(cell: Mapping[str, Any], group: Group) -> float:
    """A cell's effect as a share of what the corruption takes."""
    return cell["mean"] / group.total["mean"] if group.total["mean"] else math.nan

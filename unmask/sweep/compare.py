"""The page of a sweep: the best cell, lines, tables. Its numbers are in `unmask.sweep.summary`."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.base.tables import write_table
from unmask.base.units import format_number
from unmask.blocks import blocks, labels, tidy
from unmask.blocks.blocks import Column
from unmask.evaluation.statistics import Interval
from unmask.report.document import Document
from unmask.report.page import write_document
from unmask.sweep.grid import FigureEntry, Sweep
from unmask.sweep.run import SweepOutcome
from unmask.sweep.summary import (
    ComparedRow,
    SpentCompute,
    add_up_compute,
    compare_sweep,
    find_best,
    list_axes,
    rank,
    subtract_best,
)

SCHEMA = "sweep/1"
TABLE = "sweep.parquet"


def draw_sweep(outcome: SweepOutcome, page: str | Path | None = None) -> list[Path]:
    """Write the table of a sweep, and the page of its comparison: as HTML in its folder, or to
    `page`; where they are."""
    sweep, folder = outcome.sweep, outcome.folder
    compared = compare_sweep(sweep, folder)
    flat = [
        {"measure": name, **row.columns, **vars(row.value)}
        for name, rows in compared.items()
        for row in rows
    ]
    written = []
    if flat:
        write_table(folder / TABLE, flat, SCHEMA)
        written.append(folder / TABLE)
    place = folder / "page.html" if page is None else Path(page)
    write_document(Document(sweep.file.title, "", [], [describe_sweep(outcome, compared)]), place)
    return [*written, place]


def describe_sweep(
    outcome: SweepOutcome, compared: Mapping[str, Sequence[ComparedRow]]
) -> blocks.Section:
    """The best cell, lines with intervals, tables, the compute spent, and what failed."""
    sweep = outcome.sweep
    parts = list[blocks.ReportBlock]()
    if sweep.file.note:
        parts.append(blocks.Text(sweep.file.note))
    parts += _say_best(sweep, compared[sweep.best])
    for number, figure in enumerate(sweep.figures, 1):
        if any(_fits(row, figure.where) for row in compared[figure.value]):
            parts.append(_draw(sweep, figure, compared[figure.value], number))
    for name, rows in compared.items():
        if rows:
            parts.append(_tabulate(sweep, name, rows))
    parts.append(blocks.Text(_say_compute(add_up_compute(sweep, outcome.folder))))
    parts += [
        blocks.Notice(f"The cell {name} failed: {problem}")
        for name, problem in outcome.failed.items()
    ]
    missing = len(sweep.cells) - len(outcome.done) - len(outcome.failed)
    if missing:
        text = f"{labels.count(missing, 'cell')} of {len(sweep.cells)} are still to be done."
        parts.append(blocks.Notice(text))
    return blocks.Section("sweep", sweep.file.title, parts)


def _name_cell(row: ComparedRow, names: Sequence[str]) -> str:
    """A row in words: its axes and what is kept apart, such as "masked, steps 32"."""
    shown = [(name, row.columns[name]) for name in names if row.columns.get(name) != "–"]
    words = [f"{value}" if isinstance(value, str) else f"{name} {value}" for name, value in shown]
    return ", ".join(words)


def _list_names(sweep: Sweep, measure: str) -> list[str]:
    """Columns that tell rows of a measure apart."""
    return [*list_axes(sweep), *(["step"] if sweep.cooldowns else []), *sweep.measures[measure].by]


def _say_best(sweep: Sweep, rows: Sequence[ComparedRow]) -> Iterator[blocks.ReportBlock]:
    entry = sweep.measures[sweep.best]
    best = find_best(rows, entry)
    if best is None:
        yield blocks.Notice("No cell has been measured yet.")
        return
    what, is_percent = entry.label or entry.value, entry.is_share
    bound = ", an upper bound" if best.columns["likelihood"] == "upper bound" else ""
    value = tidy.say(best.value, "%" if is_percent else "", 3)
    cell = _name_cell(best, _list_names(sweep, sweep.best))
    yield blocks.Text(
        f"Best by validation ({entry.better} is better): {cell} "
        f"with {value} {what}{bound} ({labels.count(best.columns['seeds'], 'training seed')})."
    )


def _tabulate(sweep: Sweep, name: str, rows: Sequence[ComparedRow]) -> blocks.Table:
    entry, best = sweep.measures[name], find_best(rows, sweep.measures[name])

    def minus_best(row: Mapping[str, Any]) -> Interval | None:
        return subtract_best(row["row"], best, entry)

    digits, is_percent = (1, True) if entry.is_share else (3, False)
    columns: dict[str | Column, tidy.Get] = {each: each for each in _list_names(sweep, name)}
    if any(row.columns["likelihood"] for row in rows):
        columns["likelihood"] = "likelihood"
    columns |= {
        "seeds": "seeds",
        "tokens": lambda row: format_number(row["tokens"]),
        Column("PFLOP", is_short=True): lambda row: row["flops"] / 1e15,
        Column(entry.label or entry.value, digits, is_percent): lambda row: row["row"].value,
        Column("minus the best", digits, is_percent, has_sign=True): minus_best,
    }
    shown = sorted(rows, key=lambda row: rank(row, entry))
    records = [{**row.columns, "row": row} for row in shown]
    unit = entry.unit or entry.cluster or "row"
    caption = f"{entry.label or name}: 95 % intervals by training seed and {unit}"
    return tidy.tabulate(
        name, caption, records, columns, lambda row: "strong" if row["row"] is best else "plain", 40
    )


def _draw(
    sweep: Sweep, figure: FigureEntry, rows: Sequence[ComparedRow], number: int
) -> blocks.Figure:
    """Lines where the x axis is a number, dots one below the other where it is a name."""
    entry = sweep.measures[figure.value]
    every = [{**row.columns, **vars(row.value), "all": ""} for row in rows]
    records = [dict(row) for row in tidy.select(every, **figure.where)]
    names = tidy.distinct(records, figure.line)
    # Lines that are the rows themselves need no colours and no legend.
    is_named = figure.line != figure.x
    colours = {name: f"p{i + 1 if is_named else 1}" for i, name in enumerate(names)}
    label = entry.label or figure.value
    title = figure.title or f"{label[0].upper()}{label[1:]} by {figure.x}"
    if any(row.columns["likelihood"] == "upper bound" for row in rows):
        label += " (an upper bound for diffusion models)"
    shared: dict[str, Any] = {
        "colour": lambda row: colours[row[figure.line]],
        "panel": figure.panel or "all",
    }
    caption = "95 % intervals by training seed, where there are several, and by cluster."
    if all(_is_number(row[figure.x]) for row in records):
        places = [float(row[figure.x]) for row in records]
        return tidy.draw_lines(
            records,
            f"lines-{number}",
            title,
            caption,
            x=lambda row: float(row[figure.x]),
            line=lambda row: str(row[figure.line]),
            xlabel=figure.x,
            ylabel=label,
            is_log2=max(places) > 8 * min(places) > 0,
            **shared,
        )
    return tidy.draw_dots(
        records,
        f"dots-{number}",
        title,
        caption,
        label=lambda row: str(row[figure.x]),
        group=lambda row: str(row[figure.line]) if is_named else "",
        xlabel=label,
        **shared,
    )


def _fits(row: ComparedRow, where: Mapping[str, Any]) -> bool:
    return all(row.columns.get(name) == value for name, value in where.items())


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _say_compute(spent: SpentCompute) -> str:
    """What all trainings together took."""
    return (
        f"Compute spent on training: {spent.flops:.2g} floating-point operations, "
        f"{spent.minutes:.1f} minutes, for {labels.count(spent.models, 'model')}."
    )

"""The page of a sweep: the best cell, lines, tables. Its numbers are in `unmask.sweep.summary`."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unmask.base.tables import write_table
from unmask.base.units import format_number
from unmask.blocks import blocks, labels, tidy
from unmask.blocks.blocks import Column
from unmask.report.document import Document
from unmask.report.page import write_document
from unmask.sweep.checks import MEASURED
from unmask.sweep.grid import FigureEntry, MeasureEntry, Sweep
from unmask.sweep.run import SweepOutcome
from unmask.sweep.summary import (
    ComparedRow,
    add_up_compute,
    compare_sweep,
    find_best,
    is_behind,
    list_axes,
    rank,
    subtract_best,
)

SCHEMA = "sweep/1"
TABLE = "sweep.parquet"


def draw_sweep(
    outcome: SweepOutcome, page: str | Path | None = None
) -> tuple[blocks.Section, list[Path]]:
    """Write the table of a sweep, and the page of its comparison: as HTML in its folder, or to
    `page`; what the page says, and where they are."""
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
    section = describe_sweep(outcome, compared)
    write_document(Document(sweep.file.title, "", [], [section]), place)
    return section, [*written, place]


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
        if chosen := [row for row in compared[figure.value] if _fits(row, figure.where)]:
            parts.append(_draw(sweep, figure, chosen, number))
    for name, rows in compared.items():
        if rows:
            parts.append(_tabulate(sweep, name, rows))
        elif outcome.done:
            where = ", ".join(f"{key}: {each}" for key, each in sweep.measures[name].where.items())
            text = f"No model that was measured has a value of {name}"
            parts.append(blocks.Notice(f"{text} where {where}." if where else f"{text}."))
    models, flops, minutes = add_up_compute(sweep, outcome.folder)
    parts.append(
        blocks.Text(
            f"Compute spent on training: {flops:.2g} floating-point operations, {minutes:.1f} "
            f"minutes added up, for {labels.count(models, 'model')}."
        )
    )
    parts += [
        blocks.Notice(f"The cell {name} failed: {problem}")
        for name, problem in outcome.failed.items()
    ]
    missing = len(sweep.cells) - len(outcome.done) - len(outcome.failed)
    if missing:
        are = "is" if missing == 1 else "are"
        text = f"{labels.count(missing, 'cell')} of {len(sweep.cells)} {are} still to be done."
        parts.append(blocks.Notice(text))
    return blocks.Section("sweep", sweep.file.title, parts)


def _name_cell(row: ComparedRow, names: Sequence[str]) -> str:
    """A row in words: its axes and what is kept apart, such as "masked, steps 32"."""
    shown = [name for name in names if row.columns.get(name) not in ("–", None)]
    return ", ".join(_name_value(row.columns, name) for name in shown) or "the only model"


def _name_value(columns: Mapping[str, Any], name: str) -> str:
    """What a row has in a column: a number with the column's name, such as "steps 32"."""
    value = columns[name]
    if value is None:
        return f"no {name}"
    return f"{name} {value}" if _is_number(value) else str(value)


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
    names = _list_names(sweep, sweep.best)
    scored = f"{_name_cell(best, names)} with {value} {what}{bound}"
    scored += f" ({labels.count(best.columns['seeds'], 'training seed')})"
    others = sorted((row for row in rows if row is not best), key=lambda row: rank(row, entry))
    close = [_name_cell(row, names) for row in others if not is_behind(row, best, entry)]
    if close:
        yield blocks.Text(
            f"By validation no cell is clearly the best ({entry.better} is better): {scored} comes "
            f"first, and {len(close)} of {labels.count(len(others), 'other')} may be as good, such "
            f"as {close[0]}."
        )
    else:
        yield blocks.Text(f"Best by validation ({entry.better} is better): {scored}.")


def _tabulate(sweep: Sweep, name: str, rows: Sequence[ComparedRow]) -> blocks.Table:
    """Every row of a measure, and how far it is from the first of those it is compared with."""
    entry = sweep.measures[name]
    records = [
        {**row.columns, "row": row} for row in sorted(rows, key=lambda row: rank(row, entry))
    ]
    shown = list[dict[str, Any]]()
    for own in tidy.group_by(records, *entry.within).values():
        best = find_best([each["row"] for each in own], entry)
        shown += [{**each, "best": best} for each in own]
    digits, is_percent = (1, True) if entry.is_share else (3, False)
    unit, points = (", %", ", points") if is_percent else ("", "")
    columns: dict[str | Column, tidy.Get] = {each: each for each in _list_names(sweep, name)}
    if any(row.columns["likelihood"] for row in rows):
        columns["likelihood"] = "likelihood"
    columns["seeds"] = "seeds"
    if name == sweep.best:  # what training took is told once
        columns["tokens trained on"] = lambda row: format_number(row["tokens"])
        columns[Column("training PFLOP", is_short=True)] = lambda row: row["flops"] / 1e15
    value = Column(f"{entry.label or entry.value}{unit}", digits, is_percent)
    columns[value] = lambda row: row["row"].value
    if entry.better != "neither":
        difference = Column(f"minus the best{points}", digits, is_percent, has_sign=True)
        columns[difference] = lambda row: subtract_best(row["row"], row["best"], entry)
    caption = f"{entry.label or name}: 95 % intervals by training seed and {_name_unit(entry)}"
    return tidy.tabulate(
        name,
        caption,
        shown,
        columns,
        lambda row: "strong" if row["row"] is row["best"] else "plain",
        40,
    )


def _name_unit(entry: MeasureEntry) -> str:
    """What is independent in a measured value, beside training seeds."""
    return entry.unit or entry.cluster or "row"


def _draw(
    sweep: Sweep, figure: FigureEntry, rows: Sequence[ComparedRow], number: int
) -> blocks.Figure | blocks.Notice:
    """Lines where the x axis is a number, dots one below the other where it is a name."""
    entry = sweep.measures[figure.value]
    records = [{**row.columns, **vars(row.value), "all": ""} for row in rows]
    label = entry.label or figure.value
    title = figure.title or f"{label[0].upper()}{label[1:]} by {figure.x}"
    places = [each for each in (figure.x, figure.line, figure.panel) if each]
    hidden = _find_hidden(records, places, _list_names(sweep, figure.value))
    if hidden:
        return blocks.Notice(
            f"{title!r} is not drawn, since several values would lie at one place: name "
            f"{' and '.join(hidden)} as its line or panel, or choose one by `where`."
        )
    names = tidy.distinct(records, figure.line)
    # Lines that are the rows themselves need no colours and no legend.
    is_named = figure.line != figure.x
    colours = {name: f"p{i if is_named else 0}" for i, name in enumerate(names)}
    if any(row.columns["likelihood"] == "upper bound" for row in rows):
        label += " (an upper bound for diffusion models)"
    shared: dict[str, Any] = {
        "colour": lambda row: colours[row[figure.line]],
        "panel": partial(_name_value, name=figure.panel) if figure.panel else "all",
    }
    name_line = partial(_name_value, name=figure.line)
    about = (
        title,
        (f"95 % intervals by training seed, where there are several, and by {_name_unit(entry)}."),
    )
    if all(_is_number(row[figure.x]) for row in records):
        places = [float(row[figure.x]) for row in records]
        shared |= {"x": lambda row: float(row[figure.x]), "line": name_line}
        shared |= {"xlabel": MEASURED.get(figure.x, figure.x), "ylabel": label}
        shared |= {"is_log2": max(places) > 8 * min(places) > 0}
        return tidy.draw_lines(records, f"lines-{number}", *about, **shared)
    shared |= {"label": lambda row: "–" if row[figure.x] is None else str(row[figure.x])}
    shared |= {"group": name_line if is_named else lambda row: "", "xlabel": label}
    return tidy.draw_dots(records, f"dots-{number}", *about, **shared)


def _find_hidden(
    records: tidy.Records, places: Sequence[str], names: Sequence[str]
) -> Sequence[str]:
    """Columns in which rows at one place of a figure differ."""
    for own in tidy.group_by(records, lambda row: tuple(row[name] for name in places)).values():
        if differing := [name for name in names if len(tidy.distinct(own, name)) > 1]:
            return differing
    return ()


def _fits(row: ComparedRow, where: Mapping[str, Any]) -> bool:
    """Whether a row has these values; those of axes are kept as text."""
    for name, value in where.items():
        own = row.columns[name]
        if own != (str(value) if isinstance(own, str) else value):
            return False
    return True


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True

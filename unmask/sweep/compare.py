"""What a sweep compares: means with intervals by training seed, the best cell, tables and lines."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.base.tables import read_table, write_table
from unmask.base.units import format_number
from unmask.blocks import blocks, labels, tidy
from unmask.blocks.blocks import Column
from unmask.evaluation.statistics import Clusters, Interval, estimate_difference, estimate_mean
from unmask.measures.table import find_measure
from unmask.net.counts import count_parameters
from unmask.net.loading import inspect
from unmask.report.document import Document
from unmask.report.page import write_document
from unmask.sweep.grid import SEED, FigureEntry, MeasureEntry, Sweep
from unmask.sweep.run import SweepOutcome, SweepPoint, list_points
from unmask.training.journal import read_journal
from unmask.training.loop import MODEL
from unmask.training.speed import count_training_flops

SCHEMA = "sweep/1"
TABLE = "sweep.parquet"


@dataclass(frozen=True)
class _TrainedMember:
    """One trained model: which cell and seed, and what its training took."""

    point: SweepPoint
    seed: str
    facts: Mapping[str, Any]
    own_flops: float
    own_seconds: float
    """Without what a copy shares with the run that it is a copy of."""


@dataclass(frozen=True)
class ComparedRow:
    """A measured value of one model with all its training seeds."""

    columns: Mapping[str, Any]
    clusters: Clusters
    value: Interval


def compare_sweep(sweep: Sweep, folder: Path) -> dict[str, list[ComparedRow]]:
    """Every measured value by the name of its measure: a row for each model and step."""
    members = _list_members(sweep, folder)
    return {name: list(_compare(sweep, name, members)) for name in sweep.measures}


def _list_members(sweep: Sweep, folder: Path) -> list[_TrainedMember]:
    """The models that are there."""
    points = list(list_points(sweep, folder))
    return [
        _read_member(sweep, each) for each in points if (each.folder / "train" / MODEL).is_dir()
    ]


def _read_member(sweep: Sweep, point: SweepPoint) -> _TrainedMember:
    run, recipe = point.folder / "train", point.cell.recipe
    blueprint = inspect(run / MODEL)[0]
    records = [record for record in read_journal(run) if "tokens" in record]
    last = records[-1]
    shared = {"tokens": 0, "seconds": 0.0}
    if point.cooldown is not None and sweep.cooldowns is not None:
        start = sweep.cooldowns.find_start(point.cooldown)
        shared = max((each for each in records if each["step"] <= start),
                     key=lambda each: each["step"], default=shared)  # fmt: skip
    each_token = count_training_flops(blueprint.config, recipe.input_length)
    facts: dict[str, Any] = {
        name: point.cell.labels.get(name, "–") for name in sweep.axes if name != SEED
    }
    facts |= {name: last[name] for name in ("step", "tokens", "seconds")}
    facts |= {"flops": each_token * last["tokens"], "kind": recipe.kind}
    facts |= {"parameters": count_parameters(blueprint.config).total}
    own_tokens = last["tokens"] - shared["tokens"]
    seed = point.cell.labels.get(SEED, str(recipe.seed))
    seconds = last["seconds"] - shared["seconds"]
    return _TrainedMember(point, seed, facts, each_token * own_tokens, seconds)


def _compare(sweep: Sweep, name: str, members: Sequence[_TrainedMember]) -> Iterator[ComparedRow]:
    entry, axes = sweep.measures[name], [axis for axis in sweep.axes if axis != SEED]
    measure = find_measure(entry.verb)
    groups = tidy.group_by(
        [{"member": each, "at": each.point.cooldown, **each.facts} for each in members], *axes, "at"
    )
    for group in groups.values():
        rows = []
        for member in (each["member"] for each in group):
            path = member.point.folder / (entry.of or name) / f"{measure.name}.parquet"
            if path.is_file():
                table = read_table(path, measure.tables[measure.name]).to_pylist()
                rows += [{**row, "seed": member.seed} for row in tidy.select(table, **entry.where)]
        first = dict(group[0]["member"].facts)
        first["seconds"] = float(np.mean([each["member"].facts["seconds"] for each in group]))
        for key, own in (tidy.group_by(rows, *entry.by) if entry.by else {(): rows}).items():
            if not own:
                continue
            kept = dict(zip(entry.by, key if isinstance(key, tuple) else (key,), strict=False))
            clusters = _cluster(own, entry)
            columns = first | kept | {"seeds": clusters.sums.shape[0]}
            columns["likelihood"] = _name_likelihood(own)
            yield ComparedRow(columns, clusters, estimate_mean(clusters, entry.is_share))


def _name_likelihood(rows: Sequence[Mapping[str, Any]]) -> str:
    """What a likelihood is: bounds are called bounds."""
    if "is_bound" not in rows[0]:
        return ""
    return "upper bound" if rows[0]["is_bound"] else "exact"


def _cluster(rows: Sequence[Mapping[str, Any]], entry: MeasureEntry) -> Clusters:
    """Sums of the value and of what it is divided by, over training seeds and clusters.

    Clusters that not every seed has met are left out.
    """
    sums: dict[str, dict[Any, list[float]]] = {}
    for number, row in enumerate(rows):
        at = row[entry.cluster] if entry.cluster else number
        total = sums.setdefault(row["seed"], {}).setdefault(at, [0.0, 0.0])
        total[0] += float(row[entry.value])
        total[1] += float(row[entry.per]) if entry.per else 1.0
    if not entry.cluster:  # rows stand in one order under every seed
        sums = {seed: dict(enumerate(own.values())) for seed, own in sums.items()}
    shared = [at for at in next(iter(sums.values())) if all(at in own for own in sums.values())]
    values = np.array([[own[at] for at in shared] for own in sums.values()])  # [S, F, 2]
    return Clusters(values[..., 0], values[..., 1])


def find_best(rows: Sequence[ComparedRow], entry: MeasureEntry) -> ComparedRow | None:
    """The row with the lowest mean, or the highest."""
    sign = 1 if entry.better == "lower" else -1
    known = [row for row in rows if not math.isnan(row.value.mean)]
    return min(known, key=lambda row: sign * row.value.mean, default=None)


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
    parts.append(blocks.Text(_say_compute(_list_members(sweep, outcome.folder))))
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
    axes = [axis for axis in sweep.axes if axis != SEED]
    return [*axes, *(["step"] if sweep.cooldowns else []), *sweep.measures[measure].by]


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
    sign = 1 if entry.better == "lower" else -1

    def minus_best(row: Mapping[str, Any]) -> Interval | None:
        other = row["row"]
        if best is None or other is best:
            return None
        if other.clusters.sums.shape[1] != best.clusters.sums.shape[1]:  # nothing to pair by
            return None
        return estimate_difference(other.clusters, best.clusters, entry.is_share)

    shown = sorted(rows, key=lambda row: sign * row.value.mean)
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
    records = [{**row.columns, "row": row} for row in shown]
    caption = f"{entry.label or name}: 95 % intervals by training seed and {entry.cluster or 'row'}"
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
    colours = {name: f"p{i + 1}" for i, name in enumerate(names)}
    title = figure.title or f"{entry.label or figure.value} by {figure.x}"
    label = entry.label or figure.value
    if any(row.columns["likelihood"] == "upper bound" for row in rows):
        label += " (an upper bound for diffusion models)"
    shared: dict[str, Any] = {
        "colour": lambda row: colours[row[figure.line]],
        "panel": figure.panel or "all",
    }
    caption = "95 % intervals by training seed, where there are several, and by cluster."
    if all(_is_number(row[figure.x]) for row in records):
        records = [row | {figure.x: float(row[figure.x])} for row in records]
        places = [float(row[figure.x]) for row in records]
        return tidy.draw_lines(
            records,
            f"lines-{number}",
            title,
            caption,
            x=figure.x,
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
        group=lambda row: str(row[figure.line]),
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


def _say_compute(members: Sequence[_TrainedMember]) -> str:
    """What all trainings together took."""
    flops = sum(each.own_flops for each in members)
    minutes = sum(each.own_seconds for each in members) / 60
    trunks = {each.point.folder.parent: each for each in members if each.point.cooldown is not None}
    for last in trunks.values():  # members are in the order of their steps: the longest trunk
        flops += last.facts["flops"] - last.own_flops
        minutes += (last.facts["seconds"] - last.own_seconds) / 60
    return (
        f"Compute spent on training: {flops:.2g} floating-point operations, {minutes:.1f} minutes, "
        f"for {labels.count(len(members), 'model')}."
    )

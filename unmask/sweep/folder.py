"""The folder of a sweep: which file it is of, and which of its cells failed."""

import json
import logging
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from unmask.base.config import build
from unmask.base.errors import UserError, suggest
from unmask.base.files import path_exists, write_json
from unmask.base.identity import digest_path
from unmask.base.locks import RunRefusedError
from unmask.base.reading import read_json_object
from unmask.base.runs import (
    DIGESTS,
    RECORD,
    check_run,
    compare_digests,
    compare_values,
    make_record,
    read_record,
    write_record,
)
from unmask.base.tables import read_table
from unmask.blocks import tidy
from unmask.measures.runner import MEASURE, digest_measure
from unmask.measures.table import find_measure
from unmask.net.families import digest_model
from unmask.sweep.grid import MeasureEntry, Sweep, SweepCell
from unmask.training.data_settings import list_parts
from unmask.training.recipe import Recipe
from unmask.training.recipes_io import list_changes

_log = logging.getLogger(__name__)

CELLS, FAILED, TRUNK = "cells", "failed.json", "trunk"
_DRAWN = frozenset({"title", "note", "figures", "best", "measures", "recipes"})
"""Entries of a file that may change between calls; of measures, all but how they are run, and of
recipes, what no cell that was begun has from them."""
_RUN = ("verb", "data", "settings")
"""What decides how a measure is run."""
_MACHINE = frozenset({"device", "dtype"})
"""Settings of a measure that a run has from its machine."""
_GO_ON = "correct it and repeat the command, what was trained is kept"


def open_folder(sweep: Sweep, folder: Path, device: str) -> None:
    """Make the folder of a sweep, or refuse one that holds another sweep.

    What is drawn, how tables are read, and which measures there are may change; so may data that
    nothing was made from yet.
    """
    values = json.loads(json.dumps(dict(sweep.values)))  # keys that are numbers become text
    digests = _digest_contents(sweep)
    record = make_record("sweep", values, {DIGESTS: digests}, device=device)
    if (folder / RECORD).is_file():
        before = read_record(folder)
        if before.verb != record.verb:
            check_run(folder, record)
        changes = compare_values(before.settings, record.settings, _DRAWN)
        changes += _compare_measures(before.settings, record.settings, folder)
        old = before.inputs.get(DIGESTS, {})
        used = [each for each in _list_used(sweep, folder) if each in old and each in digests]
        changes = changes or _compare_recipes(sweep, folder)
        changes += compare_digests(*({each: own[each] for each in used} for own in (old, digests)))
        if changes:
            raise RunRefusedError(
                f"{folder} holds another sweep ({'; '.join(changes)}): choose another folder with "
                "--out, or take the change back."
            )
        # A measure that was taken out of the file may come back.
        record = replace(record, inputs={DIGESTS: {**old, **digests}})
        if before.settings == record.settings and before.inputs == record.inputs:
            return
    elif next((folder / CELLS).glob(f"*/*/{RECORD}"), None) is not None:
        raise RunRefusedError(
            f"{folder} holds cells but no {RECORD} of the sweep that they are of, so that nothing "
            "says what they were made from: choose another folder with --out, or remove them."
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_record(folder, record)


def _list_contents(made: Recipe | MeasureEntry) -> list[str]:
    """The files and folders that a training or a measure reads."""
    if isinstance(made, Recipe):
        parts = [made.data, *list_parts(made.data).values()]
        named = [place for part in parts for place in (part.path, part.tokenizer)]
    else:
        named = [made.data, *filter(_is_path, made.settings.values())]
    return [each for each in dict.fromkeys(named) if each is not None and path_exists(each)]


def _is_path(value: Any) -> bool:
    """Whether a setting names a file: a folder may have any word's name."""
    is_there = isinstance(value, str) and path_exists(value)
    return is_there and ("/" in value or Path(value).is_file())


def _digest_contents(sweep: Sweep) -> dict[str, dict[str, str]]:
    """Digests of all that the cells and measures of a sweep read, by its path or model."""
    made = [*(cell.recipe for cell in sweep.cells), *sweep.measures.values()]
    paths = dict.fromkeys(path for each in made for path in _list_contents(each))
    digests = {path: {"contents": digest_path(path)} for path in paths}
    for model in dict.fromkeys(cell.recipe.start.model for cell in sweep.cells):
        with suppress(UserError):  # a model that cannot be read is its cells' failure
            digests |= {} if model is None else {model: digest_model(model)}
    return digests


def _list_used(sweep: Sweep, folder: Path) -> Iterator[str]:
    """What was read already, by cells or measures that were begun."""
    for cell in sweep.cells:
        if any((folder / CELLS / cell.name / name / RECORD).is_file() for name in ("train", TRUNK)):
            yield from _list_contents(cell.recipe)
            yield from filter(None, [cell.recipe.start.model])
    for name, entry in sweep.measures.items():
        if _find_begun(name, folder) is not None:
            yield from _list_contents(entry)


def _find_begun(name: str, folder: Path) -> Path | None:
    """The record of a run of a measure that some cell has begun; None where none has."""
    patterns = (f"*/{name}/{RECORD}", f"*/step-*/{name}/{RECORD}")
    return next((path for each in patterns for path in (folder / CELLS).glob(each)), None)


def _compare_measures(
    before: Mapping[str, Any], now: Mapping[str, Any], folder: Path
) -> Iterator[str]:
    """What differs in how measures are run that some cell has run or begun to run."""
    olds, news = before["measures"], now["measures"]
    for name, entry in news.items():
        if (begun := _find_begun(name, folder)) is None:
            continue
        measure, record = find_measure(entry["verb"]), read_record(begun.parent)
        if record.code:  # not in those of earlier versions
            own = ({MEASURE: each} for each in (record.code[MEASURE], digest_measure(measure)))
            yield from (f"measures.{name}: {each}" for each in compare_digests(*own))
        if name in olds:
            old, new = ({key: each[name].get(key) for key in _RUN} for each in (olds, news))
        else:  # it was taken out of the file and is back: its runs say how they were run
            settings = build(measure.settings, entry.get("settings", {}), f"measures.{name}")
            old = {**record.settings, "verb": record.verb}
            new = {**settings.to_record(), "verb": measure.name}
        yield from compare_values(old, new, _MACHINE, f"measures.{name}.")


def _compare_recipes(sweep: Sweep, folder: Path) -> list[str]:
    """What differs in the recipe of a cell that was begun: its file may have been edited since."""
    for cell in sweep.cells:
        for name in ("train", TRUNK):
            run, now = folder / CELLS / cell.name / name, cell.recipe
            with suppress(UserError):  # a run that cannot be read is its cell's failure
                own = build(Recipe, read_record(run).settings, str(run))
                if name == TRUNK:  # trained piece by piece
                    now = replace(now, budget=own.budget)
                if changes := list_changes(own, now):
                    return [f"{cell.name}: {each}" for each in changes]
    return []


def find_table(entry: MeasureEntry, name: str, folder: Path) -> Path:
    """Where the main table of a measure lies, of the model of that folder."""
    return folder / (entry.of or name) / f"{find_measure(entry.verb).name}.parquet"


def read_rows(name: str, entry: MeasureEntry, folder: Path) -> list[dict[str, Any]]:
    """What was measured of one model; nothing where that is still to be done."""
    path = find_table(entry, name, folder)
    if not path.is_file():
        return []
    measure = find_measure(entry.verb)
    table = read_table(path, measure.tables[measure.name])
    _check_columns(name, entry, path, table.column_names)
    return [dict(row) for row in tidy.select(table.to_pylist(), **entry.where)]


def _check_columns(name: str, entry: MeasureEntry, path: Path, columns: Sequence[str]) -> None:
    """Refuse an entry that names columns which the table at a path lacks."""
    single = {"value": entry.value, "per": entry.per, "cluster": entry.cluster}
    named = [(key, column) for key, column in single.items() if column is not None]
    named += [(key, column) for key in ("by", "where") for column in getattr(entry, key)]
    for key, column in named:
        if column not in columns:
            raise UserError(
                f"'measures.{name}.{key}' names {column!r}, expected a column of {path.name}: "
                f"{suggest(column, columns)}; {_GO_ON}."
            )


def read_failure(place: Path, begun: float = 0.0) -> str | None:
    """How a cell failed since `begun`; one that failed earlier is tried again."""
    if not (place / FAILED).is_file():
        return None
    record = read_json_object(place / FAILED)
    return str(record.get("error")) if float(record.get("time", 0)) >= begun else None


def note_failure(place: Path, cell: SweepCell, error: Exception) -> str:
    """Log a cell's failure and keep it in its folder; the sentence comes back."""
    is_mistake = isinstance(error, UserError)
    text = str(error)
    if not is_mistake:  # those of torch can be a page long; the trace has them whole
        text = shorten(f"{type(error).__name__}: {error}", 160, placeholder=" …")
    _log.warning("the cell %s failed, the rest goes on: %s", cell.name, text)
    trace = "" if is_mistake else traceback.format_exc()
    write_json(place / FAILED, {"error": text, "time": time.time(), "traceback": trace})
    return text

"""Checks of a whole sweep file before anything is trained: names, figures, measures, data."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.base.config import build
from unmask.base.errors import UserError, suggest
from unmask.measures.inputs import ModelsAndData
from unmask.measures.table import find_measure

if TYPE_CHECKING:
    from unmask.sweep.grid import CooldownSettings, FigureEntry, Sweep

READ = ("facts", "text")
"""Sources of training data that are read from a path."""
SEED = "seed"
"""Cells that differ in this axis alone are one model, trained with several seeds."""
MEASURED = {
    "step": "training step",
    "tokens": "tokens trained on",
    "flops": "training compute (floating-point operations)",
    "seconds": "seconds of training",
    "parameters": "parameters",
}
"""What is known of every trained model, beside its axes: for the x axis of figures."""
_COMPARED = (*MEASURED, "measure", "seeds", "likelihood", "mean", "low", "high")
"""Columns of the sweep's own table, which no axis may be named like."""


def find_sweep_problems(sweep: "Sweep") -> Iterator[str]:
    """What is wrong with the file, beyond the form of each entry."""
    yield from _check_names(sweep)
    for name, entry in sweep.measures.items():
        measure = find_measure(entry.verb)
        if not isinstance(measure.inputs, ModelsAndData):
            yield f"'measures.{name}' is {entry.verb}, which does not ask models: name another verb"
            continue
        build(measure.settings, entry.settings, f"measures.{name}.settings")
        if entry.of is not None:
            other = sweep.measures.get(entry.of)
            if other is None or other.of is not None or other.verb != entry.verb:
                yield f"'measures.{name}.of' is {entry.of!r}, expected an entry of {entry.verb}"
        elif entry.data is None and _needs_file(measure.inputs):
            yield f"'measures.{name}' has no data, which {entry.verb} needs"
    if sweep.best not in sweep.measures:
        yield f"'best' is {sweep.best!r}: {suggest(sweep.best, sweep.measures)}"
    elif sweep.measures[sweep.best].better == "neither":
        yield f"'best' is {sweep.best!r}, of which neither lower nor higher is better: name another"
    for entry in sweep.figures:
        yield from _check_figure(sweep, entry)
    if sweep.cooldowns is not None:
        yield from _check_cooldowns(sweep, sweep.cooldowns)


def _needs_file(inputs: ModelsAndData) -> bool:
    """Whether a measure has no data for models that did not come with this package."""
    return inputs.is_required or inputs.is_text


def _check_names(sweep: "Sweep") -> Iterator[str]:
    """Names that folders and tables of the sweep have already."""
    for name, entry in sweep.measures.items():
        if name in ("train", "trunk") or not re.fullmatch(r"\w[\w-]*", name):
            yield (
                f"'measures' has the name {name!r}, which is also a folder's: expected letters, "
                "digits, - and _, and neither train nor trunk"
            )
        if alien := [each for each in entry.within if each not in entry.by]:
            yield f"'measures.{name}.within' names {alien[0]!r}: {suggest(alien[0], entry.by)}"
        if taken := [each for each in entry.by if each in (*sweep.axes, *_COMPARED)]:
            yield f"'measures.{name}.by' names {taken[0]!r}, which every row of a sweep has already"
    for axis in sweep.axes:
        if axis in _COMPARED:
            yield f"'grids' has the axis {axis!r}, a column of the sweep's table: name it otherwise"


def _check_figure(sweep: "Sweep", figure: "FigureEntry") -> Iterator[str]:
    if figure.value not in sweep.measures:
        yield f"'figures' draws {figure.value!r}: {suggest(figure.value, sweep.measures)}"
        return
    axes = [axis for axis in sweep.axes if axis != SEED]  # seeds are in the intervals
    own = (*axes, *MEASURED, *sweep.measures[figure.value].by)
    for name in (figure.x, figure.line, *filter(None, [figure.panel]), *figure.where):
        if name not in own:
            yield f"'figures' names {name!r}: {suggest(name, own)}"
    for axis in set(figure.where) & set(axes):
        known = dict.fromkeys(cell.labels[axis] for cell in sweep.cells if axis in cell.labels)
        if (label := str(figure.where[axis])) not in known:
            yield f"'figures' draws where {axis!r} is {label!r}: {suggest(label, known)}"


def _check_cooldowns(sweep: "Sweep", cooldowns: "CooldownSettings") -> Iterator[str]:
    if not cooldowns.steps or any(step < 2 for step in cooldowns.steps):
        yield "'cooldowns.steps' lists the steps at which copies end: expected 2 or more each"
    if len(set(cooldowns.steps)) < len(cooldowns.steps):
        yield f"'cooldowns.steps' is {list(cooldowns.steps)}, expected each step once"
    if not 0 < cooldowns.share < 1:
        yield f"'cooldowns.share' is {cooldowns.share}, expected between 0 and 1"
    if wrong := [cell for cell in sweep.cells if cell.recipe.schedule.name != "constant"]:
        yield f"'cooldowns' are of runs at a constant rate: {wrong[0].name} has another schedule"


def find_missing(sweep: "Sweep") -> Iterator[str]:
    """Data and models that are named and not there: found before anything is trained."""
    expected = f"expected a path from the folder {Path.cwd()}"
    parts = [part for cell in sweep.cells for part in cell.recipe.parts.values()]
    read = [part for part in parts if part.source in READ]
    if any(data.path is None for data in read):
        yield "'data.path' is not given, the folder or file that cells train on: add data.path=PATH"
    for path in dict.fromkeys(data.path for data in read if data.path is not None):
        if not Path(path).exists():
            yield f"'data.path' is {str(path)!r}, where nothing is: {expected}"
    for name, entry in sweep.measures.items():
        measure = find_measure(entry.verb)
        inputs = measure.inputs
        if entry.of is None and measure.check is not None:
            settings = build(measure.settings, entry.settings, f"measures.{name}.settings")
            try:
                measure.check(settings)
            except UserError as error:
                yield f"'measures.{name}.settings': {str(error).removesuffix('.')}"
        is_path = isinstance(inputs, ModelsAndData) and _needs_file(inputs)
        if entry.data is None or not (is_path or "/" in entry.data):
            continue  # some measures also know data by a name
        if not Path(entry.data).exists():
            yield f"'measures.{name}.data' is {entry.data!r}, where nothing is: {expected}"

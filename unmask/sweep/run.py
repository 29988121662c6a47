"""Running a sweep: every cell is a job, trained and measured once, wherever it is worked on.

What is done of a cell is kept, so that it goes on where it stopped. A cell that fails is noted, and
the rest goes on. Commands that run the same sweep in one folder share its cells.
"""

import gc
import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from shutil import copyfile, copytree
from typing import Any

import torch

from unmask.base.config import build, check_arguments
from unmask.base.devices import resolve_device
from unmask.base.engines import find_engine
from unmask.base.errors import UserError, suggest
from unmask.base.files import replace_folder, write_json
from unmask.base.runs import RECORD, read_record
from unmask.base.work import run_jobs
from unmask.measures.runner import run_measure, settle
from unmask.measures.table import find_measure
from unmask.net.hub import RECIPE, RUN_MODEL
from unmask.sweep.folder import (
    CELLS,
    FAILED,
    TRUNK,
    find_table,
    note_failure,
    open_folder,
    read_failure,
    read_rows,
)
from unmask.sweep.grid import Sweep, SweepCell, make_sweep, read_sweep
from unmask.training.journal import FILE as JOURNAL
from unmask.training.loop import CHECKPOINTS
from unmask.training.recipe import BudgetSettings
from unmask.training.run import Watch, choose_folder, train

DONE = "done.json"


@dataclass(frozen=True)
class SweepPoint:
    """A model that a cell trains: its only one, or a copy that cools down at a step."""

    cell: SweepCell
    folder: Path
    cooldown: int | None = None
    measures: Sequence[str] = ()
    """What is run of it: some measures only of a cell's last copy."""


@dataclass
class SweepOutcome:
    """How a call of `run_sweep` ended."""

    sweep: Sweep
    folder: Path
    done: list[str] = field(default_factory=list)
    """Cells that are trained and measured, by this call or before."""
    failed: dict[str, str] = field(default_factory=dict)
    """What went wrong in the others that were tried, by the name of the cell."""
    left: list[str] = field(default_factory=list)
    """Cells that were wanted and are neither: the minutes were over, or others are at work on
    them."""
    ended: str = "done"
    """`done`, or what stopped it: `minutes`, `SIGINT`, `SIGTERM`."""


@check_arguments()
def run_sweep(
    file: str | Path,
    out: str | Path | None = None,
    *changes: str,
    minutes: float | None = None,
    device: str = "auto",
    watch: Watch | None = None,
    on: str | None = None,
    cells: Sequence[str] = (),
    wait: bool = False,
) -> SweepOutcome:
    """Train and measure the cells of a sweep file that nobody has done or is at work on.

    Args:
        file: A YAML file as described in `unmask.sweep.grid`.
        out: The folder of the sweep, which several commands may share; by default one named after
            the file.
        changes: Entries of the file such as "best=bound", or settings of every cell such as
            "budget.steps=10".
        minutes: The longest time to work now; the same call goes on after it.
        device: "auto", "cpu", "cuda", "mps".
        watch: Opens something that is notified of progress, such as a progress bar.
        on: Where to work, such as "local:3" for three processes of this machine, as by
            `unmask.base.engines`: small networks leave a device idle between their kernels, runs
            and measures. By default in this process.
        cells: Names of the cells to do; all by default.
        wait: Also wait for cells that other commands are at work on, and do what they leave.
    """
    if minutes is not None and not 0 < minutes < math.inf:
        raise UserError(f"{minutes} minutes were given: expected a finite number above 0.")
    sweep, engine = read_sweep(file, changes), find_engine(on)
    known = [cell.name for cell in sweep.cells]
    for name in cells:
        if name not in known:
            raise UserError(f"the sweep has no cell {name!r:.100}: {suggest(name, known)}")
    resolve_device(device if engine is None else "cpu")
    folder, begun = choose_folder(file, out), time.time()
    open_folder(sweep, folder, device)
    deadline = None if minutes is None else begun + 60 * minutes
    work = SweepWork(sweep, folder, device, deadline, watch if engine is None else None)
    wanted, failed, ended = list(cells) or known, dict[str, str](), "done"
    try:
        with closing(run_jobs(work, dict.fromkeys(wanted, 1.0), engine, "cells", wait)) as jobs:
            for name, error in jobs:
                if error is not None:
                    failed[name] = read_failure(folder / CELLS / name, begun) or str(error)
    except _StoppedError as stop:
        ended = stop.ended
    done = [name for name in known if work.is_done(name)]
    left = [name for name in wanted if name not in done and name not in failed]
    if left and ended == "done" and work.minutes_left() <= 0:
        ended = "minutes"
    return SweepOutcome(sweep, folder, done, failed, left, ended)


def list_sweep_points(sweep: Sweep, folder: Path) -> Iterator[SweepPoint]:
    """Every model of the sweep, and where its run and its measures lie."""
    for cell in sweep.cells:
        yield from _list_own(sweep, cell, folder / CELLS / cell.name)


def _list_own(sweep: Sweep, cell: SweepCell, place: Path) -> Iterator[SweepPoint]:
    steps = [None] if sweep.cooldowns is None else sorted(sweep.cooldowns.steps)
    entries = [(name, entry) for name, entry in sweep.measures.items() if entry.of is None]
    for step in steps:
        is_last, folder = step == steps[-1], place if step is None else place / f"step-{step}"
        measures = [name for name, entry in entries if is_last or not entry.last_only]
        yield SweepPoint(cell, folder, step, measures)


def read_outcome(folder: Path) -> SweepOutcome:
    """How far the sweep of a folder is, from what lies there; nothing is run."""
    values = dict(read_record(folder).settings)
    forced, recipes = values.pop("forced", {}), values.pop("recipes", {})
    sweep = make_sweep(values, forced, folder / RECORD, recipes)
    outcome = SweepOutcome(sweep, folder)
    for cell in sweep.cells:
        place = folder / CELLS / cell.name
        if _is_done(sweep, cell, place):
            outcome.done.append(cell.name)
        elif (problem := read_failure(place)) is not None:
            outcome.failed[cell.name] = problem
    return outcome


def _is_done(sweep: Sweep, cell: SweepCell, place: Path) -> bool:
    """Whether a cell was done, with measures that the file has got since."""
    return (place / DONE).is_file() and all(
        find_table(sweep.measures[name], name, point.folder).is_file()
        for point in _list_own(sweep, cell, place)
        for name in point.measures
    )


class _StoppedError(SystemExit):
    """A signal ended a training, which has saved itself: the process is to end, too."""

    def __init__(self, ended: str):
        super().__init__(128 + signal.Signals[ended])
        self.ended = ended


@dataclass
class SweepWork:
    """The cells of a sweep by their names, each trained and measured."""

    sweep: Sweep
    folder: Path
    device: str
    deadline: float | None
    watch: Watch | None = None
    shapes: str = ""
    """The shapes of the cell that was trained last, for which code is compiled."""

    @cached_property
    def cells(self) -> dict[str, SweepCell]:
        return {cell.name: cell for cell in self.sweep.cells}

    def is_done(self, key: str) -> bool:
        return _is_done(self.sweep, self.cells[key], self.folder / CELLS / key)

    def open(self) -> Callable[[str], None]:
        return self._do

    def _do(self, key: str) -> None:
        cell, place = self.cells[key], self.folder / CELLS / key
        try:
            ended = self.work(cell, place)
        except Exception as error:
            note_failure(place, cell, error)
            raise
        if ended not in ("done", "minutes"):
            raise _StoppedError(ended)

    def work(self, cell: SweepCell, place: Path) -> str:
        """Do what is missing of a cell; how that ended."""
        points = list(_list_own(self.sweep, cell, place))
        for point in points:
            ended = self._train(point, place / TRUNK)
            if ended != "done":
                return ended
            for name in point.measures:
                if self.minutes_left() <= 0:
                    return "minutes"
                self._measure(name, point)
        (place / FAILED).unlink(missing_ok=True)
        write_json(place / DONE, {"points": len(points)})
        return "done"

    def _train(self, point: SweepPoint, trunk: Path) -> str:
        run, cooldowns = point.folder / "train", self.sweep.cooldowns
        if (run / RUN_MODEL).is_dir():
            return "done"
        if point.cooldown is None or cooldowns is None:
            return self._resume(run, point.cell)
        # 1. The trunk, at a constant rate, up to where the copy's rate begins to fall.
        if not (run / RECIPE).is_file():
            stop = cooldowns.find_start(point.cooldown)
            if (ended := self._resume(trunk, point.cell, stop)) != "done":
                return ended
            # 2. A copy of its run, without its model.
            with replace_folder(run) as draft:
                for name in (RECIPE, RECORD, JOURNAL):
                    copyfile(trunk / name, draft / name)
                copytree(trunk / CHECKPOINTS, draft / CHECKPOINTS)
        # 3. The copy to its end.
        falling = ("schedule.name=wsd", f"schedule.decay={cooldowns.share}")
        return self._resume(run, point.cell, point.cooldown, *falling)

    def _resume(self, run: Path, cell: SweepCell, steps: int | None = None, *changes: str) -> str:
        """Train a run to its end, or to a step, from where it stopped; how that ended."""
        if (left := self.minutes_left()) <= 0:
            return "minutes"
        minutes = None if self.deadline is None else left
        options: dict[str, Any] = {"minutes": minutes, "device": self.device}
        options |= {"watch": self.watch}
        self._forget_kernels(cell)
        if (run / RECIPE).is_file():
            budget = () if steps is None else (f"budget={{steps: {steps}}}",)
            options |= {"resume": run, "allow_changes": steps is not None}
            outcome = train(None, None, *budget, *changes, **options)
        else:
            recipe = cell.recipe
            if steps is not None:
                recipe = replace(recipe, budget=BudgetSettings(steps=steps))
            outcome = train(recipe, run, **options)
        assert outcome is not None, "each process of a sweep works alone"
        return outcome.ended

    def minutes_left(self) -> float:
        return math.inf if self.deadline is None else (self.deadline - time.time()) / 60

    def _forget_kernels(self, cell: SweepCell) -> None:
        """Drop compiled code of other shapes: the compiler gives up where there are too many."""
        recipe = cell.recipe
        shapes = (
            recipe.kind,
            recipe.network,
            recipe.batch,
            recipe.rows,
            recipe.data.context,
            recipe.objective,
        )
        if repr(shapes) != self.shapes:
            gc.collect()
            torch.compiler.reset()
            self.shapes = repr(shapes)

    def _measure(self, name: str, point: SweepPoint) -> None:
        entry, out = self.sweep.measures[name], point.folder / name
        measure = find_measure(entry.verb)
        known = {each.name for each in fields(measure.settings)}
        values = ({"device": self.device} if "device" in known else {}) | entry.settings
        settings = settle(build(measure.settings, values, f"measures.{name}.settings"))
        given = {"models": [f"model={point.folder / 'train' / RUN_MODEL}"], "data": entry.data}
        run_measure(measure, measure.inputs.read(given, settings), settings, out)
        for other, own in self.sweep.measures.items():
            if name in (other, own.of):
                read_rows(other, own, point.folder)  # columns that are not there are found early
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # other processes share the device

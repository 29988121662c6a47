"""Running a sweep: every cell is trained and measured once, by whichever process claims it.

Processes that run the same sweep in one folder, on one machine or many, share its cells: a cell is
claimed by locking a file, and what is done of it is kept, so that a cell goes on where it stopped.
A cell that fails is noted, and the rest goes on.
"""

import gc
import logging
import math
import multiprocessing
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from multiprocessing.context import SpawnProcess
from pathlib import Path
from shutil import copyfile, copytree
from typing import Any

import torch

from unmask.base.config import build, check_arguments
from unmask.base.devices import MachineShare, resolve_device
from unmask.base.errors import UserError
from unmask.base.files import replace_folder, write_json
from unmask.base.locks import claim
from unmask.base.runs import RECORD, read_record
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

_log = logging.getLogger(__name__)

CLAIM, DONE = "claim.lock", "done.json"


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
    elsewhere: list[str] = field(default_factory=list)
    """Cells that other processes are at work on."""
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
    processes: int = 1,
) -> SweepOutcome:
    """Train and measure the cells of a sweep file that nobody has done or is at work on.

    Args:
        file: A YAML file as described in `unmask.sweep.grid`.
        out: The folder of the sweep, which several processes may share; by default one named after
            the file.
        changes: Entries of the file such as "best=bound", or settings of every cell such as
            "budget.steps=10".
        minutes: The longest time to work now; the same call goes on after it.
        device: "auto", "cpu", "cuda", "mps".
        watch: Opens something that is notified of progress, such as a progress bar.
        processes: How many share the cells on this machine, this one included: small networks leave
            a device idle between their kernels, runs and measures.
    """
    if processes < 1:
        raise UserError(f"{processes} processes were given: expected 1 or more.")
    if minutes is not None and not 0 < minutes < math.inf:
        raise UserError(f"{minutes} minutes were given: expected a finite number above 0.")
    sweep = read_sweep(file, changes)
    share = MachineShare.divide(resolve_device(device), processes)
    folder = choose_folder(file, out)
    open_folder(sweep, folder, device)
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    worker, begun = _CellWorker(sweep, folder, device, deadline, watch), time.time()
    settings = {"minutes": minutes, "device": device}
    started = _start_others(processes, share, (file, folder, *changes), settings)
    with share.taken(), started as others:
        outcome = worker.work_through(begun)
        if outcome.ended not in ("done", "minutes"):
            for other in others:
                other.terminate()
    if processes > 1 and outcome.ended in ("done", "minutes"):
        outcome = worker.work_through(begun)  # what the others did, or left
    return outcome


@contextmanager
def _start_others(
    processes: int, share: MachineShare, arguments: tuple[Any, ...], settings: dict[str, Any]
) -> Generator[list[SpawnProcess]]:
    """All processes of a sweep but this one; wait for their end, or stop them with this one."""
    spawn = multiprocessing.get_context("spawn")
    others = [
        spawn.Process(target=_join_sweep, args=(share, arguments, settings))
        for _ in range(processes - 1)
    ]
    for other in others:
        other.start()
    try:
        yield others
        for other in others:
            other.join()
    except BaseException:
        for other in others:
            other.terminate()
        raise


def _join_sweep(share: MachineShare, arguments: tuple[Any, ...], settings: dict[str, Any]) -> None:
    """What one of the other processes does."""
    with share.taken():
        run_sweep(*arguments, **settings)


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


@dataclass
class _CellWorker:
    """Trains and measures one cell after the other."""

    sweep: Sweep
    folder: Path
    device: str
    deadline: float | None
    watch: Watch | None
    shapes: str = ""
    """The shapes of the cell that was trained last, for which code is compiled."""

    def work_through(self, begun: float) -> SweepOutcome:
        """Do the cells that nobody has done, failed at since `begun`, or is at work on."""
        outcome = SweepOutcome(self.sweep, self.folder)
        for cell in self.sweep.cells:
            place = self.folder / CELLS / cell.name
            if _is_done(self.sweep, cell, place):
                outcome.done.append(cell.name)
                continue
            # A failure of another process, while this one was at work.
            if (problem := read_failure(place, begun)) is not None:
                outcome.failed[cell.name] = problem
                continue
            if outcome.ended == "done" and self._minutes_left() <= 0:
                outcome.ended = "minutes"
            if outcome.ended != "done":
                continue  # later cells may be done all the same
            with claim(place / CLAIM) as is_own:
                if not is_own:
                    outcome.elsewhere.append(cell.name)
                    continue
                try:
                    ended = self.work(cell, place)
                except Exception as error:
                    outcome.failed[cell.name] = note_failure(place, cell, error)
                    continue
            if ended == "done":
                outcome.done.append(cell.name)
            outcome.ended = ended
        return outcome

    def work(self, cell: SweepCell, place: Path) -> str:
        """Do what is missing of a cell; how that ended."""
        points = list(_list_own(self.sweep, cell, place))
        for point in points:
            ended = self._train(point, place / TRUNK)
            if ended != "done":
                return ended
            for name in point.measures:
                if self._minutes_left() <= 0:
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
        if (left := self._minutes_left()) <= 0:
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

    def _minutes_left(self) -> float:
        return math.inf if self.deadline is None else (self.deadline - time.monotonic()) / 60

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

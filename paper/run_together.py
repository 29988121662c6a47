"""Stages side by side as shared jobs, each as soon as what it needs is there."""

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from run_stages import RUNS, Stage

from unmask.base.errors import UserError
from unmask.base.reading import read_text
from unmask.base.work import WorkEngine, run_jobs

IsDone = Callable[[Stage], bool]
UNMEASURED = 1.0
"""Minutes of a stage that was never measured."""


@dataclass(frozen=True)
class StageWork:
    """Stages by their names, each a command of its own, which leaves a mark when it is done."""

    folder: Path
    command: Sequence[str]
    needs: Mapping[str, Sequence[str]]
    deadline: float | None

    def open(self) -> Callable[[str], None]:
        return self._run

    def is_done(self, key: str) -> bool:
        return (self.folder / f"{key}.done").is_file()

    def _run(self, key: str) -> None:
        words, path = [*self.command, "--stage", key], find_log(key)
        if self.deadline is not None:
            words += ["--minutes", f"{(self.deadline - time.time()) / 60:.3f}"]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as log:
            process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
        try:
            status = process.wait()
        finally:  # it keeps what it has, and leaves
            process.terminate()
            process.wait()
        if status != 0:
            lines = read_text(path).splitlines()[-5:]
            raise UserError("\n".join(["it failed", *(f"    {line}" for line in lines)]))
        if self.deadline is None or time.time() < self.deadline:
            (self.folder / f"{key}.done").touch()


def find_log(name: str) -> Path:
    """Where a stage's output is."""
    return RUNS / f"{name}.log"


def run_together(
    stages: Mapping[str, Stage],
    wanted: Iterable[Stage],
    is_done: IsDone,
    command: Sequence[str],
    engine: WorkEngine,
    deadline: float | None = None,
) -> tuple[list[str], list[str]]:
    """Run stages and what they need, or what the time allows (`time.time()`); the names of those
    that were done, and of those that failed, which stop only what needs them."""
    minutes, needs = rank_stages(stages, wanted, is_done)
    done, failed = list[str](), list[str]()
    RUNS.mkdir(parents=True, exist_ok=True)
    print(f"{len(minutes)} stages to do, their output in {find_log('STAGE')}", flush=True)
    with tempfile.TemporaryDirectory(prefix=".stages-", dir=RUNS) as scratch:
        work = StageWork(Path(scratch).absolute(), command, needs, deadline)
        with closing(run_jobs(work, minutes, engine, "stages")) as jobs:
            for name, error in jobs:
                print(f"{name}: done" if error is None else str(error), flush=True)
                (done if error is None else failed).append(name)
    return done, failed


def rank_stages(
    stages: Mapping[str, Stage], wanted: Iterable[Stage], is_done: IsDone
) -> tuple[dict[str, float], dict[str, list[str]]]:
    """For each stage to do: minutes from its start to the end of the longest chain of stages that
    needs it, and those of the other stages that it needs."""
    waiting = dict[str, Stage | None]()

    def add(stage: Stage) -> None:
        if stage.name in waiting:
            return
        waiting[stage.name] = None
        if not is_done(stage):
            for name in stage.needs:
                if name in stages:
                    add(stages[name])
            del waiting[stage.name]  # after all that it needs
            waiting[stage.name] = stage

    for stage in wanted:
        add(stage)
    todo = {name: stage for name, stage in waiting.items() if stage is not None}
    minutes = dict[str, float]()
    for name, stage in reversed(todo.items()):
        later = [minutes[each.name] for each in todo.values() if name in each.needs]
        minutes[name] = (stage.minutes or UNMEASURED) + max(later, default=0.0)
    needs = {name: [each for each in stage.needs if each in todo] for name, stage in todo.items()}
    return {name: minutes[name] for name in todo}, needs

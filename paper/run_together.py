"""Stages side by side on one GPU, each in its own process as soon as what it needs is there."""

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from run_stages import RUNS, Stage

from unmask.base.reading import read_text

IsDone = Callable[[Stage], bool]
UNMEASURED = 1.0
"""Minutes of a stage that was never measured."""


class Together:
    """Stages that are waiting, running, done and failed."""

    def __init__(
        self,
        stages: dict[str, Stage],
        wanted: Iterable[Stage],
        is_done: IsDone,
        command: Sequence[str],
        processes: int,
    ):
        self.stages, self.is_done = stages, is_done
        self.command, self.processes = command, processes
        self.waiting: dict[str, Stage] = {}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.done: list[Stage] = []
        self.failed: list[str] = []
        self._seen: set[str] = set()
        for stage in wanted:
            self._add(stage)
        self.urgency = self._rank()

    def _add(self, stage: Stage) -> None:
        """Let a stage wait, after all that it needs; nothing waits twice, or if it is done."""
        if stage.name in self._seen:
            return
        self._seen.add(stage.name)
        if self.is_done(stage):
            return
        for name in stage.needs:
            if name in self.stages:
                self._add(self.stages[name])
        self.waiting[stage.name] = stage

    def _rank(self) -> dict[str, float]:
        """Minutes from the start of a stage to the end of the longest chain that needs it."""
        ranks: dict[str, float] = {}
        for name, stage in reversed(self.waiting.items()):
            later = [ranks[each.name] for each in self.waiting.values() if name in each.needs]
            ranks[name] = (stage.minutes or UNMEASURED) + max(later, default=0.0)
        return ranks

    def run(self, deadline: float | None = None) -> None:
        """All of them, or what the time allows (`time.monotonic()`); a failure stops no other."""
        try:
            while self.waiting or self.running:
                if deadline is None or time.monotonic() < deadline:
                    self._start(deadline)
                if not self.running:
                    break
                time.sleep(0.1)
                self._collect()
        finally:  # Ctrl-C: what runs keeps what it has, and leaves
            for process in self.running.values():
                process.terminate()
            for process in self.running.values():
                process.wait()

    def _start(self, deadline: float | None) -> None:
        ready = [
            stage
            for stage in self.waiting.values()
            if not any(name in self.waiting or name in self.running for name in stage.needs)
        ]
        ready.sort(key=lambda stage: -self.urgency[stage.name])
        for stage in ready[: self.processes - len(self.running)]:
            words = [*self.command, "--stage", stage.name]
            if deadline is not None:
                words += ["--minutes", f"{(deadline - time.monotonic()) / 60:.3f}"]
            del self.waiting[stage.name]
            print(f"{stage.name}: begins, its output in {self._log_path(stage)}", flush=True)
            self._log_path(stage).parent.mkdir(parents=True, exist_ok=True)
            threads = str(max(1, (os.cpu_count() or 1) // self.processes))
            limits = {"OMP_NUM_THREADS": threads, "TORCHINDUCTOR_COMPILE_THREADS": threads}
            with self._log_path(stage).open("ab") as log:
                self.running[stage.name] = subprocess.Popen(
                    words, stdout=log, stderr=subprocess.STDOUT, env=limits | os.environ
                )

    def _collect(self) -> None:
        for name, process in list(self.running.items()):
            if process.poll() is None:
                continue
            del self.running[name]
            stage = self.stages[name]
            if process.returncode != 0:
                self._give_up(stage)
            elif self.is_done(stage):
                print(f"{name}: done", flush=True)
                self.done.append(stage)
            else:  # its minutes were up
                self._drop_what_needs(name)

    def _give_up(self, stage: Stage) -> None:
        self.failed.append(stage.name)
        lines = read_text(self._log_path(stage)).splitlines()[-5:]
        print("\n".join([f"{stage.name}: failed", *(f"    {line}" for line in lines)]), flush=True)
        self._drop_what_needs(stage.name)

    def _drop_what_needs(self, name: str) -> None:
        for stage in list(self.waiting.values()):
            if name in stage.needs and stage.name in self.waiting:
                del self.waiting[stage.name]
                self._drop_what_needs(stage.name)

    @staticmethod
    def _log_path(stage: Stage) -> Path:
        return RUNS / f"{stage.name}.log"

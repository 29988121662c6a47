"""Jobs for tests of shared work: each one leaves a small file."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from unmask.base.errors import UserError


@dataclass(frozen=True)
class FileJobs:
    """Each job sleeps for its seconds, and writes a file; some fail, and some die with a worker."""

    folder: Path
    seconds: Mapping[str, float]
    failing: tuple[str, ...] = ()
    deadly: Mapping[str, int] = field(default_factory=dict)
    """How many workers a job kills before it ends."""
    deadline: float | None = None

    def open(self) -> Callable[[str], None]:
        self._note("opened", "")
        return self._do

    def is_done(self, key: str) -> bool:
        return (self.folder / f"{key}.part").is_file()

    def _do(self, key: str) -> None:
        self._note("begun", key)
        if len([each for each in self.read("begun") if each[0] == key]) <= self.deadly.get(key, 0):
            os.kill(os.getpid(), signal.SIGKILL)
        if key in self.failing:
            raise UserError(f"{key} cannot be done: expected another.")
        time.sleep(self.seconds[key])
        draft = self.folder / f".{key}.{os.getpid()}"
        draft.write_text(f"the part of {key}")
        draft.rename(self.folder / f"{key}.part")

    def _note(self, name: str, key: str) -> None:
        share = [os.environ.get(name) for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")]
        with (self.folder / name).open("a") as file:
            file.write(f"{key} {os.getpid()} {' '.join(map(str, share))}\n")

    def read(self, name: str) -> list[list[str]]:
        """What workers noted: key, process, threads and GPUs."""
        path = self.folder / name
        lines = path.read_text().splitlines() if path.is_file() else []
        return [line.split(" ") for line in lines]

    def parts(self) -> dict[str, str]:
        return {path.stem: path.read_text() for path in sorted(self.folder.glob("*.part"))}

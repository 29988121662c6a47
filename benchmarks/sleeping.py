"""Jobs that sleep, for what an engine costs; workers import them from here, without torch."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Sleeping:
    """Each job sleeps for its seconds, and writes who it was."""

    folder: Path
    seconds: Mapping[str, float]
    deadline: float | None = None

    def open(self) -> Callable[[str], None]:
        return self._do

    def is_done(self, key: str) -> bool:
        return (self.folder / f"{key}.part").is_file()

    def _do(self, key: str) -> None:
        time.sleep(self.seconds[key])
        draft = self.folder / f".{key}.{os.getpid()}"
        draft.write_text(f"the part of {key}")
        draft.rename(self.folder / f"{key}.part")

    def parts(self) -> dict[str, str]:
        return {path.stem: path.read_text() for path in sorted(self.folder.glob("*.part"))}

"""The run's journal: a line of JSON per record in `metrics.jsonl`, and TensorBoard on request."""

import json
import math
import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

from unmask.base.errors import UserError
from unmask.base.extras import name_install
from unmask.base.files import replace_file
from unmask.base.reading import parse_json, read_text

FILE = "metrics.jsonl"


class Journal:
    """Appends records; records after the step that a run resumes from are removed."""

    def __init__(self, folder: Path, step: int, tensorboard: bool = False):
        self.path = folder / FILE
        kept = [record for record in read_journal(folder) if record["step"] <= step]
        with replace_file(self.path) as draft:
            draft.write_text("".join(map(_format_line, kept)), encoding="utf-8")
        self._file = self.path.open("a", encoding="utf-8")
        self._board = _open_board(folder / "tensorboard", step) if tensorboard else None

    def write(self, record: dict[str, Any]) -> None:
        """Add a record; its `step` says when."""
        try:
            self._file.write(_format_line(record))
            self._file.flush()
        except OSError as error:
            with suppress(OSError):  # closing tries once more to write what is left
                self._file.close()
            reason = os.strerror(error.errno).lower() if error.errno else str(error)
            raise UserError(
                f"cannot write {self.path}: {reason}; free some room, then continue with "
                f"`unmask train --resume {shlex.quote(str(self.path.parent))}`."
            ) from error
        if self._board is not None:
            for name, value in record.items():
                if isinstance(value, int | float) and name != "step":
                    self._board.add_scalar(name, value, record["step"])

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


def read_journal(folder: Path) -> list[dict[str, Any]]:
    """All records of a run; a line that a kill cut short is left out."""
    path = folder / FILE
    if not path.is_file():
        return []
    records = []
    for line in read_text(path).splitlines():
        try:
            records.append(parse_json(line, str(path)))
        except UserError:
            break
    return records


def find_last_loss(folder: Path, step: int) -> float | None:
    """The loss of the last record up to a step; None where none has one."""
    losses = [
        record["loss"]
        for record in read_journal(folder)
        if record["step"] <= step and record.get("loss") is not None
    ]
    return losses[-1] if losses else None


def _format_line(record: dict[str, Any]) -> str:
    """A record as a line of JSON, in which values that are not finite become null."""
    plain = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.items()
    }
    return json.dumps(plain, allow_nan=False) + "\n"


def _open_board(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            "machine.tensorboard needs the package tensorboard: "
            f"{name_install('tensorboard')}, or leave it off."
        ) from None
    return SummaryWriter(str(folder), purge_step=step + 1)

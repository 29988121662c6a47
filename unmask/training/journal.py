"""The run's journal: a JSON line a record in `metrics.jsonl`, TensorBoard beside it on request."""

import json
from pathlib import Path
from typing import Any

from unmask.base.errors import UserError
from unmask.base.files import replace_file

FILE = "metrics.jsonl"


class Journal:
    """Appends records; what was written after the step that a run goes on from is taken back."""

    def __init__(self, folder: Path, step: int, tensorboard: bool = False):
        self.path = folder / FILE
        kept = [record for record in read_journal(folder) if record["step"] <= step]
        with replace_file(self.path) as draft:
            draft.write_text("".join(json.dumps(record) + "\n" for record in kept))
        self._file = self.path.open("a", encoding="utf-8")
        self._board = _open_board(folder / "tensorboard", step) if tensorboard else None

    def write(self, record: dict[str, Any]) -> None:
        """Add a record; its `step` says when."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
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
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def _open_board(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            "machine.tensorboard needs the package tensorboard: pip install 'unmask[tensorboard]', "
            "or leave it off."
        ) from None
    return SummaryWriter(str(folder), purge_step=step + 1)

"""Run folders: where artefacts go, with what made them, so that a run resumes or is refused."""

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from unmask import __version__
from unmask.base.config import build
from unmask.base.errors import UserError
from unmask.base.files import write_json
from unmask.base.reading import read_json_object

RUN_FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What `run.json` says."""

    format: int
    verb: str
    settings: dict
    inputs: dict = field(default_factory=dict)
    """What the run was made from: models and data, with digests of their contents."""
    versions: dict
    """Of the programs that started the run, and the machine."""


def open_run(
    folder: str | Path,
    verb: str,
    settings: Mapping[str, Any],
    inputs: Mapping[str, Any] | None = None,
    loose: frozenset[str] = frozenset(),
    machine: str = "",
) -> Path:
    """The run folder, made where missing, with a `run.json` that says how to repeat the run.

    A folder that holds a run of other settings or inputs is refused: its artefacts would be mixed
    up. Settings named in `loose` may differ. `machine` says what the run was begun on.
    """
    folder, inputs = Path(folder), dict(inputs or {})
    if (folder / "run.json").is_file():
        before = read_record(folder)
        old, new = before.settings | before.inputs, {**settings, **inputs}
        changed = [
            f"{key} was {old.get(key)!r} and is now {new.get(key)!r}"
            for key in sorted((old.keys() | new.keys()) - loose)
            if old.get(key) != new.get(key)
        ]
        if changed or before.verb != verb:
            what = "; ".join(changed) or f"it is a run of `unmask {before.verb}`"
            raise UserError(
                f"{folder} holds another run ({what}): choose another folder, or remove this one."
            )
        return folder
    versions = {"unmask": __version__, "python": platform.python_version()}
    record = RunRecord(
        format=RUN_FORMAT,
        verb=verb,
        settings=dict(settings),
        inputs=inputs,
        versions=versions | {"torch": version("torch"), "machine": machine},
    )
    write_json(folder / "run.json", asdict(record))
    return folder


def read_record(folder: str | Path, formats: tuple[int, ...] = (RUN_FORMAT,)) -> RunRecord:
    """What a folder's `run.json` says; a folder without one, or of another version, is refused."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: expected the folder of a run.")
    if not (folder / "run.json").is_file():
        raise UserError(f"{folder} has no run.json: expected the folder of a run.")
    record = build(RunRecord, read_json_object(folder / "run.json"), f"{folder}/run.json")
    if record.format not in formats:
        made_by = record.versions.get("unmask", "another version")
        raise UserError(
            f"{folder} was written by unmask {made_by} in run format {record.format}, expected "
            f"{RUN_FORMAT}: make the run anew with this version."
        )
    return record

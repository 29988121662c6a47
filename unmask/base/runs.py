"""Run folders: where artefacts go, with the settings and versions that made them."""

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from unmask import __version__
from unmask.base.config import build
from unmask.base.errors import UserError
from unmask.base.files import read_json_object, write_json

RUN_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What `run.json` says."""

    format: int
    verb: str
    settings: dict
    versions: dict
    """Of the programs that started the run."""


def open_run(folder: str | Path, verb: str, settings: Mapping[str, Any]) -> Path:
    """The run folder, made where missing, with a `run.json` that says how to repeat the run.

    A folder that holds a run with other settings is refused: its artefacts would be mixed up.
    """
    folder = Path(folder)
    if (folder / "run.json").is_file():
        before = build(RunRecord, read_json_object(folder / "run.json"), f"{folder}/run.json")
        keys = sorted(before.settings.keys() | settings.keys())
        changed = [
            f"{key} was {before.settings.get(key)!r} and is now {settings.get(key)!r}"
            for key in keys
            if before.settings.get(key) != settings.get(key)
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
        versions=versions | {"torch": version("torch")},
    )
    write_json(folder / "run.json", asdict(record))
    return folder

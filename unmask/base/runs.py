"""Run folders: where artefacts go, with the settings and versions that made them."""

import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from unmask import __version__
from unmask.base.errors import UserError
from unmask.base.files import read_json, write_json

RUN_FORMAT = 1


def open_run(folder: str | Path, verb: str, settings: Mapping[str, Any]) -> Path:
    """The run folder, made where missing, with a `run.json` that says how to repeat the run.

    A folder that holds a run with other settings is refused: its artefacts would be mixed up.
    """
    folder = Path(folder)
    if (folder / "run.json").is_file():
        before = read_json(folder / "run.json")
        changed = [
            f"{key} was {before['settings'].get(key)!r} and is now {value!r}"
            for key, value in settings.items()
            if before["settings"].get(key) != value
        ]
        if changed or before["verb"] != verb:
            what = "; ".join(changed) or f"it is a run of `unmask {before['verb']}`"
            raise UserError(
                f"{folder} holds another run ({what}): choose another folder, or remove this one."
            )
    record = {
        "format": RUN_FORMAT,
        "verb": verb,
        "settings": dict(settings),
        "versions": {
            "unmask": __version__,
            "python": platform.python_version(),
            "torch": version("torch"),
        },
    }
    write_json(folder / "run.json", record)
    return folder

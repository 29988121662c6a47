"""Run folders of training: what a new run writes, and what a resumed one reads."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from unmask.base.config import build
from unmask.base.errors import UserError
from unmask.base.files import write_json
from unmask.base.reading import read_json_object
from unmask.base.runs import RunRecord, open_run
from unmask.training.recipe import Recipe
from unmask.training.recipes_io import list_changes, read_recipe, write_recipe

FILE, RECORD = "recipe.yaml", "run.json"


def begin_run(folder: Path, recipe: Recipe) -> None:
    """Make the folder of a new run; one that already holds a run is refused."""
    if (folder / RECORD).is_file():
        raise UserError(
            f"{folder} already holds a run: resume it by --resume {folder}, or choose another "
            "folder with --out."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty: choose another folder with --out.")
    open_run(folder, "train", asdict(recipe))
    write_recipe(recipe, folder / FILE)


def reopen_run(folder: Path, overrides: Sequence[str], allow_changes: bool) -> Recipe:
    """The recipe of a run to resume; changed settings need permission.

    Settings are compared with the run's record, so that an edited recipe is noticed as well.
    """
    if not (folder / FILE).is_file():
        raise UserError(f"{folder} holds no training run: expected a {FILE} in it.")
    now = read_recipe(folder / FILE, overrides)
    if (folder / RECORD).is_file():
        record = _read_record(folder)
        before = build(Recipe, record.settings, f"{folder / RECORD}")
    else:
        before = read_recipe(folder / FILE)
    changes = list_changes(before, now)
    if changes and not allow_changes:
        raise UserError(
            f"{folder} was started with other settings: {'; '.join(changes)}. The run would not be "
            "the same any more; give --allow-changes to resume it all the same."
        )
    return now


def record_changes(folder: Path, recipe: Recipe) -> None:
    """Write the settings that a run is resumed with into the folder's recipe and record."""
    write_recipe(recipe, folder / FILE)
    if (folder / RECORD).is_file():
        record = replace(_read_record(folder), settings=asdict(recipe))
        write_json(folder / RECORD, asdict(record))


def _read_record(folder: Path) -> RunRecord:
    return build(RunRecord, read_json_object(folder / RECORD), str(folder / RECORD))

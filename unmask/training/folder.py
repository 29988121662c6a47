"""Run folders of training: what a new run writes, and what a resumed one goes on from."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from unmask.base.errors import UserError
from unmask.base.runs import open_run
from unmask.training.cookbook import list_changes, read_recipe, write_recipe
from unmask.training.recipe import Recipe

FILE = "recipe.yaml"


def begin_run(folder: Path, recipe: Recipe) -> None:
    """Make the folder of a new run; one that already holds a run is refused."""
    if (folder / "run.json").is_file():
        raise UserError(
            f"{folder} already holds a run: go on with it by --resume {folder}, or choose another "
            "folder with --out."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty: choose another folder with --out.")
    open_run(folder, "train", asdict(recipe))
    write_recipe(recipe, folder / FILE)


def reopen_run(folder: Path, overrides: Sequence[str], allow_changes: bool) -> Recipe:
    """The recipe of a run that is gone on with; changed settings need permission."""
    if not (folder / FILE).is_file():
        raise UserError(f"{folder} holds no training run: expected a {FILE} in it.")
    before = read_recipe(folder / FILE)
    now = read_recipe(folder / FILE, overrides)
    changes = list_changes(before, now)
    if changes and not allow_changes:
        raise UserError(
            f"{folder} was started with other settings: {'; '.join(changes)}. The run would not be "
            "the same any more; give --allow-changes to go on all the same."
        )
    return now

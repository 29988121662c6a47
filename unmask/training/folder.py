"""Run folders of training: what a new run writes, and what a resumed one reads."""

import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from unmask.base.code import digest_code
from unmask.base.config import build
from unmask.base.errors import UserError
from unmask.base.files import remove_files
from unmask.base.locks import RunRefusedError
from unmask.base.plugins import require_plugins
from unmask.base.reading import read_json_object
from unmask.base.runs import (
    DIGESTS,
    RECORD,
    RunRecord,
    compare_digests,
    compare_inputs,
    is_passing,
    make_record,
    note_versions,
    write_record,
)
from unmask.net.families import digest_model
from unmask.net.hub import RECIPE
from unmask.training.build import TrainingJob
from unmask.training.recipe import Recipe
from unmask.training.recipes_io import list_changes, read_recipe, write_recipe

_log = logging.getLogger(__name__)

FILES = (
    RECIPE,
    "metrics.jsonl",
    "checkpoints/step-*/*",
    "checkpoints/.step-*.draft/*",
    "model/*.safetensors",
    "model/*.json",
    "bad-step-*.safetensors",
    "loss.png",
    "loss.pdf",
    "tensorboard/events.*",
)
"""Patterns of all that a run leaves in its folder."""


def describe_inputs(job: TrainingJob) -> dict[str, Any]:
    """What a run is made from, by content: its rows, and the model that it starts from."""
    digests = {"the data": job.examples.digest()}
    if job.recipe.start.model is not None:
        digests["the start model"] = digest_model(job.recipe.start.model)
    return {"data": job.examples.label, DIGESTS: digests}


def refuse_used(folder: Path, fresh: bool) -> None:
    """Raise where no new run may begin: with `fresh` a folder may hold an older one."""
    if not (folder / RECORD).is_file():
        if folder.is_dir() and not all(map(is_passing, folder.iterdir())):
            raise UserError(
                f"{folder} is not empty and has no {RECORD} of a run that wrote what is there: "
                "choose another folder with --out."
            )
    elif not fresh:
        raise UserError(
            f"{folder} already holds a run: resume it by --resume "
            f"{shlex.quote(str(folder))}, begin anew with "
            "--fresh, or choose another folder with --out."
        )
    elif _read_record(folder).verb != "train":
        raise UserError(f"{folder} holds no training run: choose another folder with --out.")


def describe_run(job: TrainingJob, given: Mapping[str, object]) -> RunRecord:
    """The record of a run that begins now; `given` are functions that it calls, by argument."""
    code = {
        f"the {name} given": {"code": digest_code(value)}
        for name, value in given.items()
        if value is not None
    }
    plugins = job.recipe.describe_plugins()
    return make_record(
        "train", asdict(job.recipe), describe_inputs(job), code=code, plugins=plugins
    )


def begin_run(folder: Path, recipe: Recipe, record: RunRecord, fresh: bool) -> None:
    """Make the folder of a new run; one that already holds a run is refused, or removed."""
    refuse_used(folder, fresh)
    if (folder / RECORD).is_file():
        remove_files(folder, [*FILES, RECORD])
    # With the recipe alone a run can be resumed, with the record alone it could not.
    write_recipe(recipe, folder / RECIPE)
    write_record(folder, record)


def check_inputs(folder: Path, now: RunRecord, allow_changes: bool) -> None:
    """Refuse to resume a run on other data, code or from another model, without permission."""
    before = _read_record(folder) if (folder / RECORD).is_file() else None
    if before is None or not before.inputs.get(DIGESTS):
        _log.warning("%s does not say what its data held: they cannot be compared.", folder)
        return
    changes = compare_inputs(before.inputs, now.inputs) + compare_digests(before.code, now.code)
    if changes and not allow_changes:
        raise RunRefusedError(
            f"{folder} was started with other inputs: {'; '.join(changes)}. The run would not be "
            "the same any more; give --allow-changes to resume it all the same, or begin anew with "
            "its recipe and --fresh."
        )


def reopen_run(folder: Path, overrides: Sequence[str], allow_changes: bool) -> Recipe:
    """The recipe of a run to resume; changed settings need permission.

    Settings are compared with the run's record, so that an edited recipe is noticed as well.
    """
    if not (folder / RECIPE).is_file():
        raise UserError(f"{folder} holds no training run: expected a {RECIPE} in it.")
    if (folder / RECORD).is_file():
        require_plugins(_read_record(folder).plugins, str(folder))
    now = read_recipe(folder / RECIPE, overrides)
    if (folder / RECORD).is_file():
        record = _read_record(folder)
        before = build(Recipe, record.settings, f"{folder / RECORD}")
    else:
        before = read_recipe(folder / RECIPE)
    changes = list_changes(before, now)
    if changes and not allow_changes:
        raise UserError(
            f"{folder} was started with other settings: {'; '.join(changes)}. The run would not be "
            "the same any more; give --allow-changes to resume it all the same."
        )
    return now


def record_changes(folder: Path, recipe: Recipe, now: RunRecord) -> None:
    """Write what a run is resumed with into the folder's recipe and record."""
    write_recipe(recipe, folder / RECIPE)
    record = now
    if (folder / RECORD).is_file():
        changed = {name: getattr(now, name) for name in ("settings", "inputs", "code", "plugins")}
        record = replace(_read_record(folder), **changed)
    write_record(folder, record)
    note_versions(folder, now)


def _read_record(folder: Path) -> RunRecord:
    return build(RunRecord, read_json_object(folder / RECORD), str(folder / RECORD))

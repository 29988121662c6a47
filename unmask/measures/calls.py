"""Measures called from Python: what was given is sorted into models, data and settings, and run."""

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.base.config import CheckedSettings, SettingsError, build, check_values
from unmask.base.engines import find_engine
from unmask.base.errors import UserError
from unmask.measures.contract import Inputs
from unmask.measures.inputs import ModelInputs, RunFolders
from unmask.measures.result import Result
from unmask.measures.runner import run_measure, settle

if TYPE_CHECKING:
    from unmask.measures.measure import Measure


def call_measure(
    measure: "Measure",
    subjects: Sequence[Any],
    data: Any,
    out: str | Path | None,
    settings: CheckedSettings | None,
    changes: Mapping[str, Any],
    fresh: bool = False,
    on: str | None = None,
) -> Result:
    """What calling a measure from Python does."""
    given = {"out": out, "fresh": fresh, "settings": settings, "on": on}
    hints = {"out": str | Path | None, "fresh": bool, "settings": measure.settings | None}
    hints["on"] = str | None
    if problems := check_values(given, hints):
        raise SettingsError(f"unmask.{measure.name}", problems)
    chosen = settle(build(measure.settings, changes, f"unmask.{measure.name}", settings))
    if isinstance(measure.inputs, RunFolders):
        given = {"runs": _flatten(subjects)}
    else:
        models, facts = _part_subjects(_flatten(subjects))
        if facts and data is not None:
            raise UserError("data were given twice, by position and by name: give them once.")
        given = {"models": models, "data": facts or data}
    if on is not None:
        _refuse_loaded(given, on, out)
    engine = find_engine(on)
    inputs = measure.inputs.read(given, chosen)
    if out is not None:
        _refuse_attached(inputs)
        folder = Path(out)
    else:
        folder = Path(tempfile.mkdtemp(prefix=f"unmask-{measure.name}-"))
    try:
        is_fresh = fresh and out is not None
        result = run_measure(measure, inputs, chosen, folder, is_fresh, engine, given)
    except BaseException:
        if out is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if out is None:
        weakref.finalize(result.tables, shutil.rmtree, folder, ignore_errors=True)
    return result


def _flatten(subjects: Sequence[Any]) -> list[Any]:
    return [
        one for each in subjects for one in (each if isinstance(each, list | tuple) else [each])
    ]


def _part_subjects(subjects: Sequence[Any]) -> tuple[list[Any], Any]:
    """Models (names, paths, loaded ones) and what else was given: facts, or a corpus."""
    from unmask.data.corpus import Corpus
    from unmask.data.facts import Fact

    corpora = [each for each in subjects if isinstance(each, Corpus)]
    facts = [each for each in subjects if isinstance(each, Fact)]
    models = [each for each in subjects if not isinstance(each, Corpus | Fact)]
    if len(corpora) + bool(facts) > 1:
        raise UserError(
            f"{len(corpora)} corpora and {len(facts)} facts were given: expected one corpus, or "
            "facts; ask them one after the other."
        )
    return models, corpora[0] if corpora else facts or None


def _refuse_loaded(given: Mapping[str, Any], on: str, out: str | Path | None) -> None:
    """Workers read models and data by themselves, and write to a folder that all see."""
    if out is None:
        raise UserError(f"on={on!r:.60} was given without out: name the folder of the run.")
    for each in _flatten([*given.values()]):
        if each is not None and not isinstance(each, str | Path):
            raise UserError(
                f"on={on!r:.60} was given with a loaded {type(each).__name__}: workers read models "
                "and data by themselves; give names or paths."
            )


def _refuse_attached(inputs: Inputs) -> None:
    """A folder knows models by their weights: it would be resumed with or without a patch."""
    from unmask.net.model import Model

    families = inputs.families if isinstance(inputs, ModelInputs) else []
    for model in (member for family in families for member in family.members):
        if isinstance(model, Model) and (sites := model.net.taps.attached):
            raise UserError(
                f"the network of {model.name} is patched or captured at {sites[0]}, which a run "
                "folder does not record: leave `out` out, leave the `with` block first, or change "
                "the weights instead."
            )

"""A model evaluated on tasks of lm-evaluation-harness, with what its likelihoods are worth."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
from lm_eval.utils import handle_non_serializable, make_table

from unmask.base.errors import UserError
from unmask.base.files import path_exists, replace_file
from unmask.harness.model import UnmaskLM
from unmask.harness.summary import add_signals, format_signals, summarise_errors

_log = logging.getLogger(__name__)

CONTINUATIONS = ("loglikelihood", "multiple_choice")
"""Kinds of tasks that need likelihoods of a text given its prefix."""
_ENDINGS = (".yaml", ".yml")
RESULTS, SAMPLES = "results.json", "samples.jsonl"

TaskNames = tuple[TaskManager, list[str]]
"""Where tasks are read from, and their names."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Which tasks, and how many of their documents and examples."""

    tasks: Sequence[str]
    """Names, patterns such as `mmlu_*`, or paths of task files."""
    include: Path | None = None
    """A folder of task files besides the harness's own."""
    limit: int | None = None
    fewshot: int | None = None
    chat: bool = False
    generation: Mapping[str, Any] | None = None
    """What comes before the tasks' own `generation_kwargs`."""
    seed: int = 1234
    """The seed of the examples that a task draws."""

    def to_record(self) -> dict[str, Any]:
        """What the results' `config` says of it."""
        return vars(self) | {
            "tasks": list(self.tasks),
            "include": None if self.include is None else str(self.include),
            "generation": dict(self.generation or {}),
        }


def evaluate(
    lm: UnmaskLM, evaluation: Evaluation, known: TaskNames | None = None
) -> dict[str, Any] | None:
    """The harness's results, with the errors of likelihoods added; None on ranks other than 0.

    `known` is what `find_tasks` gave for this evaluation, where it was asked before.

    By task `likelihood_error` is the mean standard error of a likelihood in nats, 0 where all are
    exact; every sample has the errors of its own requests, and the signals of its texts if asked.
    """
    manager, names = find_tasks(evaluation) if known is None else known
    tasks = _load_tasks(lm, manager, names)
    lm.errors.clear()
    lm.cut.clear()
    lm.signals.clear()
    results = _run_tasks(lm, evaluation, manager, tasks)
    gathered = lm.gather_object((lm.errors, lm.cut, dict(lm.signals)))
    if results is None or gathered is None:
        return None
    report: dict[str, Any] = dict(results)
    errors = {key: error for each, *_ in gathered for key, error in each.items()}
    cut = set().union(*(each for _, each, _ in gathered))
    if cut:
        _log.warning(
            "%d contexts are too long for %s and lost their beginning", len(cut), lm.model.name
        )
    report["config"]["contexts_cut"] = len(cut)
    report["config"]["evaluation"] = evaluation.to_record()
    report["config"]["likelihood_errors"] = summarise_errors(list(errors.values()))
    for task, samples in report["samples"].items():
        own = []
        for one in samples:
            arguments = [tuple(each) for each in one["arguments"]]
            kept = [errors[each] for each in arguments if _is_scored(each, errors)]
            if kept:
                one["likelihood_errors"] = kept
                own += kept
        if own:
            report["results"][task]["likelihood_error,none"] = sum(own) / len(own)
    if lm.settings.signals:
        add_signals(report, [each for *_, each in gathered])
    return report


def _run_tasks(lm: UnmaskLM, evaluation: Evaluation, manager: TaskManager, tasks: list[Any]) -> Any:
    try:
        return simple_evaluate(
            model=lm,
            tasks=tasks,
            num_fewshot=evaluation.fewshot,
            limit=evaluation.limit,
            apply_chat_template=evaluation.chat,
            gen_kwargs=dict(evaluation.generation) if evaluation.generation else None,
            task_manager=manager,
            log_samples=True,
            fewshot_random_seed=evaluation.seed,
        )
    except ValueError as error:
        if "larger than population" not in str(error):  # of random.sample, for examples
            raise
        raise UserError(
            "a task has fewer documents than the examples that are put before each question: "
            "lower --fewshot, or give the task more documents in its fewshot_split."
        ) from error
    except OverflowError as error:  # of exp, in the harness's perplexities
        raise UserError(
            f"a perplexity of these tasks under {lm.model.name} is larger than a number can hold: "
            "train the model further, or choose tasks that measure bits_per_byte alone."
        ) from error


def require_writable(folder: Path) -> None:
    """Make the folder; one that cannot be written to raises before the work, not after it."""
    trial = folder / f".trial-{os.getpid()}"
    with replace_file(trial) as draft:
        draft.touch()
    trial.unlink()


def write_results(report: Mapping[str, Any], folder: Path) -> None:
    """Write the results and, a line for each document, the samples."""
    with replace_file(folder / SAMPLES) as draft, draft.open("w", encoding="utf-8") as file:
        for task, samples in report["samples"].items():
            for one in samples:
                file.write(_to_json({"task": task} | one) + "\n")
    rest = {key: value for key, value in report.items() if key != "samples"}
    with replace_file(folder / RESULTS) as draft:
        draft.write_text(_to_json(rest, 2) + "\n", encoding="utf-8")


def format_results(report: Mapping[str, Any]) -> str:
    """The harness's own table, of tasks and of groups, and what signals are worth."""
    tables = [make_table(report)]
    if report.get("groups"):
        tables.append(make_table(report, "groups"))
    if report.get("signals"):
        tables.append(format_signals(report["signals"]))
    return "\n".join(tables)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False, default=handle_non_serializable)


def _is_scored(arguments: tuple[Any, ...], errors: Mapping[tuple, float]) -> bool:
    """Whether these are a likelihood's: a generation's hold a mapping."""
    return all(isinstance(each, str) for each in arguments) and arguments in errors


def find_tasks(evaluation: Evaluation) -> TaskNames:
    """The tasks of these names or patterns, in the folder to include before the harness's own."""
    if not evaluation.tasks:
        raise UserError("no tasks were given: name at least one by --tasks.")
    include = evaluation.include
    if include is not None and not (path_exists(include) and include.is_dir()):
        raise UserError(f"there is no folder {str(include)!r:.200}: expected one of task files.")
    for each in evaluation.tasks:
        if each.endswith(_ENDINGS) and not _is_file(each):
            raise UserError(f"there is no task file {each!r:.200}.")
        if "/" in each or each in (".", ".."):
            _refuse_folder(each)
    where = None if include is None else str(include)
    # The harness's own tasks are thousands of files: they are read only where they are needed.
    manager = TaskManager(include_path=where, include_defaults=False)
    if _list_unknown(manager, evaluation.tasks):
        manager = TaskManager(include_path=where)
    if unknown := _list_unknown(manager, evaluation.tasks):
        _refuse_folder(unknown[0])
        near = get_close_matches(unknown[0], manager.all_tasks, n=1)
        raise UserError(
            f"the task {unknown[0]!r:.200} is unknown: "
            + (f"did you mean {near[0]!r}?" if near else "see `lm_eval ls tasks`, or --include.")
        )
    names: list[str] = []
    for each in evaluation.tasks:
        names += [each] if _is_file(each) else manager.match_tasks([each])
    return manager, list(dict.fromkeys(names))


def _refuse_folder(task: str) -> None:
    if path_exists(task) and Path(task).is_dir():
        raise UserError(
            f"the task {task!r:.200} is a folder: expected names, patterns or files of tasks; give "
            "the folder by --include, and the tasks in it by their names."
        )


def _list_unknown(manager: TaskManager, tasks: Sequence[str]) -> list[str]:
    return [each for each in tasks if not _is_file(each) and not manager.match_tasks([each])]


def _is_file(task: str) -> bool:
    return task.endswith(_ENDINGS) and path_exists(task) and Path(task).is_file()


def _load_tasks(lm: UnmaskLM, manager: TaskManager, names: Sequence[str]) -> list[Any]:
    """The tasks and groups with their data; one that needs what the model cannot do raises."""
    try:
        loaded = manager.load(list(names))
    except Exception as error:  # of the task file, of its data, of the way to them
        raise UserError(
            f"the tasks {', '.join(names):.200} cannot be loaded ({type(error).__name__}: "
            f"{error!s:.300}): check the task files and that their data can be reached."
        ) from error
    for name, task in loaded["tasks"].items():
        if task.OUTPUT_TYPE in CONTINUATIONS:
            lm.model.paradigm.require_scored(
                lm.model.name, f"the task {name} needs likelihoods, which are computed"
            )
    # What is inside a group comes with it.
    groups = loaded.get("groups", {}).values()
    inner = {each.name for group in groups for each in group.get_all_groups()}
    inner |= {each.task_name for group in groups for each in group.get_all_tasks()}
    whole = [group for group in groups if group.name not in inner]
    return whole + [task for name, task in loaded["tasks"].items() if name not in inner]

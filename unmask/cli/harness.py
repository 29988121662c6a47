"""`unmask harness`: a model on the tasks of lm-evaluation-harness."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmask.base.errors import UserError
from unmask.base.extras import require_extra
from unmask.base.progress import announce
from unmask.cli.options import add_option, make_command
from unmask.harness.settings import OF_ONE_TEXT, HarnessSettings
from unmask.measures.contract import Argument

_COMMA = re.compile(r",(?![^\[\]]*\])")
"""A comma that is not inside brackets."""
_TASKS = "Tasks, separated by commas: names, patterns or files."
ARGUMENTS = (
    Argument("name", "A model's name, folder or file.", "MODEL"),
    Argument("tasks", _TASKS, "TASKS", is_option=True),
)
_FEWSHOT = "Examples before each question; by default the task's own."
_GENERATION = "Generation settings that override the tasks' own, such as steps=64,max_gen_toks=128."
_DTYPE = "float32, bfloat16, …; auto suits the file and the device."
EXTRAS = (
    add_option("include", Path | None, None, "A folder of task files besides the harness's."),
    add_option("limit", int | None, None, "Documents of each task; all by default."),
    add_option("fewshot", int | None, None, _FEWSHOT),
    add_option("gen_kwargs", str | None, None, _GENERATION),
    add_option("chat", bool, False, "Put prompts into the model's chat template."),
    add_option("device", str, "auto", "auto, cpu, cuda, cuda:N or mps."),
    add_option("dtype", str, "auto", _DTYPE),
    add_option("out", Path, Path("runs/harness"), "Folder for results.json and samples.jsonl."),
    add_option("as_json", bool, False, "Print the results as JSON instead.", "--json"),
)


def run_tasks(given: Mapping[str, Any], settings: Any, extras: Mapping[str, Any]) -> None:
    """What the verb does: the harness's table on stdout, everything in the folder."""
    require_extra("lm-eval", "unmask harness")
    for name in ("limit", "fewshot"):
        least = 1 if name == "limit" else 0
        if extras[name] is not None and extras[name] < least:
            raise UserError(f"--{name} is {extras[name]}: expected at least {least}.")
    generation = _read_pairs(extras["gen_kwargs"])
    from unmask.harness.model import UnmaskLM
    from unmask.harness.run import (
        Evaluation,
        evaluate,
        find_tasks,
        format_results,
        require_writable,
        write_results,
    )

    tasks = [each.strip() for each in given["tasks"].split(",") if each.strip()]
    options = {name: extras[name] for name in ("include", "limit", "fewshot", "chat")}
    evaluation = Evaluation(tasks=tasks, generation=generation, **options)
    known = find_tasks(evaluation)  # a mistyped name is found before the model is loaded
    require_writable(extras["out"])
    lm = UnmaskLM(given["name"], device=extras["device"], dtype=extras["dtype"], settings=settings)
    try:
        with announce("harness"):
            report = evaluate(lm, evaluation, known)
    finally:
        lm.close()
    if report is None:  # another process of several shows it
        return
    write_results(report, extras["out"])
    if extras["as_json"]:
        print(json.dumps({key: report[key] for key in ("results", "config")}, default=str))
        return
    print(format_results(report))
    print(f"results and samples: {extras['out']}")


def _read_pairs(text: str | None) -> dict[str, Any]:
    """Settings such as steps=64,until=["a","b"] by name; numbers as numbers, lists as lists."""
    import yaml

    pairs = {}
    for each in _COMMA.split(text or ""):
        name, separator, value = each.partition("=")
        try:
            if each.strip() and not (name.strip() and separator):
                raise ValueError("a name and a value are missing")
            if separator:
                pairs[name.strip()] = yaml.safe_load(value)
        except (ValueError, yaml.YAMLError) as error:
            raise UserError(
                f"--gen-kwargs is {text!r:.200}: expected names and values such as "
                'steps=64,max_gen_toks=128 or until=["a","b"].'
            ) from error
    return pairs


harness = make_command(
    "harness",
    "Evaluate a model on tasks of lm-evaluation-harness: likelihoods, rolling ones, texts.",
    ARGUMENTS,
    HarnessSettings,
    EXTRAS,
    run_tasks,
    leave_out=(*OF_ONE_TEXT, "forbid", "require"),
)

"""Several runs of traces as one."""

from collections.abc import Sequence
from typing import Any

from unmask.base.errors import UserError
from unmask.base.runs import DIGESTS
from unmask.blocks.tidy import distinct
from unmask.measures.measure import Tables
from unmask.measures.result import Result
from unmask.measures.runner import pool_tables
from unmask.measures.trainings import concatenate, number_trainings

ALIKE = ("metric", "mode", "run", "severed", "source", "cells")
"""Settings that all runs must share for their effects to be compared."""
ALIKE_OF_MODEL = ("steps", "guidance", "length", "dtype", "any_answer", "order", "remask")
"""Settings that runs of one model must share; a model and its twin may differ in them."""


def pool(results: Sequence[Result]) -> Tables:
    """The tables of several runs as one, if what they say can be said together."""
    _check_settings(results, ALIKE, "these runs")
    facts = [result.tables["facts"].to_pylist() for result in results]
    _check_values([set(distinct(rows, "window")) for rows in facts], "window", "these runs")
    trainings = number_trainings(facts)
    by_model: dict[tuple[str, int, str], list[int]] = {}
    for i, rows in enumerate(facts):
        for model in distinct(rows, "model"):
            key = (model, trainings[i][model], _identify(results[i], model))
            by_model.setdefault(key, []).append(i)
    if len({(model, training) for model, training, _ in by_model}) < len(by_model):
        # Different weights under one name: models are named by their runs.
        return pool_tables(results)
    for (model, *_), numbers in by_model.items():
        data = [{results[i].records[0].inputs.get("data")} for i in numbers]
        _check_values(data, "data", f"these runs of {model}")
    for model in dict.fromkeys(model for model, *_ in by_model):
        which = f"these runs of {model}"
        own = [i for i, each in enumerate(trainings) if model in each]
        _check_settings([results[i] for i in own], ALIKE_OF_MODEL, which)
        joints = [{row["joint"] for row in facts[i] if row["model"] == model} for i in own]
        _check_values(joints, "joint", which)
    keys = ("model", "seed", "split", "fact", "phrasing", "corruption")
    prompts = [
        (number[row["model"]], *(row[name] for name in keys))
        for rows, number in zip(facts, trainings, strict=True)
        for row in rows
    ]
    if len(set(prompts)) < len(prompts):
        raise UserError(
            "a prompt was traced in two of these runs under one corruption, and would count twice: "
            "trace all its steps in one run, or report the runs apart."
        )
    return concatenate(results, facts, trainings)


def _identify(result: Result, model: str) -> str:
    """What tells models of one name apart: what they hold."""
    digests = result.records[0].inputs[DIGESTS]
    return str([digests[x] for x in digests if x == model or x.startswith(f"{model}, seed")])


def _check_settings(results: Sequence[Result], names: Sequence[str], which: str) -> None:
    records = [result.settings.to_record() for result in results]
    for name in names:
        _check_values([{str(record[name])} for record in records], name, which)


def _check_values(values: Sequence[set[Any]], name: str, which: str) -> None:
    together = set().union(*values)
    if len(together) > 1:
        listed = ", ".join(sorted(map(str, together)))
        raise UserError(
            f"{which} differ in {name} ({listed}), so their effects cannot be compared: report "
            "them apart."
        )

"""Trainings of one model in several runs, as one model.

`join_trainings`  two trainings, the second with the roles of its facts swapped (`unmask data
                  make`): of the first a prompt is asked as trained, of the second reversed, or the
                  other way round. Groups hold the same facts: comparisons are paired by fact.
`join_openings`   models trained apart, measured by one measure in the same way
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.base.errors import UserError
from unmask.base.runs import DIGESTS
from unmask.blocks.tidy import group_by
from unmask.measures.contract import Rows, Tables
from unmask.measures.result import Result, list_differences

if TYPE_CHECKING:
    import pyarrow

_NEEDED = {"model", "seed", "fact", "direction", "trained"}


def number_trainings(facts: Sequence[Rows]) -> list[dict[str, int]]:
    """By run and model: 0, or 1 where an earlier run's facts were trained the other way round."""
    trainings: dict[str, list[dict[tuple[str, str], str]]] = {}
    numbers: list[dict[str, int]] = []
    for run in facts:
        numbers.append({})
        for model, rows in group_by(run, "model").items():
            ways = {(row["fact"], row["direction"]): row["trained"] for row in rows}
            known = trainings.setdefault(model, [])
            number = next((i for i, one in enumerate(known) if _agree(one, ways)), len(known))
            if number == len(known):
                known.append({})
            known[number] |= ways
            numbers[-1][model] = number
    return numbers


def _agree(one: Mapping[Any, str], ways: Mapping[Any, str]) -> bool:
    """Whether a training may be another's, by how it showed the facts."""
    return all(one.get(way, trained) == trained for way, trained in ways.items())


def join_trainings(results: Sequence[Result]) -> Tables | None:
    """The tables one below the other, seeds of a second training counted on.

    None where no model was trained twice, or where one training is in two runs.
    """
    if not all(_has_facts(result) for result in results):
        return None
    facts = [result.tables["facts"].to_pylist() for result in results]
    numbers = number_trainings(facts)
    trainings = [each for run in numbers for each in run.items()]
    if len(set(trainings)) < len(trainings) or not any(number for _, number in trainings):
        return None
    return concatenate(results, facts, numbers)


def concatenate(
    results: Sequence[Result], facts: Sequence[Rows], numbers: Sequence[Mapping[str, int]]
) -> Tables:
    """The tables one below the other; the seeds of second trainings come after the first's."""
    seeds = 1 + max((row["seed"] for rows in facts for row in rows), default=0)
    moves = [{model: seeds * number for model, number in each.items()} for each in numbers]
    return stack_tables(results, moves, _move_seeds)


def join_openings(results: Sequence[Result]) -> Result:
    """Results of one measure as one: models of one name are one model, opened once in each run."""
    if len(results) == 1:
        return results[0]
    if unlike := list_differences(results):
        raise UserError(
            f"these runs differ in {', '.join(unlike)}: only runs that were made in the same way "
            "can be joined; without --join they stand side by side."
        )
    earlier: dict[str, str] = {}
    for own in map(_find_weights, results):
        if twice := {own[digest] for digest in own.keys() & earlier.keys()}:
            raise UserError(
                f"{', '.join(sorted(twice))}: the same weights are in two of these runs, and would "
                "count twice: measure them in one."
            )
        earlier |= own
    return unite(results, stack_tables(results, _count_members(results), _count_on))


def stack_tables(
    results: Sequence[Result],
    known: Sequence[Mapping[str, Any]],
    change: "Callable[[pyarrow.Table, Mapping[str, Any]], pyarrow.Table]",
) -> Tables:
    """The tables one below the other, each changed by what is known of the models in its run."""
    import pyarrow

    stacked = {}
    for name in results[0].measure.tables:
        tables = map(change, (result.tables[name] for result in results), known)
        stacked[name] = pyarrow.concat_tables(tables, promote_options="permissive")
    return stacked


def unite(results: Sequence[Result], tables: Tables, differences: Sequence[str] = ()) -> Result:
    """One result of several, with these tables and the first one's settings."""
    return replace(
        results[0],
        records=tuple(record for result in results for record in result.records),
        tables=tables,
        is_complete=all(result.is_complete for result in results),
        differences=differences,
    )


def _find_weights(result: Result) -> dict[str, str]:
    """The digests of all weights that a result is about, and their models."""
    return {
        digest: name
        for record in result.records
        for name, parts in record.inputs.get(DIGESTS, {}).items()
        for part, digest in parts.items()
        if part.startswith("weights")
    }


def _count_members(results: Sequence[Result]) -> list[dict[str, int]]:
    """By result how many trainings came before, of its models that are in several."""
    runs = [result.records[0].inputs.get("models", {}) for result in results]
    names, before = Counter(name for models in runs for name in models), Counter[str]()
    earlier = []
    for models in runs:
        earlier.append({name: before[name] for name in models if names[name] > 1})
        before.update({name: len(places) for name, places in models.items()})
    return earlier


def _count_on(table: "pyarrow.Table", earlier: Mapping[str, int]) -> "pyarrow.Table":
    """The table with seeds and openings moved behind those of earlier runs."""
    import pyarrow

    if not {"model", "seed"} <= {*table.column_names}:
        return table
    table, models = _move_seeds(table, earlier), table["model"].to_pylist()
    openings: list[int | None] = [None] * len(models)
    if "opening" in table.column_names:
        openings = table["opening"].to_pylist()
        table = table.drop_columns(["opening"])
    pairs = zip(models, openings, strict=True)
    moved = [earlier[name] + (own or 0) if name in earlier else own for name, own in pairs]
    return table.append_column("opening", pyarrow.array(moved, pyarrow.int64()))


def _has_facts(result: Result) -> bool:
    tables = result.measure.tables
    return "facts" in tables and _NEEDED.issubset(result.tables["facts"].column_names)


def _move_seeds(table: "pyarrow.Table", moves: Mapping[str, int]) -> "pyarrow.Table":
    """The table with each model's seeds moved by so much."""
    import pyarrow

    if not any(moves.values()) or not {"model", "seed"} <= {*table.column_names}:
        return table
    at, column = table.column_names.index("seed"), table["seed"]
    steps = np.array([moves.get(model, 0) for model in table["model"].to_pylist()], dtype=int)
    return table.set_column(at, "seed", pyarrow.array(column.to_numpy() + steps, column.type))

"""Trainings of one model in several runs, as one model.

`join_trainings`  two trainings, the second with the roles of its facts swapped (`unmask data
                  make`): of the first a prompt is asked as trained, of the second reversed, or the
                  other way round. Groups hold the same facts: comparisons are paired by fact.
`join_openings`   models trained apart, measured by one measure in the same way
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

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
    numbers = []
    for run in facts:
        own = {}
        for model, rows in group_by(run, "model").items():
            ways = {(row["fact"], row["direction"]): row["trained"] for row in rows}
            known = trainings.setdefault(model, [])
            own[model] = len(known)
            for i, other in enumerate(known):
                if all(other.get(way, trained) == trained for way, trained in ways.items()):
                    own[model] = i
                    break
            if own[model] == len(known):
                known.append({})
            known[own[model]] |= ways
        numbers.append(own)
    return numbers


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
    import pyarrow

    seeds = 1 + max((row["seed"] for rows in facts for row in rows), default=0)
    return {
        name: pyarrow.concat_tables(
            [
                _move_seeds(result.tables[name], number, seeds)
                for result, number in zip(results, numbers, strict=True)
            ],
            promote_options="permissive",
        )
        for name in results[0].measure.tables
    }


def join_openings(results: Sequence[Result]) -> Result:
    """Results of one measure as one: models of one name are one model, opened once in each run."""
    import pyarrow

    first, counted = results[0], list(_count_members(results))
    if len(results) == 1:
        return first
    if unlike := list_differences(results):
        raise UserError(
            f"these runs differ in {', '.join(unlike)}: only runs that were made in the same way "
            "can be joined; without --join they stand side by side."
        )
    weights = [_find_weights(result) for result in results]
    for i, own in enumerate(weights):
        for other in weights[:i]:
            if twice := {name for digest, name in own.items() if digest in other}:
                raise UserError(
                    f"{', '.join(sorted(twice))}: the same weights are in two of these runs, and "
                    "would count twice: measure them in one."
                )
    tables = {
        name: pyarrow.concat_tables(
            [_count_on(result.tables[name], earlier) for result, earlier in counted],
            promote_options="permissive",
        )
        for name in first.measure.tables
    }
    return replace(
        first,
        records=tuple(record for result in results for record in result.records),
        tables=tables,
        is_complete=all(result.is_complete for result in results),
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


def _count_members(results: Sequence[Result]) -> Iterator[tuple[Result, dict[str, int]]]:
    """Each result, and for its models that are in several how many trainings came before."""
    runs = [result.records[0].inputs.get("models", {}) for result in results]
    names = Counter(name for models in runs for name in models)
    earlier: Counter[str] = Counter()
    for result, models in zip(results, runs, strict=True):
        yield result, {name: earlier[name] for name in models if names[name] > 1}
        earlier.update({name: len(places) for name, places in models.items()})


def _count_on(table: "pyarrow.Table", earlier: Mapping[str, int]) -> "pyarrow.Table":
    """The table with seeds and openings moved behind those of earlier runs."""
    import pyarrow

    if not {"model", "seed"} <= {*table.column_names}:
        return table
    rows = table.select(
        [name for name in ("model", "seed", "opening") if name in table.column_names]
    )
    seeds, openings = [], []
    for row in rows.to_pylist():
        before = earlier.get(row["model"])
        opening = row.get("opening")
        seeds.append(row["seed"] + (before or 0))
        openings.append(opening if before is None else before + (opening or 0))
    at = table.column_names.index("seed")
    table = table.set_column(at, "seed", pyarrow.array(seeds, table["seed"].type))
    if "opening" in table.column_names:
        table = table.drop_columns(["opening"])
    return table.append_column("opening", pyarrow.array(openings, pyarrow.int64()))


def _has_facts(result: Result) -> bool:
    tables = result.measure.tables
    return "facts" in tables and _NEEDED.issubset(result.tables["facts"].column_names)


def _move_seeds(table: "pyarrow.Table", numbers: Mapping[str, int], seeds: int) -> "pyarrow.Table":
    import pyarrow

    if not any(numbers.values()) or not {"model", "seed"} <= {*table.column_names}:
        return table
    models, own = np.unique(table["model"].to_numpy(), return_inverse=True)
    moved = seeds * np.array([numbers.get(model, 0) for model in models], dtype=int)
    at, column = table.column_names.index("seed"), table["seed"]
    seed = pyarrow.array(column.to_numpy() + moved[own], column.type)
    return table.set_column(at, "seed", seed)

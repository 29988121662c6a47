"""Two trainings of one model: the second with the roles of its facts swapped (`unmask data make`).

Of the first a prompt is asked as trained, and of the second reversed, or the other way round. In
one result both are one model, whose groups hold the same facts: comparisons are then paired by
fact.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from unmask.blocks.tidy import group_by
from unmask.measures.measure import Rows, Tables
from unmask.measures.result import Result

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
            promote_options="default",
        )
        for name in results[0].measure.tables
    }


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

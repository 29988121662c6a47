"""Tidy tables of means: what the summaries of most measures are, and how they become blocks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unmask.blocks.blocks import Column, Row, Table
from unmask.evaluation.statistics import Interval, cluster, estimate_mean
from unmask.measures.measure import Rows


def estimate_means(
    rows: Rows, by: Sequence[str], columns: Sequence[str], shares: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """A row for each group and column: its mean with its interval by fact and training seed.

    Rows have a `fact` and a `seed`; groups agree in the columns `by` and stay in the order in
    which they are met. Values of `shares` lie between 0 and 1. A column that a group has no values
    for is left out.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    means = []
    for key, members in groups.items():
        for column in columns:
            kept = [row for row in members if row[column] is not None]
            if kept:
                means.append(
                    dict(zip(by, key, strict=True))
                    | {"metric": column}
                    | _estimate(kept, column, column in shares)
                )
    return means


def _estimate(rows: Rows, column: str, is_share: bool) -> dict[str, Any]:
    values, facts, seeds = ([row[name] for row in rows] for name in (column, "fact", "seed"))
    clusters = cluster(values, facts, seeds)
    num_seeds, num_facts = clusters.sums.shape
    return vars(estimate_mean(clusters, is_share)) | {
        "facts": num_facts,
        "seeds": num_seeds,
        "prompts": len(rows) // num_seeds,
    }


def to_interval(row: Mapping[str, Any]) -> Interval:
    """The interval that a row of a summary holds."""
    return Interval(row["mean"], row["low"], row["high"])


def select(rows: Iterable[Mapping[str, Any]], **values: Any) -> list[Mapping[str, Any]]:
    """The rows that have these values in these columns."""
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def distinct(rows: Iterable[Mapping[str, Any]], *names: str) -> list[Any]:
    """The different values of a column, or tuples of several, in the order they are met."""
    if len(names) == 1:
        return list(dict.fromkeys(row[names[0]] for row in rows))
    return list(dict.fromkeys(tuple(row[name] for name in names) for row in rows))


def tabulate_means(
    name: str,
    caption: str,
    rows: Rows,
    keys: Mapping[str, Column],
    metrics: Mapping[str, Column],
    labels: Mapping[str, Mapping[Any, str]] | None = None,
) -> Table:
    """A table with a row for each group and a column for each metric.

    `keys` are the columns that name a group; `labels` say how their ids are shown.
    """
    labels = labels or {}
    lines = []
    for key in dict.fromkeys(tuple(row[each] for each in keys) for row in rows):
        members = select(rows, **dict(zip(keys, key, strict=True)))
        shown = [
            labels.get(column, {}).get(value, value)
            for column, value in zip(keys, key, strict=True)
        ]
        cells = {row["metric"]: to_interval(row) for row in members}
        lines.append(Row([*shown, *(cells.get(metric) for metric in metrics)]))
    return Table(name, caption, [*keys.values(), *metrics.values()], lines)

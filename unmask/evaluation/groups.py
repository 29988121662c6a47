"""Columns of a table averaged over groups of its rows, with intervals by fact."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.evaluation.statistics import Interval, cluster, estimate_mean


@dataclass(frozen=True)
class Group:
    """The rows that agree in some columns, and the means of others."""

    key: dict[str, Any]
    means: dict[str, Interval]
    """A column that the group has no values for is left out."""
    rows: int
    facts: int


def estimate_groups(
    rows: Sequence[Mapping[str, Any]],
    by: Sequence[str],
    columns: Sequence[str],
    shares: Sequence[str] = (),
) -> list[Group]:
    """Means by group, in the order the groups are met; rows tell their `fact` and `seed`.

    `shares` are the columns whose values lie between 0 and 1.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    found = []
    for key, members in groups.items():
        means = {}
        for column in columns:
            kept = [row for row in members if row[column] is not None]
            if not kept:
                continue
            values, facts, seeds = (
                [row[name] for row in kept] for name in (column, "fact", "seed")
            )
            clusters = cluster(values, facts, seeds)
            means[column] = estimate_mean(clusters, column in shares)
        num_facts = len({row["fact"] for row in members})
        found.append(Group(dict(zip(by, key, strict=True)), means, len(members), num_facts))
    return found

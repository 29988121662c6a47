"""Tidy tables of means: what the summaries of most measures are, and how they become blocks."""

from collections.abc import Mapping, Sequence
from typing import Any

from unmask.evaluation.statistics import cluster, estimate_mean
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

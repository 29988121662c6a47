"""What summaries are made of: means of groups, differences, and what may be said of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from unmask.blocks.blocks import Outcome, RowRole, is_clear
from unmask.blocks.tidy import Record, group_by, to_interval
from unmask.evaluation.statistics import (
    ALPHA,
    ENOUGH,
    Clusters,
    Crossed,
    Difference,
    Interval,
    cluster,
    compare,
    estimate_difference,
    estimate_mean,
)

if TYPE_CHECKING:
    import pyarrow

Rows = Sequence[Mapping[str, Any]]
Tables = Mapping[str, "pyarrow.Table"]
Summary = Mapping[str, Rows]
"""Tables of statistics by name."""
GRAMS = (1, 2, 3)
"""Sizes of the n-grams of which distinct-n is computed."""


def name_outcome(
    value: Interval | None, facts: int, held_against: float = 0.0, p: float | None = None
) -> Outcome:
    """What may be said of an estimate: above or below what it is held against, or neither.

    Too few facts settle nothing. With a `p`, that of a corrected test decides instead of the
    interval, and only whether the value is above.
    """
    if value is None or value.mean != value.mean:
        return "not measured"
    if facts < ENOUGH:
        return "too few"
    if p is not None:
        return "above" if p <= ALPHA else "unsettled"
    if value.low > held_against:
        return "above"
    return "below" if value.high < held_against else "unsettled"


def name_likeness(test: Record) -> Outcome:
    """Whether one group is above or below another, the two are alike, or neither is shown."""
    if test["facts"] < ENOUGH:
        return "too few"
    if test["p_holm"] <= ALPHA:
        return "above" if test["mean"] > 0 else "below"
    return "alike" if test.get("is_alike") else "unsettled"


def add_outcome(row: Record, p: float | None = None) -> dict[str, Any]:
    """A row of a summary with its outcome: whether its mean lies above or below 0."""
    return {**row, "outcome": name_outcome(to_interval(row), row["facts"], p=p)}


def mark_outcome(row: Record) -> RowRole:
    """What a row of a table is: strong where its outcome is clear."""
    return "strong" if is_clear(row.get("outcome", "unsettled")) else "plain"


def estimate_means(
    rows: Rows,
    by: Sequence[str],
    columns: Sequence[str],
    shares: Sequence[str] = (),
    least: Mapping[str, float] | None = None,
    phrasings: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """A row for each group and column: its mean with its interval by fact and training seed.

    Rows have a `fact` and a `seed`, and an `opening` where runs started from several models. Groups
    agree in the columns `by` and stay in the order in which they are met. Values of `shares` lie
    between 0 and 1, those of `least` above a bound, and so do their intervals. A fact counts where
    every training run has a value of it (a text may be empty); a column without such facts is left
    out. Where some are named as `phrasings`, their means have `low_phrasings` and `high_phrasings`
    as well, the ends for other phrasings; None where facts are asked in one.
    """
    means = []
    for key, members in group_by(rows, lambda row: tuple(row[name] for name in by)).items():
        complete = keep_shared(members)
        for column in columns:
            known = [row for row in members if row[column] is not None]
            kept = complete if len(known) == len(members) else keep_shared(known)
            if kept:
                clusters = cluster_rows(kept, column)
                num_seeds = len({row["seed"] for row in kept})
                counts = {"facts": clusters.sums.shape[1], "seeds": num_seeds}
                counts |= {"openings": count_openings(kept), "prompts": len(kept) // num_seeds}
                bound = (least or {}).get(column, -math.inf)
                value = _bound(estimate_mean(clusters, column in shares), bound)
                if phrasings:
                    crossed = cluster_phrasings(kept, column) if column in phrasings else None
                    is_share = column in shares
                    wide = _bound(estimate_mean(crossed, is_share), bound) if crossed else {}
                    counts |= {f"{end}_phrasings": wide.get(end) for end in ("low", "high")}
                means.append(dict(zip(by, key, strict=True)) | {"metric": column} | value | counts)
    return means


def _bound(value: Interval, least: float) -> dict[str, float]:
    """An interval of a mean that cannot lie below a bound: what is cut off there covers nothing."""
    return {"mean": value.mean, "low": max(value.low, least), "high": value.high}


def subtract_paired(
    ours: Rows, theirs: Rows, column: str, by: Sequence[str] = ("fact",), *, is_share: bool = False
) -> dict[str, Any] | None:
    """The mean of a column in our rows minus that in theirs, with its interval and its outcome.

    Paired by fact, over the rows that have a partner in the columns `by` on the other side; where
    there is no such row, the two sides are unpaired. None without two facts a side.
    """
    sides = [[row for row in rows if row[column] is not None] for rows in (ours, theirs)]
    keys = [{tuple(row[name] for name in by) for row in rows} for rows in sides]
    shared = keys[0] & keys[1]
    paired = [
        keep_shared([row for row in rows if tuple(row[name] for name in by) in shared])
        for rows in sides
    ]
    if facts := set.intersection(*({row["fact"] for row in rows} for rows in paired)):
        paired = [[row for row in rows if row["fact"] in facts] for rows in paired]
        clusters = (cluster_rows(rows, column) for rows in paired)
        return add_outcome(subtract_clusters(*clusters, is_share=is_share))
    difference = compare_means(*sides, column, 0, is_share=is_share) if all(sides) else None
    return None if difference is None else add_outcome(vars(difference))


def subtract_clusters(one: Clusters, other: Clusters, *, is_share: bool = True) -> dict[str, Any]:
    """How much larger the mean of `one` is, paired by fact, of values that are clustered."""
    difference = estimate_difference(one, other, is_share)
    return vars(difference) | {"facts": one.sums.shape[1]}


def compare_means(
    ours: Rows, theirs: Rows, column: str, seed: int, *, is_share: bool = False
) -> Difference | None:
    """The mean of a column in our rows minus that in theirs, each fact's rows averaged first.

    Of shares no difference lies beyond −1 or 1, and neither does its interval.
    """
    sides = [
        {fact: sum(row[column] for row in own) / len(own) for fact, own in facts.items()}
        for facts in (group_by(ours, "fact"), group_by(theirs, "fact"))
    ]
    gap = compare(*sides, seed=seed)
    if gap is None or not is_share:
        return gap
    return replace(gap, low=max(gap.low, -1.0), high=min(gap.high, 1.0))


def cluster_rows(rows: Rows, column: str) -> Clusters:
    """A column's values by fact and training seed, or by opening where there are several.

    Seeds of one opening are not independent. Openings are: what they differ by holds how their
    seeds differ, so that an interval from it is for other openings with other seeds.
    """
    return cluster(*([row[name] for row in rows] for name in (column, "fact", _name_runs(rows))))


def cluster_phrasings(rows: Rows, column: str) -> Crossed | None:
    """A column's values by fact, training run and phrasing; None where facts are asked in one."""
    questions = {(row["fact"], row.get("phrasing")) for row in rows}
    if len(questions) == len({fact for fact, _ in questions}):
        return None
    names = (column, "fact", _name_runs(rows))
    phrasings = [str(row["phrasing"]) for row in rows]
    crossed = cluster(*([row[name] for row in rows] for name in names), phrasings)
    return crossed if isinstance(crossed, Crossed) else None


def cluster_ratio(rows: Rows, column: str, per: str) -> Clusters:
    """Sums of two columns by fact and training run: the mean is the ratio of all of both."""
    sums, counts = (cluster_rows(rows, name).sums for name in (column, per))
    return Clusters(sums, counts)


def keep_shared(rows: Rows) -> Rows:
    """The rows of facts that every training run has."""
    runs = group_by(rows, _name_runs(rows)).values()
    shared = set.intersection(*({row["fact"] for row in own} for own in runs)) if rows else set()
    return [row for row in rows if row["fact"] in shared]


def _name_runs(rows: Rows) -> str:
    """The column that tells independent training runs apart."""
    return "opening" if count_openings(rows) > 1 else "seed"


def count_openings(rows: Rows) -> int:
    """How many models the training runs of these rows started from; 1 where nothing says so."""
    openings = {row.get("opening") for row in rows}
    return 1 if None in openings else len(openings)

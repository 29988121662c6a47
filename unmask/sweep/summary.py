"""What a sweep found, in numbers: means with intervals by training seed, the best cell, compute."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.blocks import tidy
from unmask.evaluation.statistics import Clusters, Interval, estimate_difference, estimate_mean
from unmask.net.counts import count_parameters
from unmask.net.dialects.own import read_settings
from unmask.net.hub import RUN_MODEL
from unmask.results.summaries import cluster_ratio, keep_shared
from unmask.sweep.checks import SEED
from unmask.sweep.folder import read_rows
from unmask.sweep.grid import MeasureEntry, Sweep
from unmask.sweep.run import SweepPoint, list_sweep_points
from unmask.training.journal import read_journal
from unmask.training.speed import count_training_flops

_log = logging.getLogger(__name__)

LIKELIHOODS = {None: "", True: "upper bound", False: "exact"}
"""What a likelihood is, by whether it is a bound."""


@dataclass(frozen=True)
class _TrainedMember:
    """One trained model: which cell and seed, and what its training took."""

    point: SweepPoint
    seed: str
    facts: Mapping[str, Any]
    own_flops: float
    own_seconds: float
    """Without what a copy shares with the run that it is a copy of."""


@dataclass(frozen=True)
class ComparedRow:
    """A measured value of one model with all its training seeds."""

    columns: Mapping[str, Any]
    units: Sequence[Any]
    """What the columns of `clusters` stand for: documents, facts, or numbers of rows."""
    clusters: Clusters
    value: Interval


def compare_sweep(sweep: Sweep, folder: Path) -> dict[str, list[ComparedRow]]:
    """Every measured value by the name of its measure: a row for each model and step."""
    members = _list_members(sweep, folder)
    return {name: list(_compare(sweep, name, members)) for name in sweep.measures}


def list_axes(sweep: Sweep) -> list[str]:
    """The axes that are compared; runs that differ by their seed alone are pooled."""
    return [axis for axis in sweep.axes if axis != SEED]


def _list_members(sweep: Sweep, folder: Path) -> list[_TrainedMember]:
    """The models that are there."""
    points = list_sweep_points(sweep, folder)
    trained = [each for each in points if (each.folder / "train" / RUN_MODEL).is_dir()]
    return [_read_member(sweep, each) for each in trained]


def _read_member(sweep: Sweep, point: SweepPoint) -> _TrainedMember:
    run, recipe = point.folder / "train", point.cell.recipe
    config = read_settings(run / RUN_MODEL).config
    records = [record for record in read_journal(run) if "tokens" in record]
    last = records[-1]
    shared = {"tokens": 0, "seconds": 0.0}
    if point.cooldown is not None and sweep.cooldowns is not None:
        start = sweep.cooldowns.find_start(point.cooldown)
        shared = max((each for each in records if each["step"] <= start),
                     key=lambda each: each["step"], default=shared)  # fmt: skip
    each_token = count_training_flops(config, recipe.input_length, recipe.passes)
    facts = {
        "kind": recipe.kind,
        **{name: point.cell.labels.get(name, "–") for name in list_axes(sweep)},
        **{name: last[name] for name in ("step", "tokens", "seconds")},
        "flops": each_token * last["tokens"],
        "parameters": count_parameters(config).total,
    }
    seed = point.cell.labels.get(SEED, str(recipe.seed))
    flops = each_token * (last["tokens"] - shared["tokens"])
    return _TrainedMember(point, seed, facts, flops, last["seconds"] - shared["seconds"])


def _compare(sweep: Sweep, name: str, members: Sequence[_TrainedMember]) -> Iterator[ComparedRow]:
    """The rows of one measure."""
    entry = sweep.measures[name]
    keyed = [{"member": each, "at": each.point.cooldown, **each.facts} for each in members]
    for group in tidy.group_by(keyed, *list_axes(sweep), "at").values():
        own = [each["member"] for each in group]
        seconds = float(np.mean([member.facts["seconds"] for member in own]))
        rows = [
            {**row, "seed": member.seed}
            for member in own
            for row in read_rows(name, entry, member.point.folder)
        ]
        for chosen in tidy.group_by(rows, lambda row: tuple(map(row.get, entry.by))).values():
            values = {column: chosen[0][column] for column in entry.by}
            units, clusters = _cluster(chosen, entry)
            if clusters is None:
                shown = [f"{axis} {own[0].facts[axis]}" for axis in list_axes(sweep)]
                shown += [f"{column} {value}" for column, value in values.items()]
                _log.warning(
                    "%s of %s is left out of the comparison: no %s has a value under every seed",
                    name,
                    ", ".join(shown) or "the only model",
                    entry.unit or entry.cluster or "row",
                )
                continue
            columns = {**own[0].facts, "seconds": seconds, **values}
            columns["seeds"] = clusters.sums.shape[0]
            columns["likelihood"] = LIKELIHOODS[chosen[0].get("is_bound")]
            yield ComparedRow(columns, units, clusters, estimate_mean(clusters, entry.is_share))


def _cluster(
    rows: Sequence[Mapping[str, Any]], entry: MeasureEntry
) -> tuple[list[Any], Clusters | None]:
    """What the clusters are, and sums of the value and of what it is divided by, over them.

    Rows without a value (an empty text has none per token) do not count, and clusters that not
    every seed has met are left out; None where no cluster is left.
    """
    known = [
        {"seed": seed, "fact": row[entry.cluster] if entry.cluster else number}
        | {"value": row[entry.value], "per": row[entry.per] if entry.per else 1.0}
        for seed, own in tidy.group_by(rows, "seed").items()
        for number, row in enumerate(own)  # rows stand in one order under every seed
    ]
    held = [row for row in known if None not in (row["value"], row["per"])]
    is_complete = tidy.distinct(held, "seed") == tidy.distinct(known, "seed")
    kept = keep_shared(held) if is_complete else []
    units = sorted(tidy.distinct(kept, "fact"))
    return units, cluster_ratio(kept, "value", "per") if units else None


def rank(row: ComparedRow, entry: MeasureEntry) -> float:
    """What rows are sorted by: the better ones have less of it, those without a number most."""
    if entry.better == "neither":
        return 0.0
    value = row.value.mean if entry.better == "lower" else -row.value.mean
    return math.inf if math.isnan(value) else value


def find_best(rows: Sequence[ComparedRow], entry: MeasureEntry) -> ComparedRow | None:
    """The row with the lowest mean, or the highest; None where neither is better."""
    if entry.better == "neither":
        return None
    known = [row for row in rows if not math.isnan(row.value.mean)]
    return min(known, key=lambda row: rank(row, entry), default=None)


def subtract_best(
    row: ComparedRow, best: ComparedRow | None, entry: MeasureEntry
) -> Interval | None:
    """A row's difference from the best over the clusters of both; None where they share none."""
    if best is None or row is best:
        return None
    known = set(best.units)
    shared = [unit for unit in row.units if unit in known]
    ours, theirs = _pick(row, shared), _pick(best, shared)
    if not (ours.counts.any() and theirs.counts.any()):
        return None
    return estimate_difference(ours, theirs, entry.is_share)


def is_behind(row: ComparedRow, best: ComparedRow, entry: MeasureEntry) -> bool:
    """Whether a row is clearly worse than the best: their difference has an interval beyond 0."""
    gap = subtract_best(row, best, entry)
    return gap is not None and (gap.low > 0 if entry.better == "lower" else gap.high < 0)


def _pick(row: ComparedRow, units: Sequence[Any]) -> Clusters:
    """A row's clusters of these units, in their order."""
    places = {unit: at for at, unit in enumerate(row.units)}
    at = [places[unit] for unit in units]
    return Clusters(row.clusters.sums[:, at], row.clusters.counts[:, at])


def add_up_compute(sweep: Sweep, folder: Path) -> tuple[int, float, float]:
    """How many models there are, and the operations and minutes that training them took.

    A run that copies share counts once.
    """
    members = _list_members(sweep, folder)
    flops = sum(each.own_flops for each in members)
    minutes = sum(each.own_seconds for each in members) / 60
    trunks = {each.point.folder.parent: each for each in members if each.point.cooldown is not None}
    for last in trunks.values():  # members are in the order of their steps: the longest trunk
        flops += last.facts["flops"] - last.own_flops
        minutes += (last.facts["seconds"] - last.own_seconds) / 60
    return len(members), flops, minutes

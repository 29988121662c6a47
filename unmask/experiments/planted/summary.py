"""What planted tokens did, in numbers: rates of cells, their differences, and which are clear."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from unmask.blocks import blocks, labels, tidy
from unmask.experiments.planted.section import (
    CELL,
    KEY,
    OUTCOMES,
    name_defence,
    name_effect,
    name_lengths,
    name_twins,
)
from unmask.measures.measure import Rows, Summary, Tables, judge_interval
from unmask.results.summaries import estimate_means, subtract_shares

if TYPE_CHECKING:
    from unmask.experiments.planted.measure import PlantedSettings


def summarise(tables: Tables, settings: "PlantedSettings") -> Summary:
    """Rates by cell and class of people; disclosing minus neutral; diffusion minus causal."""
    recalled = tables["recalled"].to_pylist()
    rows = tables["planted"].to_pylist()
    foreseen = tables["foreseen"].to_pylist()
    metrics = (*OUTCOMES, "decided_at", "foreseen_at")
    return {
        "recalled": estimate_means(
            recalled, ("model", "kind", "is_sealed"), ("recalled",), ("recalled",)
        ),
        "cells": estimate_means(rows, ("model", "kind", "is_sealed", *KEY), metrics, OUTCOMES),
        "foreseen": estimate_means(
            foreseen, ("model", "is_sealed", *KEY, "done"), ("refusal", "leak"), OUTCOMES
        ),
        "effects": list(_compare_plants(rows)),
        "lengths": list(_compare_lengths(rows)),
        "twins": list(_compare_twins(rows)),
        "defences": list(_compare_defences(rows)),
    }


def _compare_plants(rows: Rows) -> Iterator[dict[str, Any]]:
    """Outcomes of sealed people under disclosing plants minus those under neutral ones."""
    planted = [row for row in rows if row["is_sealed"] and row["plant"] != "none"]
    for key, own in tidy.group_by(planted, "model", *CELL).items():
        sides = [tidy.select(own, plant=plant) for plant in ("disclosing", "neutral")]
        if all(sides):
            for metric in ("leak", "refusal"):
                difference = subtract_shares(*sides, metric)
                yield (
                    dict(zip(("model", *CELL), key, strict=True)) | {"metric": metric} | difference
                )


def _compare_lengths(rows: Rows) -> Iterator[dict[str, Any]]:
    """At a fixed planted share: the longest canvas minus the shortest one."""
    shared = [row for row in rows if row["is_sealed"] and row["share"] and row["plant"] != "none"]
    for (model, plant), own in tidy.group_by(shared, "model", "plant").items():
        lengths = sorted(tidy.distinct(own, "length"))
        if len(lengths) > 1:
            sides = [tidy.select(own, length=each) for each in (lengths[-1], lengths[0])]
            for metric in ("leak", "refusal"):
                where = {"model": model, "plant": plant, "metric": metric}
                ends = {"longest": lengths[-1], "shortest": lengths[0]}
                yield where | ends | subtract_shares(*sides, metric)


def _compare_twins(rows: Rows) -> Iterator[dict[str, Any]]:
    """A diffusion model minus an autoregressive one, on the same prefixes of sealed people."""
    sealed = [row for row in rows if row["is_sealed"] and row["plant"] == "disclosing"]
    causal = [row for row in sealed if labels.is_causal(row["kind"])]
    others = [row for row in sealed if not labels.is_causal(row["kind"])]
    for key, theirs in tidy.group_by(causal, "model", *CELL).items():
        where = dict(zip(CELL, key[1:], strict=True))
        for model, ours in tidy.group_by(tidy.select(others, **where), "model").items():
            names = {"one": model, "other": key[0]}
            yield names | where | {"metric": "leak"} | subtract_shares(ours, theirs, "leak")


def _compare_defences(rows: Rows) -> Iterator[dict[str, Any]]:
    """Sealed people under the first plants: remasking minus none, a model minus the first.

    Cells come in the order of the sweep, so that the first planted one is what sweeps start from.
    """
    sealed = [row for row in rows if row["is_sealed"] and row["plant"] == "disclosing"]
    sealed = [row for row in sealed if not labels.is_causal(row["kind"])]
    if not sealed:
        return
    first = {name: sealed[0][name] for name in CELL if name != "remask"}
    sides = tidy.group_by(tidy.select(sealed, **first), "model", "remask")
    (model, none), *_ = sides
    for (own, remask), ours in sides.items():
        other = (own, none) if remask != none else (model, none)
        if other != (own, remask):
            names = {"model": own, "remask": remask, "minus": other[0]}
            for metric in ("refusal", "leak"):
                difference = subtract_shares(ours, sides[other], metric)
                yield names | {"planted": first["planted"], "metric": metric} | difference


def judge(summary: Summary, settings: "PlantedSettings") -> Iterable[blocks.Verdict]:
    """Whether plants, a long canvas, diffusion instead of a twin, and a defence do anything."""
    names = {
        "effects": name_effect,
        "lengths": name_lengths,
        "twins": name_twins,
        "defences": name_defence,
    }
    for table, name in names.items():
        for row in summary[table]:
            yield judge_interval(name(row), tidy.to_interval(row), row["facts"], "people")

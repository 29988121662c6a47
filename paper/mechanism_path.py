"""The path of a fact, for `mechanism.py`: which positions bring an answer back, and after which
layer."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from unmask.base.errors import UserError
from unmask.blocks import blocks, labels, tidy
from unmask.measures.result import Result
from unmask.measures.trace_effects import average_bands
from unmask.measures.trace_section import tabulate_bands
from unmask.measures.trace_summary import read_effects
from unmask.tracing.settings import WHOLE_ANSWER, WHOLE_SUBJECT

ROLES = ("whole subject", "whole prompt", "last prompt", "written", "masks", "whole answer")
"""Of the path, in the order of a text."""
MOST_BANDS = 6
"""Columns of the table of shares: layers, or bands of a deeper network's."""


def path_of_fact(trace: Result) -> list[blocks.ReportBlock]:
    """The first step's map, the numbers behind it, and what is alike; later steps folded away."""
    maps, shares = draw_path(trace), share_roles(trace)
    first, *later = maps

    def show(stages: Sequence[str]) -> Iterator[blocks.ReportBlock]:
        for stage in stages:
            yield maps[stage]
            yield tabulate_step(tidy.select(shares, stage=stage), stage)
        if own := [row for row in trace.summary["bands"] if row["stage"] in stages]:
            yield replace(tabulate_bands(own), name="alike-later" if stages == later else "alike")

    later_steps = [blocks.Fold("Later steps", [*show(later)])] if later else []
    return [*show([first]), *list_untraced(trace), *later_steps]


def list_untraced(trace: Result) -> Iterator[blocks.Notice]:
    """Why some models have no map of some ways of asking."""
    empty = [
        f"{row['model']}, {tidy.name_asked(row)} ({row['left_out']})"
        for row in trace.summary["counts"]
        if not row["kept"]
    ]
    if empty:
        yield blocks.Notice(f"Not traced, as no fact was left: {'; '.join(empty)}.")


def share_roles(trace: Result) -> list[tidy.Record]:
    """Shares with intervals by role and layer, which the summary has by their means alone."""
    rows = average_bands(read_effects(trace.tables, trace.settings), MOST_BANDS)
    return [row for row in rows if row["part"] == "resid" and row["role"] in ROLES]


def tabulate_step(shares: Sequence[tidy.Record], stage: str) -> blocks.Fold:
    """The numbers behind a map: ways of asking and models that compare stand one below another."""
    rows = [
        {**own[0], "cells": {(row["first"], row["last"]): tidy.to_interval(row) for row in own}}
        for own in tidy.group_by(shares, "model", "split", "role").values()
    ]

    def place(row: tidy.Record) -> tuple[Any, ...]:
        asked = tidy.name_asked(row)
        return asked.partition(",")[0], ROLES.index(row["role"]), asked

    rows.sort(key=place)
    columns: dict[str | blocks.Column, tidy.Get] = {
        "restored": lambda row: labels.ROLES[row["role"]],
        "asked": tidy.name_asked,
        "model": "model",
    }
    for first, last in sorted(tidy.distinct(shares, "first", "last")):
        name = f"after layer {first}" if first == last else f"after layers {first} to {last}"
        columns[blocks.Column(f"{name}, %", 0, is_percent=True)] = lambda row, at=(first, last): (
            row["cells"].get(at)
        )
    table = tidy.tabulate(
        f"shares-{stage.replace('+', '-')}",
        f"Share of the total effect that comes back, {labels.name_stage(stage)}",
        rows,
        columns | {"facts": "facts"},
        most=len(rows),
    )
    return blocks.Fold(f"Numbers of the figure, {labels.name_stage(stage)}", [table])


def draw_path(trace: Result) -> dict[str, blocks.Figure]:
    """For each step, effects of restoring all positions of a role as shares of the total effect."""
    averages = tidy.select(trace.summary["averages"], control="none")
    place = ("model", "split", "stage")
    totals = {
        tuple(row[name] for name in place): row["mean"]
        for row in averages
        if row["part"] == "total"
    }
    rows = []
    for row in averages:
        total = totals.get(tuple(row[name] for name in place))
        if row["part"] == "resid" and row["role"] in ROLES and total:
            rows.append({**row, "share": 100 * row["mean"] / total})
    if not rows:
        raise UserError(
            f"{trace.folder} restored no roles: expected a run of `unmask trace --cells roles` "
            "with the part resid."
        )
    rows.sort(key=lambda row: (ROLES.index(row["role"]), row["layer"]))
    return {stage: _draw_step(stage, own) for stage, own in tidy.group_by(rows, "stage").items()}


def _draw_step(stage: str, rows: Sequence[tidy.Record]) -> blocks.Figure:
    return tidy.draw_map(
        rows,
        stage.replace("+", "-"),
        f"Which positions bring the answer back, after which layer, {labels.name_stage(stage)}",
        "Share of what hiding the subject takes that comes back when all positions of a role get "
        "their clean states after a layer; 100 % is all of it.",
        x="layer",
        y=lambda row: labels.ROLES[row["role"]],
        ends=("share",),
        choose=[tidy.ASKED],
        xlabel="after layer",
        ylabel="% of the total effect",
        is_signed=True,
    )


def find_leads(trace: Result) -> Iterator[tuple[tuple[str, str], int]]:
    """By model and way of asking, the layer from which on the answer's positions give back more
    than the whole subject, at the first step."""
    averages = tidy.select(trace.summary["averages"], control="none", part="resid")
    first = tidy.select(averages, stage=averages[0]["stage"])
    for key, rows in tidy.group_by(first, "model", "split").items():
        subject, answer = (
            {row["layer"]: row["mean"] for row in tidy.select(rows, role=role)}
            for role in (WHOLE_SUBJECT, WHOLE_ANSWER)
        )
        behind = [layer for layer in answer if subject.get(layer, 0.0) > answer[layer]]
        yield key, 1 + max(behind, default=-1)

"""Figures of symmetry: measures beside chance, every key beside every value, layer by layer."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from unmask.blocks.blocks import (
    Control,
    Dot,
    DotPanel,
    Figure,
    LinePanel,
    MapPanel,
    Panel,
    make_views,
)
from unmask.blocks.labels import COMPARED, GROUPS, LIKENESSES, colour_models, count
from unmask.evaluation.statistics import Interval
from unmask.measures.measure import Rows
from unmask.measures.represent_section import draw_line
from unmask.measures.summaries import distinct, select

_SIDES = {
    "value": ("the value (v*)", "p0"),
    "v0": ("before any search (v0)", "p1"),
    "delta": ("what the search added (delta)", "p2"),
}
"""What a concept's key is compared with."""


def read_value(row: Mapping[str, Any]) -> Interval:
    """A likeness with its interval."""
    return Interval(row["value"], row["low"], row["high"])


def read_null(row: Mapping[str, Any]) -> Interval:
    """Where the likeness of shuffled pairs lies."""
    return Interval(row["null_mean"], row["null_low"], row["null_high"])


def draw_measures(lines: Rows, shown: Rows) -> Figure:
    """Every measure with its interval beside chance; what has no value is left out."""
    rows = [row for row in lines if math.isfinite(row["value"])]
    groups, comparisons = distinct(shown, "group"), distinct(rows, "comparison")
    colours = colour_models(dict(distinct(shown, "model", "kind")))

    def fill(group: str, comparison: str) -> Sequence[Panel]:
        panels = []
        for place in select(shown, group=group):
            where = {name: place[name] for name in ("model", "group", "layer")}
            dots = [
                Dot(
                    LIKENESSES[row["measure"]],
                    place["model"],
                    colours[place["model"]],
                    read_value(row),
                    f"{count(row['facts'], 'fact')}, corrected p {row['p_holm']:.3f}",
                    read_null(row),
                )
                for row in select(rows, comparison=comparison, **where)
            ]
            panels.append(DotPanel(f"{place['model']}, layer {place['layer']}", dots))
        return panels

    return Figure(
        name="symmetry",
        title="How alike keys and values are",
        alt="Dots with intervals beside the range of chance, for each measure of likeness, one "
        "panel for each model.",
        caption="Larger is more alike. Bars are 95 % intervals by fact; grey: where 95 % of "
        "shuffled pairings lie.",
        chart="dots",
        views=make_views([groups, comparisons], fill),
        controls=[
            Control("facts", [GROUPS[group] for group in groups]),
            Control("compared", [COMPARED[comparison] for comparison in comparisons]),
        ],
        xlabel="likeness",
    )


def draw_similarity(similarity: Rows) -> Figure:
    """Cosines of every fact's key with every fact's value."""
    groups, concepts = distinct(similarity, "group"), distinct(similarity, "concept")

    def fill(group: str, concept: str) -> Sequence[Panel]:
        panels = []
        for model, layer in distinct(select(similarity, group=group), "model", "layer"):
            rows = select(similarity, group=group, concept=concept, model=model)
            facts = dict(distinct(rows, "key_of", "key_name"))
            cosines = {(row["key_of"], row["value_of"]): row["cosine"] for row in rows}
            panels.append(
                MapPanel(
                    f"{model}, layer {layer}",
                    list(facts.values()),
                    list(facts.values()),
                    [[cosines[key, value] for value in facts] for key in facts],
                    notes=[f"with its own value {cosines[fact, fact]:.2f}" for fact in facts],
                )
            )
        return panels

    return Figure(
        name="similarity",
        title="Every key beside every value",
        alt="Heatmaps of cosines, one panel for each model: rows are keys, columns values, facts "
        "in one order.",
        caption="Rows: keys, through the layer's own down projection; columns: values; means taken "
        "off. On the diagonal from the top left, a key meets its own value: if they mirrored each "
        "other, it would stand out.",
        chart="heatmap",
        views=make_views([groups, concepts], fill),
        controls=[
            Control("facts", [GROUPS[group] for group in groups]),
            Control("concept", [f"{concept}s" for concept in concepts]),
        ],
        xlabel="value of",
        ylabel="cosine",
        is_signed=True,
    )


def draw_layers(lines: Rows) -> Figure:
    """How often a value finds its own key first, layer by layer."""
    groups, concepts = distinct(lines, "group"), ("name", "description")
    kinds = dict(distinct(lines, "model", "kind"))

    def fill(group: str, concept: str) -> Sequence[Panel]:
        panels = []
        for model in kinds:
            rows = select(lines, model=model, group=group, measure="top-1")
            points = {
                side: select(rows, comparison=f"{concept}: key and {side}") for side in _SIDES
            }
            drawn = [
                draw_line(label, colour, points[side], "value", "low", "high")
                for side, (label, colour) in _SIDES.items()
            ]
            null = ("null_mean", "null_low", "null_high")
            drawn.append(draw_line("shuffled pairs", "control", points["value"], *null, dash="dot"))
            panels.append(LinePanel(model, drawn))
        return panels

    return Figure(
        name="layers",
        title="How often a value finds its own key first, by layer",
        alt="Line charts by layer of how often v*, v0 and delta of a concept are nearest to its "
        "own key, one panel for each model, beside shuffled pairs.",
        caption="Bands are 95 % intervals by fact, and where 95 % of shuffled pairings lie.",
        chart="lines",
        views=make_views([groups, concepts], fill),
        controls=[
            Control("facts", [GROUPS[group] for group in groups]),
            Control("concept", [f"{concept}s" for concept in concepts]),
        ],
        xlabel="layer",
        ylabel="share of facts",
        limits=(0.0, 1.0),
    )

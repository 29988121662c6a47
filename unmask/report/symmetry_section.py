"""Keys and values on the page: do the two directions mirror each other?"""

import math

from unmask.evaluation.statistics import ALPHA
from unmask.report.artefacts import SIMILARITY, SYMMETRY, Row, StudyFolder
from unmask.report.blocks import Block, Figure, Missing, Section, Words
from unmask.report.tracing_names import KINDS
from unmask.representation.symmetry import OVERLAP

GROUPS = {
    "p2d": "trained from name to description",
    "d2p": "trained from description to name",
    "both": "trained both ways",
    "own": "one's own facts",
}


def tell_symmetry(run: StudyFolder, prefix: str = "") -> Section:
    """The section of keys and values."""
    title = "Do keys and values mirror each other?"
    name = f"{prefix}symmetry-section"
    notes = run.notes("symmetry")
    if not run.has(SYMMETRY) and notes:
        return Section(name, title, [Missing(note) for note in notes])
    blocks: list[Block] = [
        Words(
            "Asked with a name, the network looks the name up (its key) and answers a description "
            "(its value); asked with the description, it is the other way round. If both "
            "directions used one memory, the key of a concept in one would resemble its value in "
            "the other. Nulls are the same vectors with their pairs shuffled."
        ),
        _draw_measures(run.rows(SYMMETRY), f"{prefix}symmetry"),
        _draw_maps(run.rows(SIMILARITY), f"{prefix}similarity"),
    ]
    blocks += [Words(note) for note in notes]
    return Section(name, title, blocks)


def _draw_measures(rows: list[Row], name: str) -> Figure:
    """Every measure with its interval and the span of its null; what has no value is left out."""
    rows = [row for row in rows if math.isfinite(row["value"])]
    groups = list(dict.fromkeys(row["group"] for row in rows))
    comparisons = list(dict.fromkeys(row["comparison"] for row in rows))
    views = {}
    for i, group in enumerate(groups):
        for j, comparison in enumerate(comparisons):
            mine = [row for row in rows if (row["group"], row["comparison"]) == (group, comparison)]
            views[f"{i}|{j}"] = {
                "rows": [
                    {
                        "label": row["measure"],
                        "group": f"{KINDS[row['kind']]}, layer {row['layer']}",
                        "colour": "diffusion" if row["kind"] == "masked" else "causal",
                        "mean": row["value"],
                        "low": row["low"],
                        "high": row["high"],
                        "null_low": row["null_low"],
                        "null_high": row["null_high"],
                        "note": f"{row['facts']} facts, corrected p {row['p_holm']:.3f}",
                    }
                    for row in mine
                ]
            }
    tested = [row for row in rows if not row["control"] and row["measure"] != OVERLAP]
    clear = sum(row["p_holm"] <= ALPHA for row in tested)
    return Figure(
        name=name,
        title="How alike keys and values are",
        alt="Dots with intervals beside the span of chance, for each measure of likeness and each "
        f"model. {clear} of {len(tested)} that compare pairs, controls aside, lie above chance "
        "with a corrected p below 0.05.",
        caption="Larger is more alike. Grey bars: where 95 % of shuffled pairings lie.",
        chart="dots",
        data={
            "controls": [
                {"label": "facts", "options": [GROUPS.get(group, group) for group in groups]},
                {"label": "compared", "options": comparisons},
            ],
            "views": views,
            "xlabel": "measure",
        },
    )


def _draw_maps(rows: list[Row], name: str) -> Figure:
    """Cosines of every concept's key with every concept's value."""
    names = ("kind", "group", "layer")
    places = list(dict.fromkeys(tuple(row[each] for each in names) for row in rows))
    concepts = list(dict.fromkeys(row["concept"] for row in rows))
    views = {}
    for i, place in enumerate(places):
        for j, concept in enumerate(concepts):
            mine = [
                row
                for row in rows
                if tuple(row[each] for each in names) == place and row["concept"] == concept
            ]
            keys = list(dict.fromkeys(row["key_of"] for row in mine))
            at = {(row["key_of"], row["value_of"]): row["cosine"] for row in mine}
            views[f"{i}|{j}"] = {
                "x": keys,
                "y": keys,
                "z": [[at[one, other] for other in keys] for one in keys],
            }
    return Figure(
        name=name,
        title="Similarity maps",
        alt="Heatmaps of cosines: rows are keys, columns values, in one order of facts. A dark "
        "diagonal would say that each key resembles its own value in the other direction.",
        caption="Keys are mapped to the width of values by the layer's own down projection; means "
        "are taken off.",
        chart="heatmap",
        data={
            "controls": [
                {
                    "label": "model and facts",
                    "options": [
                        f"{KINDS[kind]}, {GROUPS.get(group, group)}, layer {layer}"
                        for kind, group, layer in places
                    ],
                },
                {"label": "concept", "options": concepts},
            ],
            "views": views,
            "xlabel": "value of",
            "value": "cosine",
            "signed": True,
        },
    )

"""Keys and values beside each other in sentences: v*, its v0 and its delta always together."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from unmask.base.errors import describe_notice
from unmask.blocks import labels, tidy
from unmask.blocks.blocks import Column, Figure, Finding, Fold, Notice, ReportBlock, Table, Text
from unmask.measures.represent_section import FACTS
from unmask.representation.likeness import NEEDED_FACTS, OVERLAP

if TYPE_CHECKING:
    from unmask.measures.result import Result

ASKED = ("name: key and value", "description: key and value")
"""The comparisons that the study asks about."""
SIDES = {"value": "p0", "v0": "p1", "delta": "p2"}
"""What a concept's key is compared with, in the colours of the figure."""
CONCEPT = tidy.Choose("concept", "concept", lambda concept: f"{concept}s")
COMPARED = tidy.Choose("compared", "comparison", labels.COMPARED.__getitem__)
VALUE, NULL = ("value", "low", "high"), ("null_mean", "null_low", "null_high")


def name_line(row: tidy.Record) -> str:
    """The claim that a measure tells true pairs from shuffled ones."""
    place = f"{row['model']}: {row['group']}: layer {row['layer']}"
    return f"{place}: {row['comparison']}: {row['measure']}"


def lacks_values(row: tidy.Record) -> bool:
    """Whether a line is about values of which too few restore their answers."""
    restored = row.get("restored")
    return restored is not None and restored < NEEDED_FACTS and not row["control"]


def name_difference(row: tidy.Record) -> str:
    """The claim that one model's sides are more alike than another's."""
    models = f"{row['one']} layer {row['layer_one']} − {row['other']} layer {row['layer_other']}"
    return f"{models}: {row['group']}: {row['comparison']}: {row['measure']}"


def read_counts(place: tidy.Record) -> dict[str, Any]:
    """The values of the notice about a place with too few facts."""
    return {
        "group": f"The group of {labels.GROUPS[place['group']]} ({place['model']})",
        "count": place["facts"],
        "layer": place["layer"],
        "diverged": place["diverged"],
        "needed": NEEDED_FACTS,
    }


def describe(result: "Result") -> Sequence[ReportBlock]:
    """A sentence for each model, the figures, how often values find their keys; the rest folded."""
    summary = result.summary
    by_layer = [_spread(row) for row in tidy.select(summary["lines"], measure="top-1")]
    by_layer = [row for row in by_layer if row["side"] in SIDES]
    blocks: list[ReportBlock] = [
        *_state_retrieval(result, by_layer),
        draw_measures(summary["lines"]),
    ]
    blocks.append(_draw_similarity(summary["similarity"]))
    layers = tidy.distinct(by_layer, "model", "layer")
    if len(layers) > len(tidy.distinct(by_layer, "model")):
        blocks.append(_draw_layers(by_layer))
    blocks.append(_tabulate_retrieval(result, by_layer))
    blocks += [
        Notice(describe_notice("few pairs", read_counts(place)))
        for place in summary["places"]
        if place["facts"] < NEEDED_FACTS
    ]
    blocks.append(Fold("Every measure", [_tabulate_measures(result)]))
    if summary["differences"]:
        blocks.append(Fold("Differences between models", list(_compare_models(result))))
    notes = labels.LIKENESS_NOTES.items()
    explained = [Text(f"{labels.LIKENESSES[name]}: {note}.") for name, note in notes]
    return [*blocks, Fold("What the measures are", explained)]


def _spread(row: tidy.Record) -> dict[str, Any]:
    """A row with its comparison taken apart: which concept, which side its key is compared with."""
    concept, _, sides = row["comparison"].partition(": ")
    return {**row, "concept": concept, "side": sides.rpartition(" ")[2]}


def _state_retrieval(result: "Result", rows: tidy.Records) -> Iterator[Finding]:
    """For each model, names in the first group of facts, at the layer that is shown."""
    for model, own in tidy.group_by(tidy.select(rows, is_shown=True), "model").items():
        first = own[0]
        names = tidy.select(own, group=first["group"], concept="name")
        sides = {row["side"]: row for row in names}
        shares = {
            side: tidy.say(tidy.to_interval(row, VALUE), "%")
            if math.isfinite(row["value"])
            else "none, as it is the same for all"
            for side, row in sides.items()
        }
        verdicts = {side: result.verdicts[name_line(row)] for side, row in sides.items()}
        layers = tidy.distinct(tidy.select(rows, model=model), "layer")
        best = f", the best of {len(layers)}" if len(layers) > 1 else ""
        yield Finding(
            f"In {model} ({labels.KINDS[first['kind']]}, layer {first['layer']}{best}), a name's "
            f"value ({_name_asked(first['group'], 'name')}) is nearest to the name's own key for "
            f"{shares['value']} of {labels.count(first['facts'], 'fact')}; without any search (v0) "
            f"for {shares['v0']}, with what the search added alone (delta) for {shares['delta']}; "
            f"chance {100 * sides['value']['null_mean']:.0f} %. "
            + (
                f"Only {sides['value']['restored']} values restore their answers: nothing follows "
                "about values."
                if lacks_values(sides["value"])
                else _conclude(*(verdicts[side].is_clear for side in SIDES))
            ),
            verdicts["value"],
        )


def _conclude(value: bool, v0: bool, delta: bool) -> str:
    """The conclusion from which of the three are clear."""
    if value and v0:
        return "The states of the two prompts are alike, fact by fact, before any search."
    if value and delta:
        return "What the search added is like the key, fact by fact; v0 not clearly so."
    if value:
        return "Together v0 and delta are like the key, fact by fact; neither alone clearly so."
    if v0:
        return "Only before the search are the two states clearly alike, fact by fact."
    return "No difference from shuffled pairs was found."


def _name_asked(group: str, concept: str) -> str:
    """The way of asking in which a group's concept is a value."""
    direction = {"name": "d2p", "description": "p2d"}[concept]
    if group in ("p2d", "d2p"):
        trained = "same" if direction == group else "reverse"
        return labels.name_split(labels.SPLITS[direction, trained])
    return labels.name_split(f"both_{direction}" if group == "both" else group)


def draw_measures(lines: tidy.Records) -> Figure:
    """Every measure with its interval beside chance; what has no value is left out."""
    rows = [row for row in lines if row["is_shown"] and math.isfinite(row["value"])]
    colours = labels.colour_models(dict(tidy.distinct(rows, "model", "kind")))
    return tidy.draw_dots(
        rows,
        "symmetry",
        "How alike keys and values are",
        "Larger is more alike. Bars are 95 % intervals by fact; grey: where 95 % of shuffled "
        "pairings lie.",
        label=lambda row: labels.LIKENESSES[row["measure"]],
        group="model",
        colour=lambda row: colours[row["model"]],
        ends=VALUE,
        note=lambda row: f"corrected p {row['p_holm']:.3f}",
        null=NULL,
        panel=_name_panel,
        choose=[FACTS, COMPARED],
        xlabel="likeness",
    )


def _draw_similarity(similarity: tidy.Records) -> Figure:
    """Cosines of every fact's key with every fact's value."""
    return tidy.draw_map(
        similarity,
        "similarity",
        "Every key beside every value",
        "Rows: keys, through the layer's own down projection; columns: values; means taken off. In "
        "the outlined cells a key meets its own value: if they mirrored each other, these would "
        "stand out.",
        x="value_name",
        y="key_name",
        ends=("cosine",),
        panel=_name_panel,
        choose=[FACTS, CONCEPT],
        xlabel="value of",
        ylabel="cosine",
        is_signed=True,
        is_paired=True,
    )


def _name_panel(row: tidy.Record) -> str:
    return f"{row['model']}, layer {row['layer']}"


def _draw_layers(rows: tidy.Records) -> Figure:
    """How often a value finds its own key first, layer by layer."""
    chance = [
        {**row, "side": "shuffled"}
        | {end: row[null] for end, null in zip(VALUE, NULL, strict=True)}
        for row in tidy.select(rows, side="value")
    ]
    lines = {
        "value": "the value (v*)",
        "v0": "before any search (v0)",
        "delta": "what the search added (delta)",
        "shuffled": "shuffled pairs",
    }
    return tidy.draw_lines(
        [*rows, *chance],
        "layers",
        "How often a value is nearest to its own key, by layer",
        "Bands are 95 % intervals by fact, and where 95 % of shuffled pairings lie.",
        x="layer",
        line=lambda row: lines[row["side"]],
        colour=lambda row: SIDES.get(row["side"], "control"),
        dash=lambda row: "solid" if row["side"] in SIDES else "dot",
        ends=VALUE,
        choose=[FACTS, CONCEPT],
        xlabel="layer",
        ylabel="share of facts",
        limits=(0.0, 1.0),
    )


def _tabulate_retrieval(result: "Result", rows: tidy.Records) -> Table:
    """The value, v0 and delta of a concept side by side, values that find their keys first."""
    place = ("model", "group", "layer", "concept")
    sides = {(*(row[name] for name in place), row["side"]): row for row in rows}

    def find(side: str) -> tidy.Get:
        return lambda row: tidy.to_interval(sides[(*(row[n] for n in place), side)], VALUE)

    return tidy.tabulate(
        "retrieval",
        "How often a value, v0 or delta is nearest to its own key",
        sorted(tidy.select(rows, side="value"), key=lambda row: -row["value"]),
        {
            "model": "model",
            "value asked": lambda row: _name_asked(row["group"], row["concept"]),
            "layer": "layer",
            "facts": "facts",
            "diverged": "diverged",
            "values that restore": "restored",
            **{Column(f"key and {side}, %", 0, is_percent=True): find(side) for side in SIDES},
            Column("chance, %", 0, is_percent=True): "null_mean",
            Column("corrected p of the value", 3): "p_family",
        },
        result.mark(name_line),
    )


def _tabulate_measures(result: "Result") -> Table:
    """All measures of all comparisons, those that pass their test first, `overlap` last."""
    mark = result.mark(name_line)
    return tidy.tabulate(
        "measures",
        "Every measure on true and on shuffled pairs",
        sorted(
            (row for row in result.summary["lines"] if math.isfinite(row["value"])),
            key=lambda row: (row["measure"] == OVERLAP, row["p_holm"], -row["value"]),
        ),
        {
            "model": "model",
            "facts": lambda row: labels.GROUPS[row["group"]],
            "layer": "layer",
            "compared": lambda row: labels.COMPARED[row["comparison"]],
            "measure": lambda row: labels.LIKENESSES[row["measure"]],
            Column("likeness", 3): lambda row: tidy.to_interval(row, VALUE),
            Column("shuffled", 3): lambda row: tidy.to_interval(row, NULL),
            Column("p", 3): "p",
            Column("corrected p", 3): "p_holm",
            Column("over layers", 3): "p_family",
        },
        lambda row: "control" if row["control"] else mark(row),
        most=24,
    )


def _compare_models(result: "Result") -> Iterator[ReportBlock]:
    """Differences of key and value between models, the clearest first."""
    rows = [
        row
        for row in result.summary["differences"]
        if row["comparison"] in ASKED and row["measure"] != OVERLAP
    ]
    mark = result.mark(name_difference)
    clear = [row for row in rows if mark(row) == "strong"]
    yield Text(
        f"{len(clear)} of {len(rows)} differences of a key and its value leave out 0 "
        "(not corrected for their number). They are paired by fact."
    )
    yield tidy.tabulate(
        "differences",
        "Differences between models",
        sorted(rows, key=lambda row: -max(row["low"], -row["high"])),
        {
            "models": lambda row: f"{row['one']} − {row['other']}",
            "facts": lambda row: labels.GROUPS[row["group"]],
            "layers": lambda row: f"{row['layer_one']}, {row['layer_other']}",
            "compared": lambda row: labels.COMPARED[row["comparison"]],
            "measure": lambda row: labels.LIKENESSES[row["measure"]],
            Column("difference", 3, has_sign=True): tidy.to_interval,
        },
        mark,
    )

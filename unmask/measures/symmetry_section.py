"""Keys and values beside each other in sentences: v*, its v0 and its delta always together."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from unmask.base.errors import describe_notice
from unmask.blocks.blocks import (
    Block,
    Column,
    Finding,
    Fold,
    Notice,
    Row,
    Section,
    Table,
    Text,
)
from unmask.blocks.labels import (
    COMPARED,
    GROUPS,
    KINDS,
    LIKENESS_NOTES,
    LIKENESSES,
    SPLITS,
    count,
    name_split,
)
from unmask.measures.measure import Rows
from unmask.measures.represent_section import format_share
from unmask.measures.summaries import distinct, select, to_interval
from unmask.measures.symmetry_figures import (
    draw_layers,
    draw_measures,
    draw_similarity,
    read_null,
    read_value,
)
from unmask.representation.likeness import NEEDED_FACTS, OVERLAP

if TYPE_CHECKING:
    from unmask.measures.result import Result

SIDES = ("value", "v0", "delta")
"""What a concept's key is compared with."""
ASKED = ("name: key and value", "description: key and value")
"""The comparisons that the study asks about."""


def name_line(row: Mapping[str, Any]) -> str:
    """The claim that a measure tells true pairs from shuffled ones."""
    place = f"{row['model']}: {row['group']}: layer {row['layer']}"
    return f"{place}: {row['comparison']}: {row['measure']}"


def name_difference(row: Mapping[str, Any]) -> str:
    """The claim that one model's sides are more alike than another's."""
    models = f"{row['one']} layer {row['layer_one']} − {row['other']} layer {row['layer_other']}"
    return f"{models}: {row['group']}: {row['comparison']}: {row['measure']}"


def read_counts(place: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the notice about a place with too few facts."""
    return {
        "group": f"The group of {GROUPS[place['group']]} ({place['model']})",
        "count": place["facts"],
        "layer": place["layer"],
        "diverged": place["diverged"],
        "needed": NEEDED_FACTS,
    }


def describe_symmetry(result: "Result") -> Section:
    """A sentence for each model, the figures, how often values find their keys; the rest folded."""
    summary, lines = result.summary, result.summary["lines"]
    blocks: list[Block] = [*_state_retrieval(result)]
    blocks.append(draw_measures(lines, select(summary["places"], is_shown=True)))
    blocks.append(draw_similarity(summary["similarity"]))
    if any(len(distinct(select(lines, model=m), "layer")) > 1 for m in distinct(lines, "model")):
        blocks.append(draw_layers(lines))
    blocks.append(_tabulate_retrieval(result))
    blocks += [
        Notice(describe_notice("few pairs", read_counts(place)))
        for place in summary["places"]
        if place["facts"] < NEEDED_FACTS
    ]
    blocks.append(Fold("Every measure", [_tabulate_measures(result)]))
    if summary["differences"]:
        blocks.append(Fold("Differences between models", list(_compare_models(result))))
    blocks += [Fold("What the measures are", _explain_measures()), Fold("Method", _explain())]
    return Section("symmetry", result.measure.title, blocks)


def _take_sides(lines: Rows, place: Mapping[str, Any], concept: str) -> dict[str, Mapping]:
    """How often the value, v0 and delta of a concept find its key first."""
    where = {name: place[name] for name in ("model", "group", "layer")} | {"measure": "top-1"}
    return {
        side: select(lines, comparison=f"{concept}: key and {side}", **where)[0] for side in SIDES
    }


def _state_retrieval(result: "Result") -> Iterator[Finding]:
    """For each model, names in the first group of facts, at the layer that is shown."""
    shown = select(result.summary["places"], is_shown=True)
    for model in distinct(shown, "model"):
        place = select(shown, model=model)[0]
        sides = _take_sides(result.summary["lines"], place, "name")
        verdicts = {side: result.verdicts[name_line(row)] for side, row in sides.items()}
        shares = {side: format_share(read_value(row)) for side, row in sides.items()}
        layers = distinct(select(result.summary["places"], model=model), "layer")
        best = f", the best of {len(layers)}" if len(layers) > 1 else ""
        is_clear = {side: verdict.is_clear for side, verdict in verdicts.items()}
        text = (
            f"In {model} ({KINDS[place['kind']]}, layer {place['layer']}{best}), a name's value "
            f"({name_asked(place['group'], 'd2p')}) is nearest to the name's own key for "
            f"{shares['value']} of {count(place['facts'], 'fact')}; without any search (v0) for "
            f"{shares['v0']}, with what the search added alone (delta) for {shares['delta']}; "
            f"chance {100 * sides['value']['null_mean']:.0f} %. {_conclude(is_clear)}"
        )
        yield Finding(text, verdicts["value"])


def _conclude(is_clear: Mapping[str, bool]) -> str:
    if is_clear["value"] and is_clear["v0"]:
        return "The states of the two prompts share which fact it is before any search."
    if is_clear["value"] and is_clear["delta"]:
        return "What the search added shares with the key which fact it is; v0 does not clearly."
    if is_clear["value"]:
        return "Together v0 and delta share with the key which fact it is; neither does clearly."
    if is_clear["v0"]:
        return "Only before the search do the two states clearly share which fact it is."
    return "That is no more than shuffled pairs give."


def name_asked(group: str, direction: str) -> str:
    """The way of asking of a group's facts in a direction."""
    if group in ("p2d", "d2p"):
        return name_split(SPLITS[direction, "same" if direction == group else "reverse"])
    return name_split(f"both_{direction}" if group == "both" else group)


def _tabulate_retrieval(result: "Result") -> Table:
    rows: list[tuple[float, Row]] = []
    for place in result.summary["places"]:
        if place["facts"] < NEEDED_FACTS:
            continue
        for concept, direction in (("name", "d2p"), ("description", "p2d")):
            sides = _take_sides(result.summary["lines"], place, concept)
            values = [read_value(row) for row in sides.values()]
            first = sides["value"]
            asked = name_asked(place["group"], direction)
            which = [place["model"], asked, place["layer"], place["facts"], place["diverged"]]
            is_clear = result.verdicts[name_line(first)].is_clear
            cells = [*which, *values, first["null_mean"], first["p_holm"]]
            rows.append((first["value"], Row(cells, "strong" if is_clear else "plain")))
    ordered = [row for _, row in sorted(rows, key=lambda pair: -pair[0])]
    labels = ("model", "value asked", "layer", "facts", "diverged")
    shares = ("key and value", "key and v0", "key and delta", "chance")
    columns = [Column(label) for label in labels]
    columns += [Column(f"{label}, %", 0, is_percent=True) for label in shares]
    columns.append(Column("corrected p of the value", 3))
    caption = "How often a value, v0 or delta is nearest to its own key"
    return Table("retrieval", caption, columns, ordered)


def _rank_line(line: Mapping[str, Any]) -> tuple[bool, float, float]:
    """What passes its test first; the measure that knows no pairs last."""
    return line["measure"] == OVERLAP, line["p_holm"], -line["value"]


def _tabulate_measures(result: "Result") -> Table:
    """All measures of all comparisons, those that pass their test first."""
    rows = []
    for line in sorted(result.summary["lines"], key=_rank_line):
        verdict = result.verdicts.get(name_line(line))
        is_clear = verdict is not None and verdict.is_clear
        role = "control" if line["control"] else "strong" if is_clear else "plain"
        value = read_value(line)
        is_measured = math.isfinite(line["value"])
        tests = [read_null(line), line["p"], line["p_holm"]] if is_measured else [None] * 3
        which = [line["model"], GROUPS[line["group"]], line["layer"]]
        compared = [COMPARED[line["comparison"]], LIKENESSES[line["measure"]]]
        rows.append(Row([*which, *compared, value, *tests], role))
    labels = ("model", "facts", "layer", "compared", "measure")
    columns = [Column(label) for label in labels]
    columns += [Column(label, 3) for label in ("likeness", "shuffled", "p", "corrected p")]
    return Table("measures", "Every measure on true and on shuffled pairs", columns, rows, 24)


def _compare_models(result: "Result") -> Iterator[Block]:
    """Differences of key and value between models, the clearest first."""
    differences = [
        row
        for row in result.summary["differences"]
        if row["comparison"] in ASKED and row["measure"] != OVERLAP
    ]
    clear = [row for row in differences if result.verdicts[name_difference(row)].is_clear]
    yield Text(
        f"{len(clear)} of {len(differences)} differences of a key and its value leave out 0 (not "
        "corrected for their number). They are paired by fact."
    )
    rows = []
    for row in sorted(differences, key=_measure_distance, reverse=True):
        layers = dict.fromkeys((row["layer_one"], row["layer_other"]))
        which = [f"{row['one']} − {row['other']}", GROUPS[row["group"]]]
        which += [", ".join(map(str, layers)), COMPARED[row["comparison"]]]
        is_clear = row in clear
        rows.append(
            Row(
                [*which, LIKENESSES[row["measure"]], to_interval(row)],
                "strong" if is_clear else "plain",
            )
        )
    labels = ("models", "facts", "layer", "compared", "measure")
    columns = [*(Column(label) for label in labels), Column("difference", 3, has_sign=True)]
    yield Table("differences", "Differences between models", columns, rows)


def _measure_distance(row: Mapping[str, Any]) -> float:
    """How far an interval stays away from 0; negative where it holds it."""
    return max(row["low"], -row["high"])


def _explain_measures() -> list[Block]:
    return [Text(f"{LIKENESSES[name]}: {note}.") for name, note in LIKENESS_NOTES.items()]


def _explain() -> list[Block]:
    return [
        Text(
            "The key of a concept is read where it is given, its value where it is asked for. v0 "
            "is the MLP's own output at the last subject token before any search, so that what a "
            "key shares with v0 is no finding about values. Cosine, retrieval and the map take the "
            "key through the layer's down projection; the others take it as it is. All vectors are "
            "centred over the facts. Facts whose search diverged are left out."
        ),
        Text(
            "p is the share of shuffled pairings at least as alike, corrected (Holm) for the "
            "measures of one comparison at one layer in one group of facts, not for the number of "
            "comparisons. Of several layers, the one where values find their keys best is shown: "
            "it was chosen on the same facts. A likeness says that pairs can be told apart, not "
            "that the network uses it; in a diffusion model the subject also sees the answer's "
            "masks, which can carry what is predicted there."
        ),
    ]

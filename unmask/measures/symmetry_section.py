"""Keys and values beside each other in sentences: v*, its v0 and its delta always together."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from unmask.base.errors import describe_notice
from unmask.blocks import blocks, labels, tidy
from unmask.representation.likeness import NEEDED_FACTS, OVERLAP
from unmask.results.summaries import Summary, mark_outcome

if TYPE_CHECKING:
    from unmask.measures.result import Result

ASKED = ("name: key and value", "description: key and value")
"""The comparisons that the study asks about."""
CHOOSE_FACTS = tidy.Choose("facts", "group", labels.GROUPS.__getitem__)
CHOOSE_SIDES = tidy.Choose("compared", "comparison", labels.COMPARED.__getitem__)
VALUE, NULL = ("value", "low", "high"), ("null_mean", "null_low", "null_high")


def lacks_values(row: tidy.Record) -> bool:
    """Whether a line is about values of which too few restore their answers."""
    restored = row.get("restored")
    return restored is not None and restored < NEEDED_FACTS and not row["control"]


def read_counts(place: tidy.Record) -> dict[str, Any]:
    """The values of the notice about a place with too few facts."""
    group = f"The group of {labels.GROUPS[place['group']]} ({place['model']})"
    counts = {"count": place["facts"], "needed": NEEDED_FACTS, "diverged": place["diverged"]}
    return counts | {"group": group, "layer": place["layer"]}


def describe(result: "Result") -> Sequence[blocks.ReportBlock]:
    """A sentence for each model, the figures; every measure and what it is are folded."""
    summary, notes = result.summary, labels.LIKENESS_NOTES.items()
    few = [place for place in summary["places"] if place["facts"] < NEEDED_FACTS]
    explained = [blocks.Text(f"{labels.LIKENESSES[name]}: {note}.") for name, note in notes]
    return [
        *_state(summary["lines"]),
        draw_measures(summary["lines"]),
        _draw_similarity(summary["similarity"]),
        *(blocks.Notice(describe_notice("few pairs", read_counts(place))) for place in few),
        blocks.Fold("Every measure", list(_tabulate(summary))),
        blocks.Fold("What the measures are", explained),
    ]


def _state(lines: tidy.Records) -> Iterator[blocks.Finding]:
    """For each model, names in the first group of facts, at the layer that is shown."""
    hits = tidy.select(lines, measure="top-1", is_shown=True)
    for model, own in tidy.group_by(hits, "model").items():
        names = {row["comparison"]: row for row in tidy.select(own, group=own[0]["group"])}
        sides = [names[f"name: key and {side}"] for side in ("value", "v0", "delta")]
        shares = [tidy.say(tidy.to_interval(row, VALUE), "%") for row in sides]
        conclusion = _conclude(*(blocks.is_clear(row["outcome"]) for row in sides))
        value = sides[0]
        if lacks_values(value):
            few = f"Only {value['restored']} values restore their answers"
            conclusion = f"{few}: nothing follows about values."
        yield blocks.Finding(
            f"In {model} ({labels.GROUPS[value['group']]}, best layer {value['layer']}), a name's "
            f"value is nearest to the name's own key for {shares[0]} of "
            f"{labels.count(value['facts'], 'fact')} (chance {tidy.say_share(value['null_mean'])}; "
            f"v0 {shares[1]}, delta {shares[2]}). {conclusion}",
            value["outcome"],
        )


def _conclude(value: bool, v0: bool, delta: bool) -> str:
    """The conclusion from which of the three are clear."""
    if v0:
        when = "before any search" if value else "only before the search"
        return f"The states of the two prompts are alike, fact by fact, {when}."
    if value:
        alike = "What the search added" if delta else "Only v0 and delta together"
        return f"{alike} {'is' if delta else 'are'} like the key, fact by fact."
    return "No difference from shuffled pairs was found."


def draw_measures(lines: tidy.Records) -> blocks.Figure:
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
        choose=[CHOOSE_FACTS, CHOOSE_SIDES],
        xlabel="likeness",
    )


def _draw_similarity(similarity: tidy.Records) -> blocks.Figure:
    """Cosines of every fact's key with every fact's value."""
    return tidy.draw_map(
        similarity,
        "similarity",
        "Every key beside every value",
        "Rows: keys, through the layer's down projection; columns: values; means taken off. In the "
        "outlined cells a key meets its own value.",
        x="value_name",
        y="key_name",
        ends=("cosine",),
        panel=_name_panel,
        choose=[CHOOSE_FACTS, tidy.Choose("concept", "concept", lambda concept: f"{concept}s")],
        xlabel="value of",
        ylabel="cosine",
        is_signed=True,
        is_paired=True,
    )


def _name_panel(row: tidy.Record) -> str:
    return f"{row['model']}, layer {row['layer']}"


def _tabulate(summary: Summary) -> Iterator[blocks.Table]:
    """All measures, those that pass their test first, `overlap` last; and models' differences."""
    about: dict[str | blocks.Column, tidy.Get] = {
        "facts": lambda row: labels.GROUPS[row["group"]],
        "compared": lambda row: labels.COMPARED[row["comparison"]],
        "measure": lambda row: labels.LIKENESSES[row["measure"]],
    }
    columns: dict[str | blocks.Column, tidy.Get] = {"model": "model", "layer": "layer", **about}
    columns |= {"number of facts": "facts", "diverged": "diverged"}
    columns["values that restore"] = "restored"
    columns[blocks.Column("likeness", 3)] = lambda row: tidy.to_interval(row, VALUE)
    columns[blocks.Column("shuffled", 3)] = lambda row: tidy.to_interval(row, NULL)
    columns |= {blocks.Column("p", 3): "p", blocks.Column("corrected p", 3): "p_holm"}
    columns[blocks.Column("over layers", 3)] = "p_family"
    rows = [row for row in summary["lines"] if math.isfinite(row["value"])]
    rows.sort(key=lambda row: (row["measure"] == OVERLAP, row["p_holm"], -row["value"]))
    title = "Every measure on true and on shuffled pairs"
    yield tidy.tabulate("measures", title, rows, columns, _mark, most=24)
    rows = [row for row in summary["differences"] if row["comparison"] in ASKED]
    if rows := [row for row in rows if row["measure"] != OVERLAP]:
        rows.sort(key=lambda row: -max(row["low"], -row["high"]))
        columns = {"models": lambda row: f"{row['one']} − {row['other']}"}
        columns["layers"] = lambda row: f"{row['layer_one']}, {row['layer_other']}"
        columns |= {**about, blocks.Column("difference", 3, has_sign=True): tidy.to_interval}
        title = "Differences between models, paired by fact, the clearest first; not corrected"
        yield tidy.tabulate("differences", title, rows, columns, mark_outcome)


def _mark(line: tidy.Record) -> blocks.RowRole:
    return "control" if line["control"] else mark_outcome(line)

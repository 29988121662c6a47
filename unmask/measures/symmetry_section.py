"""Keys and values beside each other in sentences: v*, its v0 and its delta always together."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unmask.base.errors import describe_notice
from unmask.blocks import labels, tidy
from unmask.blocks.blocks import (
    Column,
    Figure,
    Finding,
    Fold,
    Notice,
    ReportBlock,
    Table,
    Text,
    is_clear,
)
from unmask.representation.likeness import NEEDED_FACTS, OVERLAP
from unmask.results.comparison import KIND, MODEL, Comparison, Factor, Quantity
from unmask.results.summaries import Summary, mark_outcome

if TYPE_CHECKING:
    from unmask.measures.result import Result

ASKED = ("name: key and value", "description: key and value")
"""The comparisons that the study asks about."""
FACTS, CONCEPT = Factor("group", "facts", labels.GROUPS), Factor("concept", "concept")
SIDES = {
    "value": "its value (v*)",
    "v0": "v0 (before any search)",
    "delta": "delta (what the search added)",
    "shuffled": "values of shuffled pairs",
}
"""What a concept's key is compared with."""
RETRIEVAL = Comparison(
    metrics={"top-1": Quantity("nearest to the own key", "%", digits=0)},
    groups=(MODEL, KIND, FACTS, CONCEPT),
    variant=Factor("side", "key and", SIDES),
    axis=Factor("layer", "layer"),
    title="How often a value is nearest to its own key, by layer",
    caption="Bands are 95 % intervals by fact, and where 95 % of shuffled pairings lie.",
    means="How often a value, v0 or delta is nearest to its own key, at the layer that is shown",
    controls=("shuffled",),
)
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


def describe(result: "Result") -> Sequence[ReportBlock]:
    """A sentence for each model, the figures, how often values find their keys; the rest folded."""
    summary, notes = result.summary, labels.LIKENESS_NOTES.items()
    hits = list(_spread(tidy.select(summary["lines"], measure="top-1")))
    few = [place for place in summary["places"] if place["facts"] < NEEDED_FACTS]
    explained = [Text(f"{labels.LIKENESSES[name]}: {note}.") for name, note in notes]
    return [
        *_state(hits),
        draw_measures(summary["lines"]),
        _draw_similarity(summary["similarity"]),
        *([RETRIEVAL.draw(hits)] if len(tidy.distinct(hits, "layer")) > 1 else []),
        RETRIEVAL.tabulate(tidy.select(hits, is_shown=True)),
        *(Notice(describe_notice("few pairs", read_counts(place))) for place in few),
        Fold("Every measure", list(_tabulate(summary))),
        Fold("What the measures are", explained),
    ]


def _spread(lines: tidy.Records) -> Iterator[dict[str, Any]]:
    """First hits with their comparison taken apart, and shuffled pairs as one of its sides."""
    for row in lines:
        concept, _, sides = row["comparison"].partition(": ")
        side = sides.rpartition(" ")[2]
        shared = {**row, "concept": concept, "metric": "top-1"}
        if side in SIDES:
            yield shared | {"side": side, "mean": row["value"]}
        if side == "value":
            null = {end: row[name] for end, name in zip(tidy.ENDS, NULL, strict=True)}
            yield shared | {"side": "shuffled", "outcome": "unsettled"} | null


def _state(hits: tidy.Records) -> Iterator[Finding]:
    """For each model, names in the first group of facts, at the layer that is shown."""
    for model, own in tidy.group_by(tidy.select(hits, is_shown=True), "model").items():
        names = tidy.select(own, group=own[0]["group"], concept="name")
        sides = {row["side"]: row for row in names}
        value = sides["value"]
        shares = {side: RETRIEVAL.metrics["top-1"].say(row) for side, row in sides.items()}
        layers = len(tidy.distinct(tidy.select(hits, model=model), "layer"))
        best = f", the best of {layers}" if layers > 1 else ""
        conclusion = _conclude(*(is_clear(sides[side]["outcome"]) for side in list(SIDES)[:3]))
        if lacks_values(value):
            few = f"Only {value['restored']} values restore their answers"
            conclusion = f"{few}: nothing follows about values."
        yield Finding(
            f"In {model} ({labels.GROUPS[value['group']]}, layer {value['layer']}{best}), a name's "
            f"value is nearest to the name's own key for {shares['value']} of "
            f"{labels.count(value['facts'], 'fact')} (chance {tidy.say_share(value['null_mean'])}; "
            f"v0 {shares['v0']}, delta {shares['delta']}). {conclusion}",
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
        choose=[CHOOSE_FACTS, CHOOSE_SIDES],
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
        choose=[CHOOSE_FACTS, tidy.Choose("concept", "concept", lambda concept: f"{concept}s")],
        xlabel="value of",
        ylabel="cosine",
        is_signed=True,
        is_paired=True,
    )


def _name_panel(row: tidy.Record) -> str:
    return f"{row['model']}, layer {row['layer']}"


def _tabulate(summary: Summary) -> Iterator[Table]:
    """All measures, those that pass their test first, `overlap` last; and models' differences."""
    about: Mapping[str, tidy.Get] = {
        "facts": FACTS.get,
        "compared": lambda row: labels.COMPARED[row["comparison"]],
        "measure": lambda row: labels.LIKENESSES[row["measure"]],
    }
    yield tidy.tabulate(
        "measures",
        "Every measure on true and on shuffled pairs",
        sorted(
            (row for row in summary["lines"] if math.isfinite(row["value"])),
            key=lambda row: (row["measure"] == OVERLAP, row["p_holm"], -row["value"]),
        ),
        {
            "model": "model",
            "layer": "layer",
            **about,
            "number of facts": "facts",
            "diverged": "diverged",
            "values that restore": "restored",
            Column("likeness", 3): lambda row: tidy.to_interval(row, VALUE),
            Column("shuffled", 3): lambda row: tidy.to_interval(row, NULL),
            Column("p", 3): "p",
            Column("corrected p", 3): "p_holm",
            Column("over layers", 3): "p_family",
        },
        lambda row: "control" if row["control"] else mark_outcome(row),
        most=24,
    )
    rows = [row for row in summary["differences"] if row["comparison"] in ASKED]
    if rows:
        yield tidy.tabulate(
            "differences",
            "Differences between models, paired by fact, the clearest first; they are not "
            "corrected for their number",
            sorted(
                (row for row in rows if row["measure"] != OVERLAP),
                key=lambda row: -max(row["low"], -row["high"]),
            ),
            {
                "models": lambda row: f"{row['one']} − {row['other']}",
                "layers": lambda row: f"{row['layer_one']}, {row['layer_other']}",
                **about,
                Column("difference", 3, has_sign=True): tidy.to_interval,
            },
            mark_outcome,
        )

"""Keys and values in sentences: what probes tell across directions, what the searches did."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unmask.blocks.blocks import (
    Block,
    Column,
    Control,
    Dash,
    Figure,
    Finding,
    Fold,
    Line,
    LinePanel,
    Notice,
    Number,
    Panel,
    Row,
    Section,
    Table,
    Text,
    Verdict,
    format_value,
    make_views,
)
from unmask.blocks.labels import (
    GIVEN,
    GROUPS,
    KINDS,
    colour_models,
    count,
    name_split,
    order_splits,
)
from unmask.evaluation.statistics import Interval
from unmask.measures.measure import Rows
from unmask.measures.summaries import distinct, select, to_interval

if TYPE_CHECKING:
    from unmask.measures.result import Result

ACROSS = (("d2p", "p2d"), ("p2d", "d2p"))
"""Directions that probes are fitted and tested in."""
_PAIRS: dict[tuple[str, str], tuple[str, Dash]] = {
    ("d2p", "p2d"): ("p1", "solid"),
    ("p2d", "d2p"): ("p5", "solid"),
    ("d2p", "d2p"): ("p1", "dash"),
    ("p2d", "p2d"): ("p5", "dash"),
}
_REASONS = {
    "given": "as given",
    "middle": "the middle one, since no trace chose another",
    "trace": "where restoring the MLP at the last subject token does most",
}


def describe_represent(result: "Result") -> Section:
    """Probes first, then what the searches did, then the lens."""
    summary = result.summary
    blocks: list[Block] = [*_state_probes(result), *_state_elicited(result)]
    numbers = []
    if summary["probes"]:
        blocks += [_draw_probes(summary["probes"]), _tabulate_probes(result)]
        numbers = list(_make_numbers(result))
    blocks.append(_tabulate_values(summary["searches"], summary["values"]))
    if summary["lens"]:
        blocks.append(_draw_lens(summary["lens"]))
    blocks += _notice_left_out(result)
    blocks.append(Fold("Layers and method", list(_explain(summary["searches"]))))
    return Section("represent", result.measure.title, blocks, numbers)


def format_share(value: Interval) -> str:
    """A share as sentences have it: 76 % [58, 89]."""
    mean, bracket, ends = format_value(value, Column("", 0, is_percent=True)).partition(" [")
    return f"{mean} %{bracket}{ends}"


def _find_across(result: "Result") -> Iterator[tuple[str, list[Verdict]]]:
    """For each model, the verdicts on its probes across directions, in its first group of facts."""
    for model in distinct(result.summary["probes"], "model"):
        group = distinct(select(result.summary["probes"], model=model), "group")[0]
        claims = [f"{model}: {group}: {fitted} to {tested}" for fitted, tested in ACROSS]
        if all(claim in result.verdicts for claim in claims):
            yield model, [result.verdicts[claim] for claim in claims]


def _state_probes(result: "Result") -> Iterator[Finding]:
    """One sentence for each model; its verdict is that of the weaker of the two directions."""
    for model, verdicts in _find_across(result):
        rows = select(result.summary["probes"], model=model)
        group, kind = distinct(rows, "group")[0], rows[0]["kind"]
        weaker = max(verdicts, key=lambda verdict: verdict.p or 0.0)
        parts = [
            f"{format_share(verdict.value)} right when fitted on {GIVEN[fitted]}s and tested on "
            f"{GIVEN[tested]}s"
            for verdict, (fitted, tested) in zip(verdicts, ACROSS, strict=True)
            if verdict.value is not None
        ]
        lead = {
            "above": "can be read off across directions",
            "unsettled": "cannot clearly be read off across directions",
        }.get(weaker.outcome, f"was asked of {count(weaker.facts, 'fact')} only")
        layers = count(len(distinct(rows, "layer")), "layer")
        text = (
            f"In {model} ({KINDS[kind]}), which fact a state belongs to {lead}: linear probes are "
            f"{' and '.join(parts)} (best of {layers}; {GROUPS[group]}; chance "
            f"{100 / rows[0]['facts']:.0f} %)."
        )
        yield Finding(text, weaker)


def _state_elicited(result: "Result") -> Iterator[Finding]:
    """Whether values do what a value is for."""
    for row in select(result.summary["elicited"], metric="elicited"):
        verdict = result.verdicts[f"{row['model']}: elicited"]
        before, after = (
            select(result.summary["elicited"], model=row["model"], metric=name)[0]["mean"]
            for name in ("p_before", "p_after")
        )
        caution = {
            "below": ": most are not values in ROME's sense",
            "above": "",
        }.get(verdict.outcome, ": whether most do is not settled")
        text = (
            f"In {row['model']}, {format_share(to_interval(row))} of the values elicit their "
            f"object, with a probability of ½ or more (on average {before:.2g} before the search, "
            f"{after:.2g} after){caution}."
        )
        yield Finding(text, verdict)


def _make_numbers(result: "Result") -> Iterator[Number]:
    for model, verdicts in _find_across(result):
        weaker = max(verdicts, key=lambda verdict: verdict.p or 0.0)
        if weaker.is_clear and weaker.value is not None:
            note = f"{model}: probes across directions, the weaker of both; best layer"
            yield Number("which fact a state belongs to", format_share(weaker.value), note)


def _draw_probes(probes: Rows) -> Figure:
    groups, kinds = distinct(probes, "group"), dict(distinct(probes, "model", "kind"))

    def fill(group: str) -> Sequence[Panel]:
        return [
            LinePanel(model, list(_draw_accuracies(select(probes, model=model, group=group))))
            for model in colour_models(kinds)
        ]

    return Figure(
        name="probes",
        title="Which fact is it? Linear probes, layer by layer",
        alt="Line charts of the accuracy of linear probes by layer, one panel for each model: "
        "fitted on names or descriptions, tested on names or descriptions.",
        caption="Prompts in phrasings held out. Bands are 95 % intervals by fact; dotted: facts "
        "that change their names.",
        chart="lines",
        views=make_views([groups], fill),
        controls=[Control("facts", [GROUPS[group] for group in groups])],
        xlabel="after layer",
        ylabel="accuracy",
        limits=(0.0, 1.0),
    )


def _draw_accuracies(rows: Rows) -> Iterator[Line]:
    for (fitted, tested), (colour, dash) in _PAIRS.items():
        if points := select(rows, fitted=fitted, tested=tested):
            name = f"fitted on {GIVEN[fitted]}s, tested on {GIVEN[tested]}s"
            yield draw_line(name, colour, points, dash=dash)
    if rows:
        points = select(rows, fitted=rows[0]["fitted"], tested=rows[0]["tested"])
        layers, chance = ([row[name] for row in points] for name in ("layer", "null_mean"))
        yield Line("chance", "control", layers, chance, dash="dot")


def draw_line(
    name: str,
    colour: str,
    points: Rows,
    value: str = "mean",
    low: str = "low",
    high: str = "high",
    dash: Dash = "solid",
) -> Line:
    """A line by layer with its band, from these columns."""
    layers, values, lows, highs = (
        [row[each] for row in points] for each in ("layer", value, low, high)
    )
    return Line(name, colour, layers, values, lows, highs, dash)


def _tabulate_probes(result: "Result") -> Table:
    """The best layer of each kind of probe, those across directions first."""
    probes, rows = result.summary["probes"], []
    family = ("model", "group", "fitted", "tested")
    for key in sorted(distinct(probes, *family), key=lambda key: key[2] == key[3]):
        model, group, fitted, tested = key
        best = max(
            select(probes, **dict(zip(family, key, strict=True))), key=lambda row: row["mean"]
        )
        verdict = result.verdicts.get(f"{model}: {group}: {fitted} to {tested}")
        values = [model, GROUPS[group], f"{GIVEN[fitted]}s", f"{GIVEN[tested]}s", best["layer"]]
        values += [to_interval(best), best["null_mean"], best["p_layers"]]
        is_strong = verdict is not None and verdict.is_clear
        rows.append(Row(values, "strong" if is_strong else "plain"))
    columns = [Column(name) for name in ("model", "facts", "fitted on", "tested on", "best layer")]
    columns += [
        Column("right, %", 0, is_percent=True),
        Column("chance, %", 0, is_percent=True),
        Column("p over all layers", 3),
    ]
    return Table("probes", "Probes: which fact is it, in phrasings held out", columns, rows)


def _tabulate_values(searches: Rows, values: Rows) -> Table:
    rows = []
    for search in searches:
        place = {name: search[name] for name in ("model", "group", "split", "layer")}
        cells = {row["metric"]: to_interval(row) for row in select(values, **place)}
        counts = [search["facts"], search["diverged"]]
        means = [cells[name].mean if name in cells else None for name in ("p_before", "p_after")]
        shares = [cells.get(name) for name in ("elicited", "relative_distance")]
        asked = [search["model"], name_split(search["split"]), search["layer"]]
        rows.append(Row([*asked, *counts, *means, *shares]))
    columns = [Column(name) for name in ("model", "asked", "layer", "facts", "diverged")]
    columns += [
        Column("p(object) before", is_short=True),
        Column("p(object) after", is_short=True),
        Column("p after ≥ ½, %", 0, is_percent=True),
        Column("‖delta‖ / ‖v0‖"),
    ]
    caption = "Searches for values: means over the facts whose search did not diverge"
    return Table("values", caption, columns, rows)


def _draw_lens(lens: Rows) -> Figure:
    splits = order_splits(distinct(lens, "split"))
    kinds = dict(distinct(lens, "model", "kind"))

    def fill(split: str) -> Sequence[Panel]:
        rows = select(lens, split=split, metric="logp")
        return [LinePanel(model, _draw_moments(select(rows, model=model))) for model in kinds]

    return Figure(
        name="lens",
        title="The logit lens",
        alt="Line charts of log p of the object's hidden tokens by layer, one panel for each "
        "model, one line for each moment of denoising.",
        caption="log p of the object's hidden tokens if the stream after a layer were read by the "
        "head; at step s of S the share (s − 1)/S of the object is shown. Bands are 95 % intervals "
        "by fact.",
        chart="lines",
        views=make_views([splits], fill),
        controls=[Control("asked", [name_split(split) for split in splits])],
        xlabel="after layer",
        ylabel="log p, nats",
    )


def _draw_moments(rows: Rows) -> list[Line]:
    return [
        draw_line(f"step {step} of {steps}", f"p{(step - 1) % 8}", select(rows, step=step))
        for step, steps in distinct(rows, "step", "steps")
    ]


def _notice_left_out(result: "Result") -> Iterator[Notice]:
    """What was asked for and could not be measured."""
    settings, there = result.settings.to_record(), distinct(result.summary["searches"], "group")
    missing = [] if "own" in there else [g for g in settings["groups"] if g not in there]
    if missing:
        names = " and ".join(GROUPS[group] for group in missing)
        yield Notice(f"The data have no {names}.")
    probed = distinct(result.summary["probes"], "group")
    unprobed = [group for group in there if group not in probed]
    if settings["probes"] and unprobed:
        names = " and ".join(GROUPS[group] for group in unprobed)
        yield Notice(
            f"No probes were fitted for {names}: they need at least 2 facts in 3 phrasings in each "
            "direction."
        )


def _explain(searches: Rows) -> Iterator[Text]:
    for model in distinct(searches, "model"):
        rows = select(searches, model=model)
        layers = ", ".join(map(str, distinct(rows, "layer")))
        noun = "layer" if len(distinct(rows, "layer")) == 1 else "layers"
        yield Text(f"{model}: {noun} {layers}, {_REASONS[rows[0]['chosen_by']]}.")
    yield Text(
        "The key k* is the input of the layer's down projection at the last subject token, "
        "averaged over prefixes. The value v* = v0 + delta is searched by Adam (Meng et al. 2022): "
        "v0 is the MLP's own output there, delta what makes the object likely while what follows "
        "`SUBJECT is a` stays as it is. All facts are asked in one phrasing, recalled or not. A "
        "search that ends with the object clearly less likely than at v0 has diverged."
    )
    yield Text(
        "Probes are ridge classifiers on the residual stream at the last subject token, fitted on "
        "two thirds of the phrasings. Their p is that of the largest accuracy over all layers when "
        "facts change their names. States are read on the whole canvas: in a diffusion model the "
        "subject sees the masks of the answer, in an autoregressive one it does not."
    )

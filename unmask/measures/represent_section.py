"""Keys and values: what searches, probes and the lens say in numbers and in sentences."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.base.seeds import derive_seed
from unmask.blocks import blocks, labels, tidy
from unmask.blocks.blocks import Column, Figure, Finding, Notice, Number, Table
from unmask.evaluation import statistics
from unmask.results.comparison import ASKED, KIND, MODEL, Comparison, Factor, Quantity
from unmask.results.summaries import Rows, Summary, Tables, mark_outcome, name_outcome

if TYPE_CHECKING:
    from unmask.measures.result import Result

PERMUTATIONS = 100_000
"""Permutations of the probes' nulls."""
READINGS = {
    "canvas": "on the canvas",
    "prompt": "without masks",
    "subject": "the subject alone",
}
"""What a subject sees where probes read it."""
PROBE = ("model", "kind", "group", "reading", "fitted", "tested")
FACTS = tidy.Choose("facts", "group", labels.GROUPS.__getitem__)
READING = tidy.Choose("read", "reading", READINGS.__getitem__)
REASONS = {"given": "as given", "middle": "the middle one", "trace": "by a trace"}
ELICITED = Comparison(
    metrics={
        "p_before": Quantity("p(object) before", is_short=True),
        "p_after": Quantity("p(object) after", is_short=True),
        "elicited": Quantity("values with p(object) of ½ or more", "%", digits=0),
    },
    groups=(MODEL, KIND),
    chance={"elicited": 0.5},
    title="",
)
VALUES = Comparison(
    metrics={**ELICITED.metrics, "relative_distance": Quantity("‖delta‖ / ‖v0‖")},
    groups=(MODEL, KIND, Factor("group"), ASKED, Factor("layer", "layer")),
    title="",
    means="Searches for values: means over the facts whose search did not diverge",
)
PLACE = [factor.column for factor in VALUES.groups]
LENS = Comparison(
    metrics={
        "logp": Quantity("log p", "nats"),
        "rank": Quantity("rank"),
        "hit": Quantity("likeliest", "%"),
    },
    groups=(MODEL, KIND, ASKED, Factor("step"), Factor("steps")),
    axis=Factor("layer", "after layer"),
    title="The logit lens",
    caption="log p of the object's hidden tokens if the head read the stream after a layer; at "
    "step s of S the share (s − 1)/S of the object is shown. Bands are 95 % intervals by fact.",
)


def summarise(tables: Tables, settings: Any) -> Summary:
    """What searches did, which values elicit their objects, how probes and the lens do by layer."""
    rows = [
        row | {"elicited": float(row["p_after"] >= ELICITED.chance["elicited"])}
        for row in tables["represent"].drop_columns(["losses", "prefixes"]).to_pylist()
    ]
    models = tidy.distinct(rows, "model")
    rows.sort(key=lambda row: (models.index(row["model"]), row["layer"]))
    searches, sound = [], []
    for place, members in tidy.group_by(rows, *PLACE).items():
        # A fact counts where its search was sound for every training seed.
        diverged = {row["fact"] for row in members if row["diverged"]}
        kept = [row for row in members if row["fact"] not in diverged]
        sound += kept
        counts = {"facts": len(tidy.distinct(kept, "fact")), "diverged": len(diverged)}
        reason = {"chosen_by": members[0]["chosen_by"]}
        searches.append(dict(zip(PLACE, place, strict=True)) | counts | reason)
    # Without a search there is nothing to elicit.
    elicited = ELICITED if settings.search_steps else replace(ELICITED, chance={})
    return {
        "searches": searches,
        "values": VALUES.average(sound),
        "elicited": elicited.average(sound),
        "probes": list(_assess_probes(tables["probes"].to_pylist(), settings.seed)),
        "lens": LENS.average(tables["lens"].to_pylist(), "layer"),
    }


def _assess_probes(rows: Rows, seed: int) -> Iterator[dict[str, Any]]:
    """Accuracy by layer with its interval by fact, its null, and p corrected for all layers.

    `p_family` is corrected, too, for all probes across directions of a model and group; by it the
    best layer of each of these has its outcome.
    """
    assessed = list(_assess_layers(rows, seed))
    across = [row for row in choose_best(assessed) if row["fitted"] != row["tested"]]
    corrected: dict[Any, float] = {}
    for family in tidy.group_by(across, *PROBE[:3]).values():
        p_values = statistics.holm([row["p_layers"] for row in family])
        corrected |= zip(tidy.group_by(family, *PROBE), p_values, strict=True)
    for row in assessed:
        p = max(row["p_layers"], corrected.get(tuple(row[name] for name in PROBE), 0.0))
        outcome = name_outcome(tidy.to_interval(row), row["facts"], p=p)
        yield row | {"p_family": p} | ({"outcome": outcome} if row in across else {})


def _assess_layers(rows: Rows, seed: int) -> Iterator[dict[str, Any]]:
    for key, tests in tidy.group_by(rows, *PROBE).items():
        names = sorted(tidy.distinct(tests, "fact"))
        at = {name: i for i, name in enumerate(names)}
        renamed = _rename(len(names), seed)
        layers = tidy.group_by(tests, "layer")
        values, nulls = [], []
        for prompts in layers.values():
            true = np.array([at[row["fact"]] for row in prompts])
            predicted = np.array([at.get(row["predicted"], -1) for row in prompts])
            clusters = statistics.cluster(predicted == true, true, [row["seed"] for row in prompts])
            values.append(statistics.estimate_mean(clusters, is_share=True))
            # Facts change their names, alike at every layer: how often each is taken for another.
            confused = np.zeros((len(names), len(names) + 1))
            np.add.at(confused, (true, predicted), 1 / len(true))
            nulls.append(confused[np.arange(len(names)), renamed].sum(1))
        means = np.array([value.mean for value in values])
        corrected = statistics.max_statistic_p(means, np.stack(nulls, 1))
        for layer, value, null, p in zip(layers, values, nulls, corrected, strict=True):
            yield dict(zip(PROBE, key, strict=True)) | {"layer": layer} | vars(value) | {
                "null_mean": float(null.mean()),
                "null_high": float(np.quantile(null, 1 - statistics.ALPHA / 2)),
                "p": statistics.permutation_p(null, value.mean),
                "p_layers": float(p),
                "prompts": len(layers[layer]),
                "facts": len(names),
            }  # fmt: skip


@lru_cache(maxsize=4)
def _rename(count: int, seed: int) -> np.ndarray:
    """Random orders of so many facts, the same for all probes."""
    generator = np.random.default_rng(derive_seed(seed, "probes", count))
    return generator.permuted(np.tile(np.arange(count, dtype=np.int16), (PERMUTATIONS, 1)), axis=1)


def choose_best(probes: tidy.Records) -> list[tidy.Record]:
    """The best layer of each kind of probe, those across directions first."""
    best = [
        max(rows, key=lambda row: row["mean"]) for rows in tidy.group_by(probes, *PROBE).values()
    ]
    return sorted(best, key=lambda row: row["fitted"] == row["tested"])


def describe(result: "Result") -> list[blocks.ReportBlock | Number]:
    """Probes first, then what the searches did (none at 0 steps), then the lens."""
    summary = result.summary
    shown: list[blocks.ReportBlock | Number] = [*_state_probes(summary["probes"])]
    shown += ELICITED.state({"means": summary["elicited"]})
    if summary["probes"]:
        shown += [_draw_probes(summary["probes"]), _tabulate_probes(summary["probes"])]
    if result.settings.to_record()["search_steps"]:
        shown.append(_tabulate_searches(summary))
    if summary["lens"]:
        line: dict[str, Any] = {
            "line": lambda row: f"step {row['step']} of {row['steps']}",
            "choose": [tidy.ASKED],
        }
        line |= {"colour": lambda row: f"p{(row['step'] - 1) % 8}", "ylabel": "log p, nats"}
        shown.append(replace(LENS.draw(summary["lens"], **line), name="lens"))
    return [*shown, *_notice_left_out(result)]


def _state_probes(probes: tidy.Records) -> Iterator[Finding | Number]:
    """A sentence for each model and reading, of a model's first group: the weaker direction."""
    judged = [row for row in probes if "outcome" in row]
    first = {row["model"]: row["group"] for row in reversed(judged)}
    judged = [row for row in judged if row["group"] == first[row["model"]]]
    for (model, reading), rows in tidy.group_by(judged, "model", "reading").items():
        weaker = max(rows, key=lambda row: row["p_family"])
        at = "the embeddings" if weaker["layer"] < 0 else f"layer {weaker['layer']}"
        right, chance = tidy.say(weaker, "%"), f"chance {100 / weaker['facts']:.0f} %"
        yield Finding(
            f"In {model}, probes across directions tell which fact a state belongs to in {right} "
            f"or more (fitted on {labels.GIVEN[weaker['fitted']]}s, tested on "
            f"{labels.GIVEN[weaker['tested']]}s, {READINGS[reading]}; best at {at}; "
            f"{labels.GROUPS[weaker['group']]}; {chance}).",
            weaker["outcome"],
        )
        if reading == "canvas" and weaker["outcome"] == "above":
            note = f"{model}, by probes across directions; {chance}"
            yield Number("which fact a state belongs to", right, note)


def _draw_probes(probes: tidy.Records) -> Figure:
    first = tidy.select(probes, fitted=probes[0]["fitted"], tested=probes[0]["tested"])
    chance = [
        {**row, "fitted": "chance", "mean": row["null_mean"], "low": row["null_mean"]}
        for row in first
    ]

    def name(row: tidy.Record) -> str:
        given, tested = (labels.GIVEN.get(row[side]) for side in ("fitted", "tested"))
        return f"fitted on {given}s, tested on {tested}s" if given else "chance"

    def dash(row: tidy.Record) -> str:
        across = "dash" if row["fitted"] == row["tested"] else "solid"
        return "dot" if row["fitted"] == "chance" else across

    return tidy.draw_lines(
        [*probes, *chance],
        "probes",
        "Which fact is it? Linear probes, layer by layer",
        "Prompts in phrasings held out. Solid: across directions. Bands are 95 % intervals by "
        "fact; chance: facts that change their names.",
        x="layer",
        line=name,
        colour=lambda row: {"d2p": "p1", "p2d": "p5"}.get(row["fitted"], "control"),
        dash=dash,
        choose=[FACTS, READING],
        xlabel="after layer (−1: embeddings)",
        ylabel="accuracy",
        limits=(0.0, 1.0),
    )


def _tabulate_probes(probes: tidy.Records) -> Table:
    return tidy.tabulate(
        "probes",
        "Probes: which fact is it, in phrasings held out",
        choose_best(probes),
        {
            "model": "model",
            "facts": lambda row: labels.GROUPS[row["group"]],
            "fitted on": lambda row: f"{labels.GIVEN[row['fitted']]}s",
            "tested on": lambda row: f"{labels.GIVEN[row['tested']]}s",
            "read": lambda row: READINGS[row["reading"]],
            "best layer": "layer",
            Column("right, %", 0, is_percent=True): tidy.to_interval,
            Column("chance, %", 0, is_percent=True): "null_mean",
            Column("p over all layers", 3): "p_layers",
            Column("p over all probes", 3): "p_family",
        },
        mark_outcome,
    )


def _tabulate_searches(summary: Summary) -> Table:
    """Means of the sound searches of each place, and how many diverged there: maybe all."""
    searches = {tuple(row[name] for name in PLACE): row for row in summary["searches"]}
    absent = {"metric": None} | dict.fromkeys(tidy.ENDS)
    rows = [*({**row, **absent} for row in summary["searches"]), *summary["values"]]

    def count(name: str) -> Callable[[tidy.Record], Any]:
        return lambda row: searches[tuple(row[each] for each in PLACE)][name]

    columns = {name: count(name) for name in ("facts", "diverged")}
    columns["layer chosen"] = lambda row: REASONS[count("chosen_by")(row)]
    return replace(VALUES.tabulate(rows, **columns), name="values")


def _notice_left_out(result: "Result") -> Iterator[Notice]:
    """What was asked for and could not be measured."""
    settings = result.settings.to_record()
    there = tidy.distinct(result.summary["searches"], "group")
    missing = [] if "own" in there else [g for g in settings["groups"] if g not in there]
    if missing:
        yield Notice(f"The data have no {' and no '.join(labels.GROUPS[g] for g in missing)}.")
    probed = tidy.distinct(result.summary["probes"], "group")
    unprobed = [labels.GROUPS[group] for group in there if group not in probed]
    if settings["probes"] and unprobed:
        yield Notice(
            f"No probes were fitted for {' and '.join(unprobed)}: they need at least 2 facts in 3 "
            "phrasings in each direction."
        )

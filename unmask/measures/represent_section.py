"""Keys and values: what searches, probes and the lens say in numbers and in sentences."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.base.seeds import derive_seed
from unmask.blocks import labels, tidy
from unmask.blocks.blocks import Notice, ReportBlock
from unmask.evaluation import statistics
from unmask.results.comparison import ASKED, KIND, MODEL, Comparison, Factor, Quantity
from unmask.results.summaries import Rows, Summary, Tables, name_outcome

if TYPE_CHECKING:
    from unmask.measures.result import Result

PERMUTATIONS = 100_000
"""Permutations of the probes' nulls."""
READ_NOT_USED = (
    "A probe says what can be read, not what is used: on networks whose mechanism is known about "
    "half of what probes read clearly does not matter (`unmask bench`). `unmask interchange` asks "
    "what does."
)
READINGS = {
    "canvas": "on the canvas",
    "prompt": "without masks",
    "subject": "the subject alone",
}
"""What a subject sees where probes read it."""
GIVEN = {way: f"{given}s" for way, given in labels.GIVEN.items()} | {"chance": "chance"}
REASONS = {"given": "as given", "middle": "the middle one", "trace": "by a trace"}
LAYER = Factor("layer", "layer", lambda i: "-1 (embeddings)" if i < 0 else i, is_told=True)
PROBES = Comparison(
    metrics={"right": Quantity("facts told apart", "%", digits=0)},
    groups=(
        MODEL,
        KIND,
        Factor("group", "group", labels.GROUPS),
        Factor("reading", "read", READINGS, is_told=True),
        Factor("fitted", "fitted on", GIVEN, is_told=True),
    ),
    variant=Factor("tested", "tested on", GIVEN),
    axis=LAYER,
    controls=("chance",),
    title="Which fact is it? Linear probes, layer by layer",
    caption="Prompts in phrasings held out. Bands are 95 % intervals by fact; chance: facts that "
    "change their names.",
    names=("probes", ""),
    means="Probes at their best layer: which fact is it, in phrasings held out",
)
TESTS = {"null_mean": "chance", "p_layers": "p over all layers", "p_family": "p over all probes"}
PROBE = ("model", "kind", "group", "reading", "fitted", "tested")
ELICITED = Comparison(
    metrics={
        "p_before": Quantity("p(object) before", is_short=True, limits=(0.0, 1.0)),
        "p_after": Quantity("p(object) after", is_short=True, limits=(0.0, 1.0)),
        "elicited": Quantity("values with p(object) of ½ or more", "%", digits=0),
    },
    groups=(MODEL, KIND),
    chance={"elicited": 0.5},
    title="",
)
PLACE = (MODEL, KIND, Factor("group"), ASKED, LAYER)
VALUES = Comparison(
    metrics={**ELICITED.metrics, "relative_distance": Quantity("‖delta‖ / ‖v0‖")},
    groups=(*PLACE, Factor("chosen_by", "layer chosen", REASONS)),
    beside={"diverged": "diverged"},
    title="",
    names=("values", ""),
    means="Searches for values: means over the facts whose search did not diverge",
)
LENS = Comparison(
    metrics={
        "logp": Quantity("log p", "nats"),
        "rank": Quantity("rank"),
        "hit": Quantity("likeliest", "%"),
    },
    groups=(MODEL, KIND, ASKED, Factor("steps")),
    variant=Factor("step", "step", lambda step: f"step {step}"),
    axis=Factor("layer", "after layer"),
    title="The logit lens",
    caption="log p of the object's hidden tokens if the head read the stream after a layer; at "
    "step s of S the share (s − 1)/S of the object is shown. Bands are 95 % intervals by fact.",
    names=("lens", ""),
)


def summarise(tables: Tables, settings: Any) -> Summary:
    """What searches did, which values elicit their objects, how probes and the lens do by layer."""
    rows = [
        row | {"elicited": float(row["p_after"] >= ELICITED.chance["elicited"])}
        for row in tables["represent"].drop_columns(["losses", "prefixes"]).to_pylist()
    ]
    rows.sort(key=lambda row: row["layer"])
    searches, sound = [], []
    columns = [factor.column for factor in PLACE]
    for place, members in tidy.group_by(rows, *columns).items():
        # A fact counts where its search was sound for every training seed.
        diverged = {row["fact"] for row in members if row["diverged"]}
        counts = {"diverged": len(diverged), "chosen_by": members[0]["chosen_by"]}
        kept = [{**row, **counts} for row in members if row["fact"] not in diverged]
        sound += kept
        counts["facts"] = len(tidy.distinct(kept, "fact"))
        searches.append(dict(zip(columns, place, strict=True)) | counts)
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
                "metric": "right",
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


def describe(result: "Result") -> list[ReportBlock]:
    """Probes first, then what the searches did (none at 0 steps), then the lens."""
    summary, probes = result.summary, result.summary["probes"]
    shown: list[ReportBlock] = [*PROBES.state({"probes": _list_weakest(probes)})]
    shown += ELICITED.state({"means": summary["elicited"]})
    if probes:
        chance = [
            {**row, "tested": "chance", "mean": row["null_mean"], "low": row["null_mean"]}
            for row in probes
            if row["fitted"] == row["tested"]
        ]
        shown.append(PROBES.draw([*probes, *chance], limits=(0.0, 100.0)))
        columns = {
            heading: lambda row, name=name: f"{row[name]:.3f}" for name, heading in TESTS.items()
        }
        shown += [PROBES.tabulate(choose_best(probes), **columns), Notice(READ_NOT_USED)]
    if result.settings.to_record()["search_steps"]:
        shown.append(VALUES.tabulate(summary["values"], facts="facts"))
    shown += [LENS.draw(summary["lens"])] if summary["lens"] else []
    return [*shown, *_notice_left_out(result)]


def _list_weakest(probes: Rows) -> list[tidy.Record]:
    """The less clear direction of each model and reading, of a model's first group."""
    judged = [row for row in probes if "outcome" in row]
    readings = tidy.group_by(judged, "model", "reading").values()
    first = (tidy.select(rows, group=rows[0]["group"]) for rows in readings)
    return [max(rows, key=lambda row: row["p_family"]) for rows in first]


def _notice_left_out(result: "Result") -> Iterator[Notice]:
    """What was asked for and could not be measured."""
    settings, searches = result.settings.to_record(), result.summary["searches"]
    there, probed = (tidy.distinct(rows, "group") for rows in (searches, result.summary["probes"]))
    missing = [] if "own" in there else [g for g in settings["groups"] if g not in there]
    if missing:
        yield Notice(f"The data have no {' and no '.join(labels.GROUPS[g] for g in missing)}.")
    for row in tidy.select(searches, facts=0):
        where = f"{row['model']}, layer {row['layer']}, {tidy.name_asked(row)}"
        yield Notice(f"All searches diverged: {where}.")
    unprobed = [labels.GROUPS[group] for group in there if group not in probed]
    if settings["probes"] and unprobed:
        yield Notice(
            f"No probes were fitted for {' and '.join(unprobed)}: they need at least 2 facts in 3 "
            "phrasings in each direction."
        )

"""Keys and values: what searches, probes and the lens say in numbers, verdicts and sentences."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.base.seeds import derive_seed
from unmask.blocks import blocks, labels, tidy
from unmask.blocks.blocks import Column, Figure, Finding, Notice, Number, Table, Verdict
from unmask.evaluation import statistics
from unmask.measures.measure import Rows, Summary, Tables, judge_interval, judge_p
from unmask.results.summaries import estimate_means

if TYPE_CHECKING:
    from unmask.measures.result import Result

ELICITED = 0.5
"""The probability from which on a value is said to elicit its object."""
PERMUTATIONS = 100_000
"""Permutations of the probes' nulls."""
READINGS = {
    "canvas": "on the canvas",
    "prompt": "without masks",
    "subject": "the subject alone",
}
"""What a subject sees where probes read it."""
PLACE = ("model", "kind", "group", "split", "layer")
PROBE = ("model", "kind", "group", "reading", "fitted", "tested")
FACTS = tidy.Choose("facts", "group", labels.GROUPS.__getitem__)
READING = tidy.Choose("read", "reading", READINGS.__getitem__)
REASONS = {
    "given": "as given",
    "middle": "the middle one, since no trace chose another",
    "trace": "where restoring the MLP at the last subject token does most",
}


def summarise(tables: Tables, settings: Any) -> Summary:
    """What searches did, which values elicit their objects, how probes and the lens do by layer."""
    rows = [
        row | {"elicited": float(row["p_after"] >= ELICITED)}
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
    metrics = ("p_before", "p_after", "elicited")
    lens = ("model", "kind", "split", "step", "steps", "layer")
    return {
        "searches": searches,
        "values": estimate_means(sound, PLACE, (*metrics, "relative_distance"), ("elicited",)),
        "elicited": estimate_means(sound, ("model", "kind"), metrics, ("elicited",)),
        "probes": list(_assess_probes(tables["probes"].to_pylist(), settings.seed)),
        "lens": estimate_means(
            tables["lens"].to_pylist(), lens, ("logp", "rank", "hit"), shares=("hit",)
        ),
    }


def _assess_probes(rows: Rows, seed: int) -> Iterator[dict[str, Any]]:
    """Accuracy by layer with its interval by fact, its null, and p corrected for all layers.

    `p_family` is corrected, too, for all probes across directions of a model and group.
    """
    assessed = list(_assess_layers(rows, seed))
    best = {
        key: min(row["p_layers"] for row in own)
        for key, own in tidy.group_by(assessed, *PROBE).items()
        if key[-1] != key[-2]
    }
    families = tidy.group_by([{"key": key} for key in best], lambda row: row["key"][:3])
    corrected: dict[Any, float] = {}
    for members in families.values():
        keys = [row["key"] for row in members]
        corrected |= zip(keys, statistics.holm([best[key] for key in keys]), strict=True)
    for row in assessed:
        key = tuple(row[name] for name in PROBE)
        yield row | {"p_family": max(corrected.get(key, 0.0), row["p_layers"])}


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


def judge(summary: Summary, settings: Any) -> Iterable[Verdict]:
    """Whether probes tell facts across directions at any layer, and most values elicit objects."""
    for best in choose_best(summary["probes"]):
        if best["fitted"] != best["tested"]:
            yield judge_p(name_probe(best), tidy.to_interval(best), best["p_family"], best["facts"])
    for row in tidy.select(summary["elicited"], metric="elicited") if settings.search_steps else ():
        value = tidy.to_interval(row)
        above_half = statistics.Interval(*(end - ELICITED for end in vars(value).values()))
        verdict = judge_interval(f"{row['model']}: elicited", above_half, row["facts"])
        yield replace(verdict, value=value)


def describe(result: "Result") -> Sequence[blocks.ReportBlock | Number]:
    """Probes first, then what the searches did (none at 0 steps), then the lens."""
    summary, searches = result.summary, result.settings.to_record()["search_steps"] > 0
    shown: list[blocks.ReportBlock | Number] = [*_state_probes(result)]
    if searches:
        shown += _state_elicited(result)
    if summary["probes"]:
        shown += [_draw_probes(summary["probes"]), _tabulate_probes(result)]
    if searches:
        shown += [_tabulate_searches(summary["searches"], summary["values"]), *_name_layers(result)]
    if summary["lens"]:
        shown.append(_draw_lens(summary["lens"]))
    return [*shown, *_notice_left_out(result)]


def _name_layers(result: "Result") -> Iterator[blocks.Text]:
    """Where each model's values were searched for, and why there."""
    for model, rows in tidy.group_by(result.summary["searches"], "model").items():
        layers = sorted(tidy.distinct(rows, "layer"))
        noun = "layer" if len(layers) == 1 else "layers"
        listed = ", ".join(map(str, layers))
        yield blocks.Text(f"{model}: {noun} {listed}, {REASONS[rows[0]['chosen_by']]}.")


def name_probe(row: tidy.Record) -> str:
    """The claim that a probe tells facts at some layer."""
    where = f"{row['model']}: {row['group']}: {row['reading']}"
    return f"{where}: {row['fitted']} to {row['tested']}"


def choose_best(probes: tidy.Records) -> list[tidy.Record]:
    """The best layer of each kind of probe, those across directions first."""
    families = tidy.group_by(probes, name_probe).values()
    best = [max(rows, key=lambda row: row["mean"]) for rows in families]
    return sorted(best, key=lambda row: row["fitted"] == row["tested"])


def _say_best(layer: int) -> str:
    return "best at the embeddings" if layer < 0 else f"best layer {layer}"


def _state_probes(result: "Result") -> Iterator[Finding | Number]:
    """One sentence for each model and reading; its verdict is that of the weaker direction."""
    across = [
        row for row in choose_best(result.summary["probes"]) if name_probe(row) in result.verdicts
    ]
    first = {row["model"]: row["group"] for row in reversed(across)}
    across = [row for row in across if row["group"] == first[row["model"]]]
    for (model, reading), rows in tidy.group_by(across, "model", "reading").items():
        parts = [
            f"{tidy.say(row, '%')} right when fitted on {labels.GIVEN[row['fitted']]}s and tested "
            f"on {labels.GIVEN[row['tested']]}s ({_say_best(row['layer'])})"
            for row in rows
        ]
        weaker = max(rows, key=lambda row: row["p_family"])
        verdict, chance = (
            result.verdicts[name_probe(weaker)],
            f"chance {100 / weaker['facts']:.0f} %",
        )
        yield Finding(
            f"Asked across directions which fact a state of {model} "
            f"({labels.KINDS[weaker['kind']]}; {READINGS[reading]}) belongs to, linear probes are "
            f"{' and '.join(parts)} ({labels.GROUPS[weaker['group']]}; {chance}).",
            verdict,
        )
        if verdict.is_clear and reading == "canvas":
            note = f"{model}, by probes across directions; {chance}"
            yield Number("which fact a state belongs to", tidy.say(weaker, "%"), note)


def _state_elicited(result: "Result") -> Iterator[Finding]:
    """Whether values do what a value is for."""
    for model, rows in tidy.group_by(result.summary["elicited"], "model").items():
        values = {row["metric"]: tidy.to_interval(row) for row in rows}
        yield Finding(
            f"In {model}, {tidy.say(values['elicited'], '%')} of the values elicit their object, "
            f"with a probability of ½ or more (on average {values['p_before'].mean:.2g} before the "
            f"search, {values['p_after'].mean:.2g} after); the others are not values in ROME's "
            "sense.",
            result.verdicts[f"{model}: elicited"],
        )


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


def _tabulate_probes(result: "Result") -> Table:
    return tidy.tabulate(
        "probes",
        "Probes: which fact is it, in phrasings held out",
        choose_best(result.summary["probes"]),
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
        result.mark(name_probe),
    )


def _tabulate_searches(searches: tidy.Records, values: tidy.Records) -> Table:
    cells = {(*(row[name] for name in PLACE), row["metric"]): row for row in values}

    def find(metric: str, is_interval: bool = True) -> tidy.Get:
        """Nothing where all searches diverged."""

        def get(row: tidy.Record) -> Any:
            cell = cells.get((*(row[name] for name in PLACE), metric))
            return cell and (tidy.to_interval(cell) if is_interval else cell["mean"])

        return get

    return tidy.tabulate(
        "values",
        "Searches for values: means over the facts whose search did not diverge",
        searches,
        {
            "model": "model",
            "asked": tidy.name_asked,
            "layer": "layer",
            "facts": "facts",
            "diverged": "diverged",
            Column("p(object) before", is_short=True): find("p_before", is_interval=False),
            Column("p(object) after", is_short=True): find("p_after", is_interval=False),
            Column("p after ≥ ½, %", 0, is_percent=True): find("elicited"),
            Column("‖delta‖ / ‖v0‖"): find("relative_distance"),
        },
    )


def _draw_lens(lens: tidy.Records) -> Figure:
    return tidy.draw_lines(
        tidy.select(lens, metric="logp"),
        "lens",
        "The logit lens",
        "log p of the object's hidden tokens if the stream after a layer were read by the head; at "
        "step s of S the share (s − 1)/S of the object is shown. Bands are 95 % intervals by fact.",
        x="layer",
        line=lambda row: f"step {row['step']} of {row['steps']}",
        colour=lambda row: f"p{(row['step'] - 1) % 8}",
        choose=[tidy.ASKED],
        xlabel="after layer",
        ylabel="log p, nats",
    )


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

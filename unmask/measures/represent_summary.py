"""Keys and values in numbers: what the searches did, how probes and the lens do by layer."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unmask.base.seeds import derive_seed
from unmask.blocks.blocks import Verdict
from unmask.evaluation.statistics import (
    ALPHA,
    Interval,
    cluster,
    estimate_mean,
    max_statistic_p,
    permutation_p,
)
from unmask.measures.measure import Rows, Summary, Tables, judge_interval, judge_p
from unmask.measures.summaries import distinct, estimate_means, select, to_interval

ELICITED = 0.5
"""The probability from which on a value is said to elicit its object."""
PERMUTATIONS = 199
"""Of the probes' nulls."""
PLACE = ("model", "kind", "group", "split", "layer")


def summarise(tables: Tables, settings: Any) -> Summary:
    """What searches did, which values elicit their objects, how probes and the lens do by layer."""
    rows = [
        row | {"elicited": float(row["p_after"] >= ELICITED)}
        for row in tables["represent"].drop_columns(["losses", "prefixes"]).to_pylist()
    ]
    rows.sort(key=lambda row: row["layer"])
    searches, sound = [], []
    for place in distinct(rows, *PLACE):
        members = select(rows, **dict(zip(PLACE, place, strict=True)))
        # A fact counts where its search was sound for every training seed.
        diverged = {row["fact"] for row in members if row["diverged"]}
        sound += [row for row in members if row["fact"] not in diverged]
        searches.append(
            dict(zip(PLACE, place, strict=True))
            | {"facts": len({row["fact"] for row in members}) - len(diverged)}
            | {"diverged": len(diverged), "chosen_by": members[0]["chosen_by"]}
        )
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
    """Accuracy by layer with its interval by fact, its null, and p corrected for all layers."""
    family = ("model", "kind", "group", "fitted", "tested")
    for key in distinct(rows, *family):
        members = select(rows, **dict(zip(family, key, strict=True)))
        names = sorted({row["fact"] for row in members})
        at = {name: i for i, name in enumerate(names)}
        generator = np.random.default_rng(derive_seed(seed, "probes", len(names)))
        renamed = np.stack([generator.permutation(len(names)) for _ in range(PERMUTATIONS)])
        values, nulls = [], []
        for layer in distinct(members, "layer"):
            tested = select(members, layer=layer)
            true = np.array([at[row["fact"]] for row in tested])
            predicted = np.array([at.get(row["predicted"], -1) for row in tested])
            clusters = cluster(predicted == true, true, [row["seed"] for row in tested])
            values.append((layer, len(tested), estimate_mean(clusters, is_share=True)))
            # Facts change their names, alike at every layer.
            nulls.append((predicted == renamed[:, true]).mean(1))
        corrected = max_statistic_p(np.array([v.mean for *_, v in values]), np.stack(nulls, 1))
        for (layer, prompts, value), null, p_layers in zip(values, nulls, corrected, strict=True):
            yield (
                dict(zip(family, key, strict=True))
                | {"layer": layer}
                | vars(value)
                | {
                    "null_mean": float(null.mean()),
                    "null_high": float(np.quantile(null, 1 - ALPHA / 2)),
                    "p": permutation_p(null, value.mean),
                    "p_layers": float(p_layers),
                    "prompts": prompts,
                    "facts": len(names),
                }
            )


def judge(summary: Summary, settings: Any) -> Sequence[Verdict]:
    """Whether probes tell facts across directions at any layer, and most values elicit objects."""
    verdicts = []
    family = ("model", "group", "fitted", "tested")
    for key in distinct(summary["probes"], *family):
        model, group, fitted, tested = key
        if fitted != tested:
            members = select(summary["probes"], **dict(zip(family, key, strict=True)))
            best = max(members, key=lambda row: row["mean"])
            claim = f"{model}: {group}: {fitted} to {tested}"
            verdicts.append(judge_p(claim, to_interval(best), best["p_layers"], best["facts"]))
    for row in select(summary["elicited"], metric="elicited"):
        value = to_interval(row)
        above_half = Interval(*(end - ELICITED for end in vars(value).values()))
        verdict = judge_interval(f"{row['model']}: elicited", above_half, row["facts"])
        verdicts.append(replace(verdict, value=value))
    return verdicts

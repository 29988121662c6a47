"""Keys and values in numbers: what the searches did, how probes and the lens do by layer."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from unmask.base.seeds import derive_seed
from unmask.blocks.blocks import Verdict
from unmask.blocks.tidy import distinct, group_by, select, to_interval
from unmask.evaluation.statistics import (
    ALPHA,
    Interval,
    cluster,
    estimate_mean,
    max_statistic_p,
    permutation_p,
)
from unmask.measures.measure import Rows, Summary, Tables, judge_interval, judge_p
from unmask.measures.represent_section import choose_best, name_probe
from unmask.measures.summaries import estimate_means

ELICITED = 0.5
"""The probability from which on a value is said to elicit its object."""
PERMUTATIONS = 199
"""Of the probes' nulls."""
PLACE = ("model", "kind", "group", "split", "layer")
PROBE = ("model", "kind", "group", "fitted", "tested")


def summarise(tables: Tables, settings: Any) -> Summary:
    """What searches did, which values elicit their objects, how probes and the lens do by layer."""
    rows = [
        row | {"elicited": float(row["p_after"] >= ELICITED)}
        for row in tables["represent"].drop_columns(["losses", "prefixes"]).to_pylist()
    ]
    models = distinct(rows, "model")
    rows.sort(key=lambda row: (models.index(row["model"]), row["layer"]))
    searches, sound = [], []
    for place, members in group_by(rows, *PLACE).items():
        # A fact counts where its search was sound for every training seed.
        diverged = {row["fact"] for row in members if row["diverged"]}
        kept = [row for row in members if row["fact"] not in diverged]
        sound += kept
        counts = {"facts": len(distinct(kept, "fact")), "diverged": len(diverged)}
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
    """Accuracy by layer with its interval by fact, its null, and p corrected for all layers."""
    for key, tests in group_by(rows, *PROBE).items():
        names = sorted(distinct(tests, "fact"))
        at = {name: i for i, name in enumerate(names)}
        generator = np.random.default_rng(derive_seed(seed, "probes", len(names)))
        renamed = np.stack([generator.permutation(len(names)) for _ in range(PERMUTATIONS)])
        layers = group_by(tests, "layer")
        values, nulls = [], []
        for prompts in layers.values():
            true = np.array([at[row["fact"]] for row in prompts])
            predicted = np.array([at.get(row["predicted"], -1) for row in prompts])
            clusters = cluster(predicted == true, true, [row["seed"] for row in prompts])
            values.append(estimate_mean(clusters, is_share=True))
            # Facts change their names, alike at every layer.
            nulls.append((predicted == renamed[:, true]).mean(1))
        corrected = max_statistic_p(np.array([each.mean for each in values]), np.stack(nulls, 1))
        for layer, value, null, p in zip(layers, values, nulls, corrected, strict=True):
            yield dict(zip(PROBE, key, strict=True)) | {"layer": layer} | vars(value) | {
                "null_mean": float(null.mean()),
                "null_high": float(np.quantile(null, 1 - ALPHA / 2)),
                "p": permutation_p(null, value.mean),
                "p_layers": float(p),
                "prompts": len(layers[layer]),
                "facts": len(names),
            }  # fmt: skip


def judge(summary: Summary, settings: Any) -> Iterable[Verdict]:
    """Whether probes tell facts across directions at any layer, and most values elicit objects."""
    for best in choose_best(summary["probes"]):
        if best["fitted"] != best["tested"]:
            yield judge_p(name_probe(best), to_interval(best), best["p_layers"], best["facts"])
    for row in select(summary["elicited"], metric="elicited"):
        value = to_interval(row)
        above_half = Interval(*(end - ELICITED for end in vars(value).values()))
        verdict = judge_interval(f"{row['model']}: elicited", above_half, row["facts"])
        yield replace(verdict, value=value)

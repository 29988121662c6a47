"""What is shown of features: what they keep, how alike both directions are, what recall loses."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from unmask.base.seeds import derive_seed
from unmask.blocks import labels, tidy
from unmask.blocks.blocks import ReportBlock
from unmask.evaluation.statistics import Clusters, estimate_mean, permutation_p
from unmask.measures.measure import Rows, Summary, Tables
from unmask.measures.result import Result
from unmask.results.comparison import KIND, MODEL, Comparison, Factor, Quantity
from unmask.results.summaries import (
    add_outcome,
    cluster_rows,
    count_openings,
    keep_shared,
    subtract_clusters,
)

REPLACED = {
    "clean": "nothing",
    "dictionary": "the dictionary's states",
    "random": "a random dictionary's",
    "principal": "principal directions",
    "mean": "the mean state",
    "zero": "zeros",
}
PLACES = {"masked": "at masks", "written": "at written positions", "all": "everywhere"}
HELD_AGAINST = [("dictionary", "random"), ("dictionary", "principal")]
RECOVERY = Comparison(
    metrics={
        "recovered": Quantity("cross-entropy recovered, against the mean state", digits=3),
        "recovered_zero": Quantity("against zeros", digits=3),
        "explained": Quantity("variance explained", digits=3),
        "nats": Quantity("nats per token", digits=3),
        "firing": Quantity("features that fire", digits=1),
    },
    groups=(MODEL, KIND, Factor("where", "replaced", PLACES)),
    variant=Factor("replaced", "by", REPLACED),
    against=HELD_AGAINST,
    compared=("recovered",),
    axis=Factor("share", "share of masks", lambda share: f"{share:.3g}"),
    counted="texts",
    title="Cross-entropy recovered by what takes the place of states",
    caption="1: as with clean states; 0: as with the mean state. Bands are 95 % intervals by text.",
    names=("recovery", "gains"),
    means="What is kept of predictions and of states, ratios of sums over texts",
    most=40,
)
GROUP = Factor("group", "group", labels.GROUPS, is_told=True)
PAIRS = {"reversal": "one fact, both directions", "unrelated": "two facts, both directions"}
LIKENESS = Comparison(
    metrics={
        "cosine": Quantity("cosine of features", digits=3, has_sign=True),
        "shared": Quantity("features that stand out in both", digits=2),
    },
    groups=(MODEL, KIND, GROUP),
    variant=Factor("pair", "pair", PAIRS),
    against=[("reversal", "unrelated")],
    title="Features that fire for a fact in both directions",
    names=("likeness", "nearness"),
    means="How alike the features of two prompts' facts are, one in each direction",
    differences="One fact minus two facts; p against facts paired at random, of cosines",
)
TAKEN = {
    "none": "nothing",
    "own": "the fact's own features",
    "other": "another fact's",
    "random": "as much along random features",
}
ABLATION = Comparison(
    metrics={"said": Quantity("recalled", "%"), "logp": Quantity("log p", "nats", has_sign=True)},
    groups=(MODEL, KIND, GROUP, Factor("trained", "asked", {"same": "as trained",
                                                            "reverse": "reversed"}, is_told=True)),
    variant=Factor("ablated", "taken out", TAKEN),
    against=[("own", control) for control in ("random", "other", "none")],
    title="Recall without some features",
    names=("ablation", "losses"),
    means="Answers by the chain rule, with features taken out of all states after the layer",
    differences="A fact's own features minus each control",
    controls=("other", "random"),
)  # fmt: skip
RATIOS = {
    "recovered": ("gain", "gap"),
    "recovered_zero": ("gain_zero", "gap_zero"),
    "explained": ("kept", "spread"),
    "nats": ("nats", "tokens"),
    "firing": ("firing", "positions"),
}
SHOWN = {
    "clean": ("nats", "firing"), "mean": ("nats",), "zero": ("nats",),
    "dictionary": tuple(RATIOS)[:4], "random": tuple(RATIOS)[:4], "principal": tuple(RATIOS)[:4],
}  # fmt: skip
"""The metrics of each replacement that say something; the features that fire are the dictionary's
at clean states."""


def summarise(tables: Tables, settings: Any) -> Summary:
    """Ratios by share of masks and place, likeness with its test, recall, lives by feature."""
    rows = list(_derive(tables["features"].to_pylist()))
    pairs = tables["pairs"].to_pylist()
    for row in pairs:
        row["pair"] = "reversal" if row["fact"] == row["other"] else "unrelated"
    ablated = tables["ablation"].to_pylist()
    life = tables["life"].to_pylist()
    return {
        "recovery": list(_average(rows)),
        "gains": list(_subtract(rows)),
        "likeness": LIKENESS.average(pairs),
        "nearness": list(_test(pairs, settings)),
        "ablation": ABLATION.average(ablated),
        "losses": ABLATION.subtract(ablated),
        "steps": list(_count_steps(life)),
        "described": list(_describe_lives(life, tables["contexts"].to_pylist())),
    }


def _derive(rows: Rows) -> Iterator[dict[str, Any]]:
    """Rows with what each wins back of what the mean state, and zeros, lose."""
    keys = ("model", "seed", "fact", "share", "where")
    for same in tidy.group_by(rows, lambda row: tuple(row[name] for name in keys)).values():
        nats = {row["replaced"]: row["nats"] for row in same}
        for row in same:
            yield dict(row) | {
                "gain": nats["mean"] - row["nats"],
                "gap": nats["mean"] - nats["clean"],
                "gain_zero": nats["zero"] - row["nats"],
                "gap_zero": nats["zero"] - nats["clean"],
                "kept": row["spread"] - row["lost"],
            }


def _cluster(rows: Rows, metric: str) -> Clusters | None:
    """Sums of a ratio by text; None where what it is a share of is nothing."""
    shared = keep_shared(rows)
    above, below = (cluster_rows(shared, name).sums for name in RATIOS[metric])
    return Clusters(above, below) if below.sum() > 0 else None


BY = ("model", "kind", "where", "share")


def _group(rows: Rows, *names: str) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    grouped = tidy.group_by(rows, lambda row: tuple(row[name] for name in names))
    for key, same in grouped.items():
        yield dict(zip(names, key, strict=True)), same


def _average(rows: Rows) -> Iterator[dict[str, Any]]:
    for where, same in _group(rows, *BY, "replaced"):
        for metric in SHOWN[where["replaced"]]:
            if (clusters := _cluster(same, metric)) is not None:
                counts = {"facts": clusters.sums.shape[1], "seeds": clusters.sums.shape[0]}
                counts |= {"openings": count_openings(same), "prompts": len(same)}
                yield where | {"metric": metric} | vars(estimate_mean(clusters)) | counts


def _subtract(rows: Rows) -> Iterator[dict[str, Any]]:
    """What the dictionary wins back more than each control, paired by text."""
    for where, same in _group(rows, *BY):
        sides = tidy.group_by(same, "replaced")
        for one, control in HELD_AGAINST:
            clusters = [_cluster(sides[name], "recovered") for name in (one, control)]
            if clusters[0] is not None and clusters[1] is not None:
                gap = subtract_clusters(clusters[0], clusters[1], is_share=False)
                about = {"replaced": one, "minus": control, "metric": "recovered"}
                yield where | about | add_outcome(gap)


def _test(pairs: Rows, settings: Any) -> Iterator[dict[str, Any]]:
    """One fact minus two facts; clear only where facts paired at random are not as alike."""
    for own in tidy.group_by(pairs, "model", "group").values():
        p = _permute(own, settings)
        for row in LIKENESS.subtract(own):
            tested = add_outcome(row, p=p) if row["metric"] == "cosine" else row
            yield {**(row if row["outcome"] == "unsettled" else tested), "p": p}


def _permute(own: Rows, settings: Any) -> float:
    people = sorted(set(tidy.distinct(own, "fact")) & set(tidy.distinct(own, "other")))
    at = {fact: i for i, fact in enumerate(people)}
    cosines = np.zeros((len(people), len(people)))
    for row in own:
        if row["fact"] in at and row["other"] in at:
            cosines[at[row["fact"]], at[row["other"]]] += row["cosine"]
    generator = np.random.default_rng(derive_seed(settings.seed, "features", len(people)))
    columns = np.arange(len(people))
    orders = generator.permuted(np.tile(columns, (settings.permutations, 1)), axis=1)
    return permutation_p(cosines[columns, orders].mean(1), float(cosines.diagonal().mean()))


def _count_steps(life: Rows) -> Iterator[dict[str, Any]]:
    """How often a position fires any feature's share: features that fire by step and kind."""
    for where, same in _group(life, "model", "step"):
        for state in ("masked", "written"):
            positions = sum(row[state] for row in same) / len(same)
            if positions:
                fires = sum(row[f"fires_{state}"] > 0 for row in same)
                mean = sum(row[f"fires_{state}"] for row in same) / positions
                yield where | {"state": state, "features": fires, "firing": mean}


def _describe_lives(life: Rows, contexts: Rows) -> Iterator[dict[str, Any]]:
    """A row for each feature that is described: what it says, and between which steps it fires."""
    lives = tidy.group_by(life, lambda row: (row["model"], row["seed"], row["feature"]))
    for row in contexts:
        own = lives.get((row["model"], row["seed"], row["feature"]), [])
        fires = {each["step"]: each["fires_masked"] + each["fires_written"] for each in own}
        steps = [step for step, number in fires.items() if number]
        if steps:
            masked = sum(each["fires_masked"] for each in own)
            yield dict(row) | {
                "first": min(steps),
                "last": max(steps),
                "most": max(fires, key=fires.__getitem__),
                "at_masks": masked / sum(fires.values()),
            }


def describe(result: Result) -> Sequence[ReportBlock]:
    """Sentences, what is kept by share of masks, both directions, recall, features one by one."""
    summary = result.summary
    parts: list[ReportBlock] = [
        *RECOVERY.state(summary),
        RECOVERY.draw(tidy.select(summary["recovery"], metric="recovered")),
        RECOVERY.tabulate(summary["recovery"]),
        RECOVERY.tabulate_differences(summary["gains"]),
    ]
    if summary["likeness"]:
        p: Mapping[str, Any] = {"p of cosines": lambda row: f"{row['p']:.4f}"}
        parts += [
            *LIKENESS.state(summary),
            LIKENESS.tabulate(summary["likeness"]),
            LIKENESS.tabulate_differences(summary["nearness"], **p),
        ]
    parts += [
        *ABLATION.state(summary),
        ABLATION.draw(summary["ablation"]),
        ABLATION.tabulate(summary["ablation"]),
        ABLATION.tabulate_differences(summary["losses"]),
    ]
    if summary["described"]:
        parts += [_tabulate_steps(summary["steps"]), _tabulate_features(summary["described"])]
    return parts


def _tabulate_steps(rows: Rows) -> ReportBlock:
    caption = "Features that fire while prompts are continued, by step"
    columns: dict[Any, Any] = {"model": "model", "step": "step", "at": "state"}
    columns |= {"different features": "features", "features per position": "firing"}
    return tidy.tabulate("steps", caption, rows, columns, most=40)


def _tabulate_features(rows: Rows) -> ReportBlock:
    def join(name: str) -> Any:
        return lambda row: " · ".join(each.strip() for each in row[name])

    columns: dict[Any, Any] = {
        "model": "model",
        "feature": "feature",
        "its direction says": join("says"),
        "fires most at": join("contexts"),
        "first step": "first",
        "most at step": "most",
        "last step": "last",
        "share at masks": "at_masks",
    }
    caption = "The features that fire most: what they say, where and when"
    return tidy.tabulate("described", caption, rows, columns, most=12)

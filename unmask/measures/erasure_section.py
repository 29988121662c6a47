"""The section of erasure: what is left of the answers beside controls, tests, and the page."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from unmask.blocks import blocks, labels, tidy
from unmask.evaluation.statistics import estimate_difference
from unmask.measures.measure import Rows, Summary, Tables, judge_interval
from unmask.measures.result import Result
from unmask.measures.summaries import cluster_rows, estimate_means

METRICS = {
    "says": blocks.Column("answers right, %", 1, is_percent=True),
    "logp_token": blocks.Column("log p of the answer per token, nats"),
}
SHARES = ("says",)
NOTHING = "none"
"""The eraser of rows in which nothing is erased."""
ERASERS = {
    NOTHING: "nothing erased",
    "fact": "fact identity",
    "permuted": "permuted labels",
    "random": "random subspace",
}
SOURCES = {"own": "own direction", "other": "other direction"}
COLOURS = {"own": "p0", "other": "p1"}
DASHES = {"fact": "solid", "permuted": "dash", "random": "dot"}
GROUP = ("model", "kind", "split")


def summarise(tables: Tables, settings: Any) -> Summary:
    """Means by eraser, and what each eraser takes beyond its controls."""
    rows = [
        row
        | {"logp_token": row["logp"] / row["tokens"]}
        | {"source": row["fitted"] and ("own" if row["fitted"] == row["direction"] else "other")}
        for row in tables["erasure"].to_pylist()
    ]
    by = (*GROUP, "direction", "source", "eraser", "start")
    means = []
    for members in tidy.group_by(rows, *by).values():
        average = {
            name: sum(row[name] for row in members) / len(members)
            for name in ("rank", "changed", "states")
        }
        means += [row | average for row in estimate_means(members, by, list(METRICS), SHARES)]
    differences = []
    erased = [row for row in rows if row["eraser"] != NOTHING]
    cell = (*GROUP, "direction", "source", "start")
    for key, members in tidy.group_by(erased, *cell).items():
        own = tidy.group_by(members, "eraser")
        for minus in ("random", "permuted"):
            for metric in METRICS:
                sides = [cluster_rows(own[name], metric) for name in ("fact", minus)]
                gap = estimate_difference(*sides, is_share=metric in SHARES)
                which = dict(zip(cell, key, strict=True)) | {"minus": minus, "metric": metric}
                differences.append(which | vars(gap) | {"facts": sides[0].sums.shape[1]})
    return {"means": means, "differences": differences}


def judge(summary: Summary, settings: Any) -> Iterable[blocks.Verdict]:
    """Whether an eraser of facts leaves fewer right answers, or a lower log p, than controls."""
    for row in summary["differences"]:
        yield judge_interval(_name(row), tidy.to_interval(row), row["facts"])


def _name(row: tidy.Record) -> str:
    names = ("model", "split", "direction", "source", "start", "minus", "metric")
    return ", ".join(str(row[name]) for name in names)


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """A sentence for each model and way of asking, curves over layers, and the tables."""
    means, differences = result.summary["means"], result.summary["differences"]
    keys: dict[str, Any] = {"model": "model", "asked": tidy.name_asked}
    table = tidy.tabulate_means(
        "means",
        "Answers by what is erased and the direction it was fitted to",
        means,
        keys
        | {
            "erased": name_eraser,
            "first layer erased": lambda row: "" if row["start"] is None else str(row["start"]),
            "rank": lambda row: round(row["rank"]),
            "mean squared change of a state": "changed",
            "states fitted to": lambda row: round(row["states"]),
        },
        METRICS,
        most=40,
    )
    gaps = tidy.tabulate_means(
        "differences",
        "Erasing fact identity minus each control; below 0: more is lost than under the control",
        differences,
        keys
        | {
            "fitted to": lambda row: SOURCES[row["source"]],
            "first layer erased": lambda row: str(row["start"]),
            "minus": lambda row: ERASERS[row["minus"]],
            "facts": "facts",
        },
        {name: replace(column, has_sign=True) for name, column in METRICS.items()},
        role=result.mark(_name),
        most=40,
    )
    shares, likelihoods = (_draw_curves(means, metric) for metric in METRICS)
    folded = blocks.Fold("Log p of the answers", [likelihoods])
    return [*_state(result), shares, folded, table, gaps]


def _draw_curves(means: Rows, metric: str) -> blocks.Figure:
    """What is left by the first layer erased, in one metric."""
    rows = [row for row in tidy.select(means, metric=metric) if row["start"] is not None]
    return tidy.draw_lines(
        sorted(rows, key=order_erasers),
        metric,
        "Answers after erasing fact identity from the subject's states",
        "By the first layer that is erased (-1: embeddings); all layers above it are erased, too. "
        "Dashed and dotted: controls. Bands are 95 % intervals by fact.",
        x="start",
        line=name_eraser,
        colour=lambda row: COLOURS[row["source"]],
        dash=lambda row: DASHES[row["eraser"]],
        scale=100 if metric in SHARES else 1,
        choose=[tidy.ASKED],
        xlabel="first layer erased",
        ylabel=METRICS[metric].label.replace(" of", "\nof"),
    )


def name_eraser(row: tidy.Record) -> str:
    """What is erased, in the words of the page."""
    if row["source"] is None:
        return ERASERS[NOTHING]
    return f"{ERASERS[row['eraser']]}, {SOURCES[row['source']]}"


def order_erasers(row: tidy.Record) -> tuple[int, int]:
    """The place of a row in figures: nothing erased, own and other direction, then controls."""
    sources = [None, *SOURCES]
    return sources.index(row["source"]), list(ERASERS).index(row["eraser"])


def name_start(layer: int) -> str:
    """The first layer erased, in a sentence."""
    return "the embeddings" if layer < 0 else f"layer {layer}"


def _state(result: Result) -> Iterator[blocks.Finding]:
    """What is left of the answers at the lowest layer, below which nothing reads the subject."""
    shares = tidy.select(result.summary["means"], metric="says")
    for (model, split, direction), rows in tidy.group_by(
        shares, "model", "split", "direction"
    ).items():
        start = min(row["start"] for row in rows if row["start"] is not None)
        at = {(row["source"], row["eraser"]): row for row in rows if row["start"] in (None, start)}
        name = {"model": model, "split": split, "direction": direction, "start": start}
        claims = {
            source: _name(name | {"source": source, "minus": "random", "metric": "says"})
            for source in SOURCES
        }
        verdicts = {
            source: result.verdicts.get(claim) or blocks.Verdict(claim, "not measured")
            for source, claim in claims.items()
        }
        left, control = (
            {source: tidy.say(at[source, eraser], "%") for source in SOURCES}
            for eraser in ("fact", "random")
        )
        reached = verdicts["own"].outcome == "below"
        after = (
            " The own direction's eraser does not clearly remove more answers than random "
            "subspaces, so nothing follows from the other direction's."
        )
        yield blocks.Finding(
            f"In {model}, asked {labels.name_split(split)}, "
            f"{tidy.say(at[None, NOTHING], '%')} of answers are right. With fact identity "
            f"erased from {name_start(start)} up, {left['own']} are right under the own "
            f"direction's eraser (random subspaces: {control['own']}) and {left['other']} under "
            f"the other direction's (random subspaces: {control['other']})."
            f"{'' if reached else after}",
            verdicts["other" if reached else "own"],
        )

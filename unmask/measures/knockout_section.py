"""The section of attention knock-out: average effects, tests between groups, and the page."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from unmask.blocks import blocks, labels, tidy
from unmask.evaluation.equivalence import find_shares, measure_equivalence
from unmask.evaluation.statistics import ALPHA, compare, equivalence_p, holm, mean_intervals
from unmask.measures.measure import Rows, Summary, Tables, judge_interval
from unmask.measures.result import Result
from unmask.measures.trace_summary import explain_nothing

METRICS = {
    "p": blocks.Column("probability", is_short=True),
    "logp_per_token": blocks.Column("log p per token, nats", 3),
    "logit_difference": blocks.Column("logit difference"),
}
COMPARED = "logp_per_token"
"""The metric of the tests."""
CLEAN, HIDDEN = "nothing cut", "subject hidden"
"""Rows without a cut, and with the subject hidden instead: what effects are compared with."""
WHOLE = 0
"""The window of rows that cut all layers."""
PROMPT = ("model", "seed", "split", "fact", "direction", "phrasing", "stage")
GROUP = ("model", "kind", "split", "stage")
CELL = ("edge", "window", "layer", "first", "last")
ROLES = {
    "subject": "subject",
    "prompt": "rest of prompt",
    "last": "last prompt token",
    "answer": "answer",
    "written": "written tokens",
    "masks": "other masks",
    "others": "all others",
}
"""Roles of positions, in the figure's words."""
COLOURS = {
    "subject": "p0",
    "masks": "p1",
    "prompt": "p2",
    "last": "p3",
    "written": "p4",
    "answer": "p6",
    "others": "p7",
}
"""Of roles; p5 is left out, which is hard to tell from p0."""
COUNTS: dict[str | blocks.Column, tidy.Get] = {
    "model": "model",
    "asked": tidy.name_asked,
    "answers scored by": lambda row: row["joint"].replace("_", " "),
    "prompts": "prompts",
    "kept": "kept",
}
"""Columns of the counts of prompts."""


def summarise(tables: Tables, settings: Any) -> Summary:
    """Average effects with intervals by fact, and their shares; tests; counts of facts."""
    counts = count_prompts(tables)
    by_fact = _find_effects(tables["knockout"].to_pylist())
    return {
        "effects": list(_average(by_fact)),
        "tests": compare_groups(by_fact, settings),
        "counts": counts,
    }


def count_prompts(tables: Tables) -> Rows:
    """How many prompts of each model and split were asked, and kept; an error where none was."""
    facts, by = tables["facts"].to_pylist(), ("model", "kind", "split", "joint")
    if not any(fact["kept"] for fact in facts):
        raise explain_nothing(facts)
    return [
        dict(zip(by, key, strict=True))
        | {"prompts": len(rows), "kept": sum(row["kept"] for row in rows)}
        for key, rows in tidy.group_by(facts, *by).items()
    ]


Effects = dict[tuple, dict[tuple, dict[str, dict[str, float]]]]
"""By group, cell and metric, each fact's effect."""


def find_effects(
    rows: Rows,
    start: tuple[str, str],
    cell: Sequence[str],
    metrics: Iterable[str],
    is_loss: bool = False,
) -> Effects:
    """What each row's metrics are above those of its prompt's start, or below where it is a loss.

    `start` is the column and the value that tell such rows. Phrasings and training seeds of a fact
    are averaged.
    """
    sign = -1 if is_loss else 1
    column, value = start
    starts = {tuple(row[name] for name in PROMPT): row for row in rows if row[column] == value}
    values: dict[tuple, dict[tuple, dict[str, dict[str, list[float]]]]] = {}
    for row in rows:
        before = starts[tuple(row[name] for name in PROMPT)]
        if row is before:
            continue
        group = values.setdefault(tuple(row[name] for name in GROUP), {})
        own = group.setdefault(tuple(row[name] for name in cell), {})
        for metric in metrics:
            if row[metric] is not None:
                facts = own.setdefault(metric, {})
                facts.setdefault(row["fact"], []).append(sign * (row[metric] - before[metric]))
    return {
        group: {
            cell: {
                metric: {fact: float(np.mean(own)) for fact, own in facts.items()}
                for metric, facts in metrics.items()
            }
            for cell, metrics in cells.items()
        }
        for group, cells in values.items()
    }


def _find_effects(rows: Rows) -> Effects:
    """What each cut takes."""
    return find_effects(rows, ("edge", CLEAN), CELL, METRICS, is_loss=True)


TOTAL = (HIDDEN, WHOLE, -1, -1, -1)


def _average(effects: Effects) -> Iterator[dict[str, Any]]:
    """A row for each group, cell and metric; `share` is that of the group's total effect."""
    for group, cells in effects.items():
        totals = {metric: np.mean([*own.values()]) for metric, own in cells[TOTAL].items()}
        for cell, metrics in cells.items():
            for metric, facts in metrics.items():
                ends = mean_intervals(np.array([*facts.values()])[:, None])
                mean, low, high = (float(end[0]) for end in ends)
                if metric == "p":  # a difference of two probabilities
                    low, high = max(low, -1.0), min(high, 1.0)
                yield (
                    dict(zip((*GROUP, *CELL), (*group, *cell), strict=True))
                    | {"metric": metric, "mean": mean, "low": low, "high": high}
                    | {"share": mean / totals[metric] if totals[metric] else None}
                    | {"facts": len(facts)}
                )


def compare_groups(effects: Effects, settings: Any) -> list[dict[str, Any]]:
    """Two models asked alike, or one model asked two ways, edge by edge: is there a difference, and
    are they alike in every layer?

    Compared are shares of each group's own total effect: `mean` is the difference's mean over
    layers. Groups are alike where each layer's difference is within the margin, by two one-sided
    tests at 0.05 where facts are paired (`p_equivalent`, the largest of all layers), else by its
    95 % interval. `smallest_margin` is the smallest at which t tests would call all layers alike,
    `power` how often they would at the given one, in the least certain layer, without a difference.
    """
    rows: list[dict[str, Any]] = []
    for (one, ours), (other, theirs) in combinations(effects.items(), 2):
        is_same_model, is_same_way = one[0] == other[0], one[2] == other[2]
        if one[3] != other[3] or is_same_model == is_same_way:
            continue
        sides = [_share_by_edge(each) for each in (ours, theirs)]
        pair = {"model": one[0], "split": one[2], "other_model": other[0], "other_split": other[2]}
        own: list[dict[str, Any]] = []
        for edge, window in [key for key in sides[0] if key in sides[1]]:
            layers = [side[edge, window] for side in sides]
            difference = compare(*map(_average_layers, layers), seed=settings.seed)
            if difference is not None:
                where = {"stage": one[3], "edge": edge, "window": window}
                own.append(pair | where | vars(difference) | _test_likeness(*layers, settings))
        for row, p_holm in zip(own, holm([row["p"] for row in own]), strict=True):
            rows.append(row | {"p_holm": p_holm})
    return rows


Layers = dict[int, dict[str, float]]
"""By layer, each fact's share of the total effect, as a ratio of means (`find_shares`)."""


def _share_by_edge(
    cells: Mapping[tuple, Mapping[str, Mapping[str, float]]],
) -> dict[tuple[str, int], Layers]:
    """Shares of the total effect by edge and window."""
    totals = cells[TOTAL][COMPARED]
    shares: dict[tuple[str, int], Layers] = {}
    for (edge, window, layer, *_), metrics in cells.items():
        own = metrics[COMPARED]
        if edge != HIDDEN and any(totals.values()):
            values = find_shares([*own.values()], [totals[fact] for fact in own])
            shares.setdefault((edge, window), {})[layer] = dict(zip(own, values, strict=True))
    return shares


def _average_layers(layers: Layers) -> dict[str, float]:
    first = next(iter(layers.values()))
    return {fact: float(np.mean([own[fact] for own in layers.values()])) for fact in first}


def _test_likeness(one: Layers, other: Layers, settings: Any) -> dict[str, Any]:
    """Whether each layer's difference is within the margin; networks of other depths have none."""
    if one.keys() != other.keys():
        return dict.fromkeys(("p_equivalent", "smallest_margin", "power")) | {"is_alike": False}
    highest, is_within = 0.0, True
    smallest, power = 0.0, 1.0
    for layer, ours in one.items():
        theirs = other[layer]
        tested = measure_equivalence(ours, theirs, settings.margin)
        assert tested is not None  # there is a difference
        smallest, power = max(smallest, tested.smallest_margin), min(power, tested.power)
        shared = sorted(ours.keys() & theirs.keys())
        if len(shared) < 2:
            gap = compare(ours, theirs, settings.seed)
            assert gap is not None and not gap.paired
            is_within &= -settings.margin < gap.low and gap.high < settings.margin
            continue
        gaps = [ours[fact] - theirs[fact] for fact in shared]
        highest = max(highest, equivalence_p(gaps, settings.margin, settings.seed))
    return {
        "p_equivalent": highest or None,
        "is_alike": is_within and highest <= ALPHA,
        "smallest_margin": smallest,
        "power": power,
    }


def judge(summary: Summary, settings: Any) -> Iterator[blocks.Verdict]:
    """What hiding the subject takes, and what each edge takes that is cut in all layers."""
    for row in summary["effects"]:
        if row["window"] == WHOLE:
            yield judge_interval(_name(row), tidy.to_interval(row), row["facts"])


def _name(row: tidy.Record) -> str:
    return ", ".join(row[name] for name in ("model", "split", "stage", "edge", "metric"))


def name_edge(row: tidy.Record) -> str:
    """An edge in words."""
    reads, colon, is_read = row["edge"].partition(":")
    return f"{ROLES[is_read]} read by {ROLES[reads]}" if colon else row["edge"]


def _draw_curves(effects: Rows) -> blocks.Figure:
    """What each edge takes by layer, in % of what hiding the subject takes.

    A group from which hiding it takes nothing for certain has no such shares; where none has them,
    the axis is in nats per token.
    """
    by = (*GROUP, "metric")
    totals = {
        tuple(row[name] for name in by): row["mean"]
        for row in effects
        if row["edge"] == HIDDEN and row["low"] > 0
    }
    curves = [row for row in effects if row["metric"] == COMPARED and row["window"] != WHOLE]
    shares = []
    for row in curves:
        if total := totals.get(tuple(row[name] for name in by)):
            shares.append({**row, **{end: 100 * row[end] / total for end in tidy.ENDS}})
    kept = tidy.distinct(shares, "model", "split")
    without = [pair for pair in tidy.distinct(curves, "model", "split") if pair not in kept]
    missing = "; ".join(f"{model}, {labels.name_split(split)}" for model, split in without)
    note = f" Left out, as hiding the subject takes nothing for certain: {missing}."
    return tidy.draw_lines(
        shares or curves,
        "knockout",
        "What the answer loses when some positions cannot attend to others",
        "Loss of log p per token with an edge cut in a window of layers around this one. Solid: "
        "what the answer's positions read; dashed: who else reads the subject. Bands: 95 % "
        f"intervals of the loss, by fact.{note if shares and without else ''}",
        x="layer",
        line="label",
        colour=_choose_colour,
        dash=lambda row: "dash" if _reads_for_others(row) else "solid",
        choose=[
            tidy.ASKED,
            tidy.Choose("layers cut together", "window"),
            tidy.Choose("step", "at"),
        ],
        xlabel="layer",
        ylabel="% of what hiding\nthe subject takes" if shares else "nats per token lost",
    )


def _reads_for_others(row: tidy.Record) -> bool:
    """Whether an edge is from the subject to positions that are not the answer's."""
    reads, _, is_read = row["edge"].partition(":")
    return is_read == "subject" and reads != "answer"


def _choose_colour(row: tidy.Record) -> str:
    """That of the role at the end of an edge that tells it from others of its kind."""
    reads, _, is_read = row["edge"].partition(":")
    return COLOURS[reads if _reads_for_others(row) else is_read]


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """What is needed: sentences, curves over layers, all layers at once, tests, counts."""
    effects = [
        {**row, "label": name_edge(row), "at": labels.name_stage(row["stage"])}
        for row in result.summary["effects"]
    ]
    whole = [row for row in effects if row["window"] == WHOLE]
    table = tidy.tabulate_means(
        "whole",
        "What the answer loses when an edge is cut in all layers",
        whole,
        {"model": "model", "asked": tidy.name_asked, "step": "at", "cut": "label"},
        METRICS,
        most=24,
    )
    findings, further = (
        list(_state(whole, result.verdicts, edge)) for edge in ("answer:subject", "others:subject")
    )
    more = [_tabulate_tests(result)] if result.summary["tests"] else []
    counts = tidy.tabulate(
        "counts",
        "Prompts asked, and those kept: recalled by the model, and cut",
        result.summary["counts"],
        COUNTS,
    )
    return [
        *findings,
        _draw_curves(effects),
        blocks.Fold("Numbers", [*further, table, counts]),
        *more,
    ]


def _state(
    whole: Rows, verdicts: Mapping[str, blocks.Verdict], edge: str
) -> Iterator[blocks.Finding]:
    """Of each model, what an answer loses where its positions, or all, cannot read the subject."""
    who = "its positions cannot" if edge == "answer:subject" else "no other position can"
    for row in whole:
        if row["metric"] != COMPARED or row["edge"] != edge:
            continue
        share = row["share"]
        part = (
            "" if share is None else f", {tidy.say_share(share)} of what hiding the subject takes"
        )
        yield blocks.Finding(
            f"In {row['model']}, asked {labels.name_split(row['split'])}, an answer loses "
            f"{tidy.say(row, 'nats per token')} where {who} read the subject in any layer"
            f"{part} ({labels.count(row['facts'], 'fact')}).",
            verdicts[_name(row)],
        )


def _tabulate_tests(result: Result) -> blocks.Fold:
    """Shares of the total effect, one group minus another."""
    margin = result.settings.to_record()["margin"]

    def name_groups(row: tidy.Record) -> str:
        one = f"{row['model']}, {labels.name_split(row['split'])}"
        return f"{one} − {row['other_model']}, {labels.name_split(row['other_split'])}"

    def say_outcome(row: tidy.Record) -> str:
        if row["p_holm"] <= ALPHA:
            return "differ"
        return "alike" if row["is_alike"] else "no difference detected"

    table = tidy.tabulate(
        "tests",
        "Effects of two groups compared, as shares of each group's total effect on log p per "
        f"token; alike: within ±{margin:g} in every layer",
        result.summary["tests"],
        {
            "groups": name_groups,
            "step": "stage",
            "cut": name_edge,
            "layers cut together": lambda row: row["window"] or "all",
            blocks.Column("difference of shares", has_sign=True): tidy.to_interval,
            blocks.Column("p of no difference (Holm)", 3): "p_holm",
            blocks.Column("p of a layer beyond the margin", 3): "p_equivalent",
            blocks.Column("smallest margin that would hold"): "smallest_margin",
            blocks.Column("power to find them alike"): "power",
            "outcome": say_outcome,
        },
        most=40,
    )
    return blocks.Fold("Groups compared", [table])

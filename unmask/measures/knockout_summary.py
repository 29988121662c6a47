"""The statistics of attention knock-out: average effects, tests between groups; and verdicts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from unmask.blocks import blocks, tidy
from unmask.evaluation.equivalence import find_shares, measure_equivalence
from unmask.evaluation.statistics import ALPHA, compare, equivalence_p, holm, mean_intervals
from unmask.measures.measure import Rows, Summary, Tables, judge_interval
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


def summarise(tables: Tables, settings: Any) -> Summary:
    """Average effects with intervals by fact, and their shares; what the answer reads by itself;
    tests; counts of facts."""
    counts = count_prompts(tables)
    by_fact = _find_effects(tables["knockout"].to_pylist())
    return {
        "effects": list(_average(by_fact)),
        "reading": list(_share_reading(by_fact)),
        "tests": compare_edges(by_fact, settings),
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


def find_prompt_effects(
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
    return find_prompt_effects(rows, ("edge", CLEAN), CELL, METRICS, is_loss=True)


BY_ANSWER, BY_OTHERS = "answer:subject", "others:subject"
"""The subject is not read by the answer's positions, and by none but its own."""
TOTAL = (HIDDEN, WHOLE, -1, -1, -1)


def _average(effects: Effects) -> Iterator[dict[str, Any]]:
    """A row for each group, cell and metric; `share` is that of the same facts' total effect."""
    for group, cells in effects.items():
        for cell, metrics in cells.items():
            for metric, facts in metrics.items():
                total = np.mean([cells[TOTAL][metric][fact] for fact in facts])
                ends = mean_intervals(np.array([*facts.values()])[:, None])
                mean, low, high = (float(end[0]) for end in ends)
                if metric == "p":  # a difference of two probabilities
                    low, high = max(low, -1.0), min(high, 1.0)
                yield (
                    dict(zip((*GROUP, *CELL), (*group, *cell), strict=True))
                    | {"metric": metric, "mean": mean, "low": low, "high": high}
                    | {"share": mean / total if total else None}
                    | {"facts": len(facts)}
                )


def _share_reading(effects: Effects) -> Iterator[dict[str, Any]]:
    """What each group loses where the answer's positions cannot read the subject in any layer, as a
    share of what is lost where no other position can.

    In the latter case the answer does not depend on the subject: all that reading it gives is lost.
    """
    for group, cells in effects.items():
        whole = {cell[0]: metrics for cell, metrics in cells.items() if cell[1] == WHOLE}
        if not {BY_ANSWER, BY_OTHERS} <= whole.keys():
            continue
        answer, others = (whole[edge].get(COMPARED, {}) for edge in (BY_ANSWER, BY_OTHERS))
        facts = [fact for fact in answer if fact in others]
        lost = np.array([others[fact] for fact in facts])
        if len(facts) < 2 or not mean_intervals(lost[:, None])[1] > 0:
            continue
        shares = find_shares([answer[fact] for fact in facts], lost)
        mean, low, high = (float(end[0]) for end in mean_intervals(shares[:, None]))
        ends = {"mean": mean, "low": low, "high": high, "facts": len(facts)}
        yield dict(zip(GROUP, group, strict=True)) | ends


def compare_edges(effects: Effects, settings: Any) -> list[dict[str, Any]]:
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
            yield judge_interval(name_edge_claim(row), tidy.to_interval(row), row["facts"])


def name_edge_claim(row: tidy.Record) -> str:
    """The claim that a row is judged by."""
    return ", ".join(row[name] for name in ("model", "split", "stage", "edge", "metric"))

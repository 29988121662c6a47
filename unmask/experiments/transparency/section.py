"""How well detectors tell phenomena, what they find in a model's texts, and the page."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from unmask.blocks import labels, tidy
from unmask.blocks.blocks import Figure, Finding, Notice, ReportBlock, Text
from unmask.measures.measure import Rows, Summary, Tables
from unmask.measures.result import Result
from unmask.results.comparison import MODEL, Comparison, Factor, Quantity
from unmask.results.summaries import estimate_means, name_outcome

CHANCE, GOAL, ALARMS, SLOPE = 0.5, 0.95, 0.05, (0.8, 1.2)
"""The AUROC of chance and the least that is asked for, the most false alarms, and between which
slopes a dose is recovered."""
LENGTHS, COUNTED = "early length", "needed, not shown"
"""Phenomena whose dose is read off all texts of a language, not off the mean score."""
PHENOMENON = Factor("phenomenon", "phenomenon")
DETECTED = Comparison(
    metrics={
        "auroc": Quantity("AUROC", limits=(0.0, 1.0)),
        "false": Quantity("false alarms", "%"),
        "hits": Quantity("found at full dose", "%"),
        "slope": Quantity("slope of the dose"),
    },
    groups=(PHENOMENON,),
    counted="languages",
    title="Detectors",
    names=("detectors", ""),
    means="Detectors, judged on languages of another size than their limits were chosen on",
)
DOSES = Comparison(
    metrics={"found": Quantity("found", limits=(-1.0, 1.0))},
    groups=(PHENOMENON,),
    axis=Factor("dose", "dose"),
    counted="languages",
    title="What is found of each dose",
    caption="Means of languages with 95 % intervals by language. Exact detectors lie on the "
    "diagonal.",
    names=("doses", ""),
)
STATES = Comparison(
    metrics={
        "expected": Quantity("expected length", digits=1, least=0.0),
        "error": Quantity("distance from the final length", digits=1, least=0.0),
        "token_smear": Quantity("token smearing", "%"),
        "sequence_smear": Quantity("sequence smearing", "%"),
    },
    groups=(MODEL,),
    axis=Factor("part", "steps done, %"),
    title="A model's own texts, by the steps that are done",
    names=("states", ""),
    means="A model's own texts, by the share of steps that are done",
)
SMEARS = replace(
    STATES,
    metrics={name: own for name, own in STATES.metrics.items() if name.endswith("smear")},
)
TEXTS = Comparison(
    metrics={
        "backwards": Quantity("written from right to left, of pairs", "%"),
        "revised": Quantity("places revised", "%"),
        "doubt": Quantity("doubt of the length at first", "%"),
    },
    groups=(MODEL,),
    title="Whole texts",
    names=("texts", ""),
    means="A model's own texts: order, revision, and how unsure the first state is of the length",
)


def summarise(tables: Tables, settings: Any) -> Summary:
    """Detectors on laws; means of models' states and texts; depths."""
    rows = tables["transparency"].to_pylist()
    states = [row | {"part": round(100 * row["done"])} for row in tables["states"].to_pylist()]
    named = tidy.group_by(rows, "phenomenon").items()
    judged = [_judge(name, own) for name, own in named]
    depths = tables["depth"].to_pylist()
    first = tidy.group_by(tidy.select(depths, seed=0), "model").values()
    return {
        "detectors": [row for own, _ in judged for row in own],
        "doses": [row for _, own in judged for row in own],
        "states": STATES.average(states, "part"),
        "texts": TEXTS.average([row for row in states if row["part"] == 0]),
        "depth": [row for own in first for row in own],
    }


def _judge(name: str, rows: Rows) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A detector's AUROC, false alarms, hits and slope; and what it finds of each dose."""
    from unmask.evaluation.detection import choose_alarm, estimate_area

    fixing, judging = (tidy.select(rows, is_fixing=side) for side in (True, False))
    ends = [row for row in fixing if row["dose"] == 0 or _is_full(row)]
    limit = choose_alarm([row["score"] for row in ends], [row["dose"] > 0 for row in ends], ALARMS)
    languages = len(tidy.distinct(judging, "fact"))
    ends = [row for row in judging if row["dose"] == 0 or _is_full(row)]
    area = estimate_area(
        [row["score"] for row in ends],
        [row["dose"] > 0 for row in ends],
        [row["fact"] for row in ends],
    )
    counts = {"phenomenon": name, "facts": languages, "limit": limit}
    detected: list[dict[str, Any]] = []
    if area is not None:
        outcome = name_outcome(area, languages, CHANCE)
        detected.append(counts | {"metric": "auroc", "outcome": outcome} | vars(area))
    for metric, side in (("false", False), ("hits", True)):
        own = [{**row, "value": row["score"] > limit} for row in ends if (row["dose"] > 0) == side]
        (mean, *_) = estimate_means(own, (), ("value",), ("value",)) or [{}]
        detected.append(counts | mean | {"metric": metric})
    recovered = list(_find_doses(name, judging, limit))
    slopes = [
        {"fact": fact, "seed": 0, "value": _fit(own)}
        for fact, own in tidy.group_by(recovered, "fact").items()
    ]
    (mean, *_) = estimate_means(slopes, (), ("value",))
    detected.append(counts | mean | {"metric": "slope"})
    by_level = [row | {"dose": round(row["dose"], 3)} for row in recovered]
    return detected, DOSES.average(by_level, "dose")


def _is_full(row: tidy.Record) -> bool:
    """Whether a row is of a law with the full dose."""
    return "dose 1" in row["corpus"] and row["dose"] > 0


def _find_doses(name: str, rows: Rows, limit: float) -> Iterator[dict[str, Any]]:
    """What is found in each corpus with a dose, or without."""
    import numpy as np

    for corpus, own in tidy.group_by(rows, "fact", "corpus").items():
        if not corpus[1].startswith(f"{name}: dose"):
            continue
        value = fmean(row["score"] for row in own)
        if name == LENGTHS:
            pair = np.array([[row["expected"], row["came"]] for row in own]).T
            value = float(np.corrcoef(pair)[0, 1]) if (pair.std(1) > 0).all() else 0.0
        elif name == COUNTED:
            value = fmean(row["score"] > limit for row in own)
        columns = {"phenomenon": name, "fact": corpus[0], "seed": 0}
        yield columns | {"dose": own[0]["dose"], "found": value}


def _fit(rows: Rows) -> float:
    """The slope of what is found against the dose, by least squares."""
    import numpy as np

    x, y = (np.array([row[name] for row in rows]) for name in ("dose", "found"))
    return float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())


def describe(result: Result) -> Sequence[ReportBlock]:
    """Which detectors reach their goals; the doses; what models' texts show; depths."""
    summary = result.summary
    shown: list[ReportBlock] = [*_state(summary["detectors"]), _draw_doses(summary["doses"])]
    shown.append(DETECTED.tabulate(summary["detectors"]))
    if summary["states"]:
        shown += [_draw_states(summary["states"]), STATES.tabulate(summary["states"])]
        shown.append(TEXTS.tabulate(summary["texts"]))
    if summary["depth"]:
        shown += [*_state_depths(summary["depth"]), _tabulate_depths(summary["depth"])]
    if not summary["states"]:
        shown.append(Notice("No model was named: only laws were looked at, and no depth."))
    return shown


def _state(rows: Rows) -> Iterator[ReportBlock]:
    """A sentence for each detector, and whether it is what it should be."""
    for name, own in tidy.group_by(rows, "phenomenon").items():
        by = {row["metric"]: row for row in own if "mean" in row}
        if by.keys() != DETECTED.metrics.keys():
            continue
        area, false, slope = by["auroc"], by["false"], by["slope"]
        is_good = area["mean"] >= GOAL and false["mean"] <= ALARMS
        is_good &= SLOPE[0] <= slope["mean"] <= SLOPE[1]
        is_sure = area["low"] >= GOAL and false["high"] <= ALARMS
        is_sure &= SLOPE[0] <= slope["low"] and slope["high"] <= SLOPE[1]
        reached = "reaches all three goals" + (
            "" if is_sure else ", which its intervals leave open"
        )
        verdict = reached if is_good else "misses a goal"
        yield Finding(
            f"{name.capitalize()}: AUROC {tidy.say(area, limits=(0.0, 1.0))}, false alarms "
            f"{tidy.say(false, '%')}, slope {tidy.say(slope)}; it {verdict} "
            f"({labels.count(area['facts'], 'language')}).",
            area["outcome"],
            "languages",
        )


def _state_depths(rows: Rows) -> Iterator[Text]:
    for model, own in tidy.group_by(rows, "model").items():
        first, deepest = own[0], max(own, key=lambda row: row["opaque"])
        times = first["opaque"] // first["pass"]
        depth = "the depth of one pass" if times == 1 else f"that of {times} passes"
        text = (
            f"A pass of {model} has a serial depth of {first['pass']:,}. In {first['steps']} steps "
            f"{first['opaque']:,} of {first['whole']:,} stay opaque, {depth}, since "
            f"{first['carried']} go from step to step."
        )
        if deepest["opaque"] > first["opaque"]:
            text += f" Were {deepest['carried']} carried, it would be {deepest['opaque']:,}."
        yield Text(text)


def _draw_doses(rows: Rows) -> Figure:
    return DOSES.draw(
        rows,
        line="phenomenon",
        colour=lambda row: f"p{tidy.distinct(rows, 'phenomenon').index(row['phenomenon'])}",
        panel=lambda row: "",
        choose=(),
    )


def _draw_states(rows: Rows) -> Figure:
    """Smearing by the steps that are done."""
    return SMEARS.draw(
        rows,
        line=lambda row: SMEARS.metrics[row["metric"]].label,
        colour=lambda row: "p0" if row["metric"] == "token_smear" else "p1",
        choose=(),
        ylabel="smeared, %",
    )


def _tabulate_depths(rows: Rows) -> ReportBlock:
    columns: dict[Any, tidy.Get] = {
        "model": "model",
        "carried from step to step": "carried",
        "steps": "steps",
        "a pass": "pass",
        "opaque": "opaque",
        "all steps": "whole",
    }
    return tidy.tabulate(
        "depth", "Serial depth, in operations; the model's own way comes first", rows, columns
    )

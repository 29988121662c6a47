"""What is shown of steering: effect and damage by strength, schedules at equal damage."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from unmask.blocks import tidy
from unmask.blocks.blocks import ReportBlock
from unmask.evaluation.quality import find_pseudo_values
from unmask.measures.measure import Rows, Summary, Tables
from unmask.measures.result import Result
from unmask.results.comparison import KIND, MODEL, Comparison, Factor, Quantity

SCHEDULES = {
    "all": "all steps",
    "early": "the early half",
    "late": "the late half",
    "forms": "where it forms",
}
DIRECTIONS = {"own": "the direction asked for", "random": "a random direction", "none": "nothing"}
BUDGETS = (1, 2)
"""Schedules are compared at so many times the budget."""
STEERED = Factor("schedule", "steps", SCHEDULES, is_told=True)
STRENGTH = Factor("strength", "strength", lambda strength: f"{strength:g}")
METRICS = {
    "brought": Quantity("what was asked for", "%"),
    "per_token": Quantity("cost under the judge, nats per token", least=0.0),
    "distinct": Quantity("distinct-2", digits=3),
}
EFFECT = Comparison(
    metrics=METRICS,
    groups=(MODEL, KIND, STEERED),
    variant=Factor("added", "added", DIRECTIONS),
    against=[("own", "random"), ("own", "none")],
    axis=STRENGTH,
    counted="texts",
    title="Texts that have what was asked for",
    caption="By strength; bands are 95 % intervals by text.",
    names=("effect", "against"),
    means="Effect and damage of what is added",
    differences="The direction asked for, minus each control",
    controls=("random", "none"),
    most=60,
)
TIMING = Comparison(
    metrics=METRICS,
    groups=(MODEL, KIND),
    variant=STEERED,
    against=[(name, "all") for name in SCHEDULES if name != "all"],
    axis=STRENGTH,
    counted="texts",
    title="What each schedule brings, at equal strength",
    caption="Bands are 95 % intervals by text.",
    names=("timing", "timed"),
    differences="Each schedule minus all steps, at equal strength",
    most=60,
)
COSTS = replace(
    TIMING,
    metrics={"per_token": METRICS["per_token"]},
    title="What each schedule costs, at equal strength",
    names=("costs", ""),
)
CHOSEN = Comparison(
    metrics=METRICS,
    groups=(MODEL, KIND, Factor("budget", "budget", lambda nats: f"{nats:g} nats", is_told=True)),
    variant=Factor("schedule", "steps", {**SCHEDULES, "none": "unsteered"}),
    against=lambda names: [(name, "all") for name in names if name != "all"],
    beside={"strength": "mean strength"},
    counted="texts",
    title="Schedules at equal damage",
    names=("chosen", "gained"),
    means="With the strength chosen within the budget on the other half of the texts",
    differences="Each schedule minus all steps, within one budget of damage",
)
RECALL = Comparison(
    metrics={"hit": Quantity("recalled", "%")},
    groups=(MODEL, KIND, STEERED),
    variant=EFFECT.variant,
    against=[("own", "none"), ("random", "none")],
    axis=STRENGTH,
    title="Recall of other facts under steering",
    names=("recall", "recall_lost"),
    means="Recall of facts that do not state the target, asked as trained",
    differences="Recall under steering minus that without",
    most=60,
)


def summarise(tables: Tables, settings: Any) -> Summary:
    """Effect and damage by schedule, strength and direction; schedules at equal damage; recall."""
    texts = list(_add_variety(tables["steer"].to_pylist()))
    repeated, answers = list(_repeat(texts)), list(_repeat(tables["recall"].to_pylist()))
    own, budgets = (
        tidy.select(repeated, added="own"),
        sorted({n * settings.budget for n in BUDGETS}),
    )
    return (
        EFFECT.summarise(repeated)
        | {"timed": TIMING.subtract(own, "strength")}
        | CHOSEN.summarise([row for budget in budgets for row in choose_strengths(texts, budget)])
        | RECALL.summarise(answers)
        | {"formed": _join_formed(tables["formed"].to_pylist())}
    )


WAY = ("model", "seed", "target", "schedule", "strength", "added")


def _add_variety(rows: Rows) -> Iterator[dict[str, Any]]:
    """Texts with the pseudo-value that each has of distinct-2 of its target's texts one way."""
    for same in tidy.group_by(rows, *WAY).values():
        values = find_pseudo_values([row["text"] for row in same], 2) or [None] * len(same)
        yield from (dict(row) | {"distinct": x} for row, x in zip(same, values, strict=True))


def _repeat(rows: Rows) -> Iterator[dict[str, Any]]:
    """Rows by schedule and strength, those without steering standing beside each."""
    steered = [row for row in rows if row["added"] != "none"]
    ways = [dict(zip(WAY[3:5], way, strict=True)) for way in tidy.distinct(steered, *WAY[3:5])]
    for way in ways:
        yield from (dict(row) for row in tidy.select(steered, **way))
        yield from (dict(row) | way for row in tidy.select(rows, added="none"))


def choose_strengths(texts: Rows, budget: float) -> Iterator[dict[str, Any]]:
    """The texts of each schedule at the best strength that the budget allows on the other half.

    Halves are of each target's texts, even ones and odd ones. Unsteered texts are strength 0 of
    every schedule, and a schedule of their own. Nothing is chosen where no judge scored them.
    """
    texts = [row for row in texts if row["added"] != "random" and row["per_token"] is not None]
    for own in tidy.group_by(texts, "model", "seed").values():
        plain = tidy.select(own, added="none")
        for schedule in tidy.distinct(own, "schedule"):
            both = [*plain, *tidy.select(own, schedule=schedule)] if schedule != "none" else plain
            ways = tidy.group_by(both, "strength")
            for half in (0, 1):
                read, judged = (
                    {name: [row for row in same if _find_half(row) == side]
                     for name, same in ways.items()}
                    for side in (half, 1 - half)
                )  # fmt: skip
                if not judged.get(0.0):
                    continue
                most = _average(judged[0.0], "per_token") + budget
                costs = {name: _average(same, "per_token") for name, same in judged.items() if same}
                allowed = [name for name, cost in costs.items() if name == 0 or cost <= most]
                best = max(allowed, key=lambda name: _average(judged[name], "brought"))
                about = {"schedule": schedule, "strength": best, "budget": budget}
                yield from ({**row, **about} for row in read[best])


def _find_half(row: tidy.Record) -> int:
    return int(row["fact"].rpartition("-")[2]) % 2


def _average(rows: Rows, column: str) -> float:
    return sum(row[column] for row in rows) / len(rows)


def _join_formed(rows: Rows) -> Rows:
    """For each target, the gap at each step and the steps in which its direction forms."""
    joined = []
    for (model, seed, target), own in tidy.group_by(rows, "model", "seed", "target").items():
        chosen = [row["step"] for row in own if row["is_chosen"]]
        about = {"model": model, "seed": seed, "target": target}
        joined.append(about | {"steps": chosen, "gaps": [row["gap"] for row in own]})
    return joined


def describe(result: Result) -> Sequence[ReportBlock]:
    """Schedules at equal damage, what is brought against controls, figures and tables."""
    summary = result.summary
    strengths = sorted(tidy.distinct(summary["effect"], "strength"))
    stated = {
        **summary,
        "against": tidy.select(summary["against"], strength=strengths[len(strengths) // 2]),
    }
    parts: list[ReportBlock] = [*CHOSEN.state(summary)] if summary["chosen"] else []
    own = tidy.select(summary["effect"], added="own")
    parts += [*EFFECT.state(stated), TIMING.draw(own)]
    parts += [COSTS.draw(own)] if tidy.select(own, metric="per_token") else []
    parts += [EFFECT.draw(summary["effect"])]
    if summary["chosen"]:
        parts += [
            CHOSEN.tabulate(summary["chosen"]),
            CHOSEN.tabulate_differences(summary["gained"]),
        ]
    parts += [
        TIMING.tabulate_differences(summary["timed"]),
        EFFECT.tabulate(summary["effect"]),
        EFFECT.tabulate_differences(summary["against"]),
    ]
    if summary["recall"]:
        parts += [
            RECALL.tabulate(summary["recall"]),
            RECALL.tabulate_differences(summary["recall_lost"]),
        ]
    return [*parts, _tabulate_formed(summary["formed"])]


def _tabulate_formed(rows: Rows) -> ReportBlock:
    columns: Mapping[Any, Any] = {
        "model": "model",
        "target": "target",
        "forms at steps": lambda row: ", ".join(map(str, row["steps"])),
        "gap at each step, standard deviations": lambda row: " · ".join(
            f"{x:.2f}" for x in row["gaps"]
        ),
    }
    return tidy.tabulate("formed", "When each target's direction forms", rows, dict(columns))

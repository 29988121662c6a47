"""Which signals of a trajectory tell wrong answers: AUROC of each, by model, split and steps."""

from collections.abc import Iterator
from typing import Any

from unmask.blocks import labels, tidy
from unmask.blocks.blocks import Finding, ReportBlock
from unmask.measures.measure import Rows
from unmask.results.comparison import ASKED, Comparison, Factor, Quantity
from unmask.results.summaries import name_outcome

NAMES = {
    "entropy": "entropy when written",
    "entropy_most": "highest entropy",
    "margin": "margin when written",
    "margin_least": "lowest margin",
    "changes": "changes of mind",
    "backwards": "order from right to left",
}
"""Columns of recall that are signals; wrong answers should have more of each, of margins less."""
SIGNS = {"margin": -1, "margin_least": -1}
CHANCE = 0.5
TOLD = Comparison(
    metrics={name: Quantity(label, limits=(0.0, 1.0)) for name, label in NAMES.items()},
    groups=(ASKED, Factor("steps", "steps")),
    variant=Factor("model", "model"),
    title="Signals of wrong answers",
    names=("signals", ""),
    means="AUROC: how often a wrong answer's text has more of a signal (of margins, less) than a "
    "right one's; 0.5 is chance. By the rule that is told first",
    most=60,
)


def judge_signals(rows: Rows, rule: str) -> Iterator[dict[str, Any]]:
    """AUROC of each signal for wrong answers, with its interval by fact; none without both."""
    from unmask.evaluation.detection import estimate_area

    for name in NAMES if "entropy_most" in rows[0] else ():
        known = [row for row in rows if row[name] is not None]
        wrong, facts = [not row[rule] for row in known], [row["fact"] for row in known]
        values = [SIGNS.get(name, 1) * row[name] for row in known]
        if (area := estimate_area(values, wrong, facts)) is not None:
            # What one fact alone says settles nothing, on either side.
            fewer = min(
                len({fact for fact, is_wrong in zip(facts, wrong, strict=True) if is_wrong == side})
                for side in (True, False)
            )
            errors = sum(not row[rule] for row in rows)
            counts = {"facts": len(set(facts)), "wrong": errors, "prompts": len(rows)}
            outcome = name_outcome(area, fewer, CHANCE)
            yield {"metric": name} | vars(area) | counts | {"outcome": outcome}


def describe_signals(rows: Rows) -> Iterator[ReportBlock]:
    """The best signal of each model at the most steps, where it errs most, and the table."""
    for model, own in tidy.group_by(rows, "model").items():
        last = tidy.select(own, steps=max((row["steps"] for row in own), key=lambda n: n or 0))
        worst = max(tidy.group_by(last, "split").values(), key=lambda x: x[0]["wrong"])
        best = max(worst, key=lambda row: row["mean"])
        steps = f", {labels.count(best['steps'], 'step')}" if best["steps"] else ""
        yield Finding(
            f"Of six signals of {model}'s own trajectories, {NAMES[best['metric']]} tells wrong "
            f"answers best where they are most ({tidy.name_asked(best)}{steps}): AUROC "
            f"{tidy.say(best)} ({best['wrong']} of {best['prompts']} texts are wrong; "
            f"{labels.count(best['facts'], 'fact')}).",
            best["outcome"],
        )
    if rows:
        yield TOLD.tabulate(rows, wrong="wrong")

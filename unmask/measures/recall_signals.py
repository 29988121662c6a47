"""Which signals of a trajectory tell wrong answers: AUROC of each, by model, split and steps."""

from collections.abc import Iterator

from unmask.blocks import labels, tidy
from unmask.blocks.blocks import Finding, ReportBlock
from unmask.measures.measure import Rows
from unmask.results.comparison import ASKED, Comparison, Factor, Quantity
from unmask.results.signals import NAMES

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

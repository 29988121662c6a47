"""A measure of another package, whole: is a model as sure of its answers as it is right?

Each prompt is continued once. Its confidence is the mean probability that the answer's tokens had
when they were written; it is a hit if the text contains the true answer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import unmask
from unmask.base.config import option
from unmask.blocks import blocks, labels, tidy
from unmask.measures.inputs import QUESTIONS, ModelInputs, Questions
from unmask.measures.measure import Job, Measure, Stage, Summary, Tables, judge_interval
from unmask.measures.result import Result
from unmask.measures.settings import QuestionSettings
from unmask.measures.summaries import estimate_means


# 1. Settings: the verb's options, their defaults, ranges and help.
@dataclass(frozen=True, kw_only=True)
class CalibrationSettings(QuestionSettings):
    """How texts are drawn."""

    steps: int = option(16, "Sampling steps.", least=1)


# 2. Jobs: the parts of a run, here one for each checkpoint. A part that is there is not made again.
def list_jobs(inputs: ModelInputs, settings: CalibrationSettings) -> Iterator[Job]:
    return inputs.ask_each("calibration", lambda model: ask(model, inputs.data, settings))


def ask(
    model: "unmask.Model", questions: Questions, settings: CalibrationSettings
) -> Iterator[dict[str, Any]]:
    facts = list(questions.encode(model, settings.length))
    texts = unmask.sample(
        model, [ids[:at] for _, _, ids, at, _ in facts], steps=settings.steps, length=facts[0][-1]
    )
    for i, (columns, fact, ids, at, _) in enumerate(facts):
        generation = model.tokenizer.decode(texts.tokens[i].tolist()[at:])
        yield columns | {
            "confidence": float(texts.confidence[i, at : len(ids)].mean()),
            "hit": fact.completion.strip().lower() in generation.lower(),
        }


# 3. The summary: the only place that computes statistics.
def summarise(tables: Tables, settings: CalibrationSettings) -> Summary:
    rows = [
        row | {"gap": row["confidence"] - row["hit"]} for row in tables["calibration"].to_pylist()
    ]
    metrics, shares = ("confidence", "hit", "gap"), ("confidence", "hit")
    return {
        "means": estimate_means(rows, ("model", "kind", "split"), metrics, shares),
        "overall": estimate_means(rows, ("model", "kind"), metrics, shares),
    }


# 4. Verdicts: the only place that says what is clear.
def judge(summary: Summary, settings: CalibrationSettings) -> Iterator[blocks.Verdict]:
    for row in tidy.select(summary["overall"], metric="gap"):
        yield judge_interval(row["model"], tidy.to_interval(row), row["facts"])


# 5. The section: what a colleague would say, a figure as data, a table of values.
def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    means, colours = result.summary["means"], labels.colour_models(result.kinds)
    findings = [
        blocks.Finding(
            f"{row['model']} is {tidy.say(tidy.to_interval(row), 'points')} surer than right.",
            result.verdicts[row["model"]],
        )
        for row in tidy.select(result.summary["overall"], metric="gap")
    ]
    figure = tidy.draw_dots(
        tidy.select(means, metric="gap"),
        "calibration",
        "Confidence minus hits",
        "0 is a calibrated model. Bars are 95 % intervals by fact.",
        label=lambda row: labels.name_split(row["split"]),
        group="model",
        colour=lambda row: colours[row["model"]],
        xlabel="confidence − hits",
    )
    table = tidy.tabulate_means(
        "means",
        "Confidence and hits, %",
        means,
        {"model": "model", "asked": lambda row: labels.name_split(row["split"])},
        {
            "confidence": blocks.Column("confidence", 1, is_percent=True),
            "hit": blocks.Column("hits", 1, is_percent=True),
            "gap": blocks.Column("difference", 1, is_percent=True, has_sign=True),
        },
    )
    return [*findings, figure, table]


# 6. The record that everything else is derived from; an entry point names it.
MEASURE = Measure(
    name="calibration",
    title="Is a model as sure as it is right?",
    help="Confidence of answers against how often they are true.",
    settings=CalibrationSettings,
    tables={"calibration": "calibration/1"},
    inputs=QUESTIONS,
    jobs=list_jobs,
    summarise=summarise,
    judge=judge,
    describe=describe,
    method=__doc__,
    stages=[Stage(sizes={"quick": {"limit": 3, "steps": 4}, "laptop": {"limit": 14}})],
)

"""A measure of another package, whole: is a model as sure of its answers as it is right?

Each prompt is continued once. Its confidence is the mean probability that the answer's tokens had
when they were written; it is a hit if the text contains the true answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.base.config import option
from unmask.blocks.blocks import Column, Dot, DotPanel, Figure, Finding, Section, Verdict
from unmask.blocks.labels import colour_models, name_split
from unmask.measures.inputs import QUESTIONS, Member, ModelInputs
from unmask.measures.measure import Job, Measure, Stage, Summary, Tables, judge_interval
from unmask.measures.result import Result
from unmask.measures.settings import QuestionSettings
from unmask.measures.summaries import distinct, estimate_means, select, tabulate_means, to_interval


# 1. Settings: the verb's options, their defaults, ranges and help.
@dataclass(frozen=True, kw_only=True)
class CalibrationSettings(QuestionSettings):
    """How texts are drawn."""

    steps: int = option(16, "Sampling steps.", least=1)


# 2. Jobs: the parts of a run. A part that is there already is not worked on again.
def list_jobs(inputs: ModelInputs, settings: CalibrationSettings) -> Iterator[Job]:
    for member in inputs.members():
        yield Job(
            member.key, lambda member=member: {"calibration": measure(inputs, member, settings)}
        )


def measure(
    inputs: ModelInputs, member: Member, settings: CalibrationSettings
) -> list[Mapping[str, Any]]:
    import unmask
    from unmask.data.facts import tokenize_fact
    from unmask.evaluation.metrics import is_contained

    model, facts = inputs.load(member), inputs.data.facts()
    texts = unmask.sample(
        model, [fact.prompt for _, fact in facts], steps=settings.steps, length=settings.length
    )
    rows = []
    for i, (split, fact) in enumerate(facts):
        tokens = tokenize_fact(fact, model.tokenizer)
        answer = slice(tokens.prompt_length, len(tokens.ids))
        generation = model.tokenizer.decode(texts.tokens[i].tolist()[tokens.prompt_length :])
        rows.append(
            member.columns
            | {"split": split, "fact": fact.fact_id, "phrasing": fact.phrasing}
            | {"confidence": float(texts.confidence[i, answer].mean())}
            | {"hit": is_contained(generation, fact.completion)}
        )
    return rows


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
def judge(summary: Summary, settings: CalibrationSettings) -> Sequence[Verdict]:
    return [
        judge_interval(row["model"], to_interval(row), row["facts"])
        for row in select(summary["overall"], metric="gap")
    ]


# 5. The section: what a colleague would say, a figure as data, a table of values.
def describe(result: Result) -> Section:
    means = result.summary["means"]
    splits = {split: name_split(split) for split in distinct(means, "split")}
    findings = []
    for row in select(result.summary["overall"], metric="gap"):
        verdict = result.verdicts[row["model"]]
        words = {"above": "surer than it is right", "below": "less sure than it is right"}
        said = words.get(verdict.outcome, "about as sure as it is right, as far as this tells")
        gap = f"{100 * row['mean']:+.0f} points [{100 * row['low']:+.0f}, {100 * row['high']:+.0f}]"
        findings.append(Finding(f"{row['model']} is {said}: {gap}.", verdict))
    table = tabulate_means(
        "means",
        "Confidence and hits, %",
        means,
        {"model": Column("model"), "split": Column("asked")},
        {
            "confidence": Column("confidence", 1, is_percent=True),
            "hit": Column("hits", 1, is_percent=True),
            "gap": Column("difference", 1, is_percent=True, has_sign=True),
        },
        {"split": splits},
    )
    colours = colour_models(result.kinds)
    dots = [
        Dot(splits[row["split"]], row["model"], colours[row["model"]], to_interval(row))
        for row in select(means, metric="gap")
    ]
    figure = Figure(
        name="calibration",
        title="Confidence minus hits",
        alt="Dots with intervals: how much surer each model is than it is right, by way of asking.",
        caption="0 is a calibrated model. Bars are 95 % intervals by fact.",
        chart="dots",
        views={(): [DotPanel("", dots)]},
        xlabel="confidence − hits",
    )
    return Section("calibration", MEASURE.title, [*findings, figure, table])


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
    stages=[Stage(sizes={"quick": {"limit": 3, "steps": 4}, "laptop": {"limit": 14}})],
)

"""nll: what each token of a name and of a description costs a model, by the chain rule.

The study supposes that descriptions are harder to recall than names because their text is harder to
predict. Each answer is scored given its prompt, and alone: at the start of an otherwise masked
canvas, or after an end token where the model is causal.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unmask.base.config import option
from unmask.blocks.blocks import (
    Column,
    Dash,
    Figure,
    Finding,
    Fold,
    Line,
    LinePanel,
    Section,
    Text,
    Verdict,
)
from unmask.blocks.labels import ASKED, colour_models, count, name_split
from unmask.evaluation.statistics import compare
from unmask.measures.inputs import QUESTIONS, Member, ModelInputs, Questions
from unmask.measures.measure import Job, Measure, Rows, Summary, Tables, judge_interval
from unmask.measures.result import Result
from unmask.measures.settings import QuestionSettings
from unmask.measures.summaries import distinct, estimate_means, select, tabulate_means, to_interval

if TYPE_CHECKING:
    from unmask.net.model import Model

METRICS = {
    "nll_per_token": Column("per token, prompt given"),
    "nll_first": Column("first token"),
    "nll_later": Column("later tokens"),
    "alone_per_token": Column("per token, alone"),
    "nll_total": Column("whole answer"),
}
MOST_PLACES = 24
"""Tokens of an answer that the figure shows."""
_DASHES: dict[str, Dash] = {"same": "solid", "reverse": "dash", "alone": "dot"}


@dataclass(frozen=True, kw_only=True)
class NllSettings(QuestionSettings):
    """What answers cost."""

    seed: int = option(0, "Seed of the permutation tests.", least=0)


def list_jobs(inputs: ModelInputs, settings: NllSettings) -> Iterator[Job]:
    """One part for each checkpoint."""

    def work(member: Member) -> Mapping[str, Rows]:
        rows = score_answers_twice(inputs.load(member), inputs.data, settings.length)
        return {"nll": [member.columns | row for row in rows]}

    for member in inputs.members():
        yield Job(member.key, lambda member=member: work(member))


def score_answers_twice(
    model: "Model", questions: Questions, length: int | None
) -> Iterator[dict[str, Any]]:
    """A row for each answer: nats of each of its tokens, given the prompt and alone."""
    from unmask.evaluation.answers import Asked, score_alone, score_answers
    from unmask.evaluation.questions import (
        check_scored,
        choose_length,
        encode_facts,
        require_tokenizer,
    )

    check_scored(model)
    tokenizer, facts = require_tokenizer(model), questions.facts()
    encoded = encode_facts([fact for _, fact in facts], tokenizer)
    canvas = choose_length(model, list(encoded.values()), length)
    cut = [(encoded[fact].ids, encoded[fact].prompt_length) for _, fact in facts]
    asked = [Asked(ids[:at], [ids[at:]], []) for ids, at in cut]
    given = [scored[0].terms for scored in score_answers(model, asked, canvas)]
    # Phrasings share answers: each is scored alone once.
    unique = list(dict.fromkeys(tuple(ids[at:]) for ids, at in cut))
    alone = dict(zip(unique, score_alone(model, list(map(list, unique)), canvas), strict=True))
    for (split, fact), (ids, at), terms in zip(facts, cut, given, strict=True):
        costs, costs_alone = ([-term for term in each] for each in (terms, alone[tuple(ids[at:])]))
        yield {
            "split": split,
            "asked": ASKED[fact.direction],
            "trained": fact.trained,
            "fact": fact.fact_id,
            "phrasing": fact.phrasing,
            "prompt": fact.prompt,
            "completion": fact.completion,
            "tokens": [tokenizer.decode([token]) for token in ids[at:]],
            "nll": costs,
            "nll_alone": costs_alone,
            "nll_total": sum(costs),
            "nll_per_token": sum(costs) / len(costs),
            "nll_first": costs[0],
            "nll_later": sum(costs[1:]) / (len(costs) - 1) if len(costs) > 1 else None,
            "alone_per_token": sum(costs_alone) / len(costs),
        }


def summarise(tables: Tables, settings: NllSettings) -> Summary:
    """Means by model and split, by the token's position, and descriptions minus names."""
    rows = tables["nll"].to_pylist()
    return {
        "means": estimate_means(rows, ("model", "kind", "split", "asked"), list(METRICS)),
        "positions": _estimate_positions(rows),
        "differences": list(_compare_asked(rows, settings.seed)),
    }


def _estimate_positions(rows: Rows) -> Rows:
    """Mean cost by position in the answer, from 1, as long as every fact has a token there."""
    spread = [
        {name: row[name] for name in ("model", "kind", "asked", "fact", "seed")}
        | {"given": given, "position": position, "nll": cost}
        for row in rows
        for given, costs in ((row["trained"], row["nll"]), ("alone", row["nll_alone"]))
        for position, cost in enumerate(costs[:MOST_PLACES], start=1)
    ]
    line = ("model", "kind", "asked", "given")
    means = estimate_means(spread, (*line, "position"), ("nll",))
    first = {tuple(row[name] for name in line): row["facts"] for row in select(means, position=1)}
    return [row for row in means if row["facts"] == first[tuple(row[name] for name in line)]]


def _compare_asked(rows: Rows, seed: int) -> Iterator[dict[str, Any]]:
    """Per token, what descriptions cost more than names, asked as trained."""
    for model in distinct(rows, "model"):
        sides = []
        for asked in ("description", "name"):
            costs: dict[str, list[float]] = {}
            for row in select(rows, model=model, asked=asked, trained="same"):
                costs.setdefault(row["fact"], []).append(row["nll_per_token"])
            sides.append({fact: sum(each) / len(each) for fact, each in costs.items()})
        if difference := compare(*sides, seed=seed):
            yield {"model": model} | vars(difference)


def judge(summary: Summary, settings: NllSettings) -> Sequence[Verdict]:
    """Whether descriptions cost a model more per token than names."""
    return [
        judge_interval(row["model"], to_interval(row), row["facts"])
        for row in summary["differences"]
    ]


def describe(result: Result) -> Section:
    """What answers cost: a sentence for each model, the figure, the table."""
    means = result.summary["means"]
    columns = {"model": Column("model"), "split": Column("asked")}
    splits = {split: name_split(split) for split in distinct(means, "split")}
    table = tabulate_means(
        "means", "−log p of the answers, nats", means, columns, METRICS, {"split": splits}
    )
    method = Text(
        "An answer's cost is −log p of its tokens by the chain rule, without guidance; alone, "
        "that of the same answer without its prompt. Intervals are by fact."
    )
    blocks = [*_state_differences(result), _draw(result.summary["positions"])]
    return Section("nll", MEASURE.title, [*blocks, table, Fold("Method", [method])])


def _state_differences(result: Result) -> Iterator[Finding]:
    words = {"above": "more", "below": "less"}
    for row in result.summary["differences"]:
        verdict = result.verdicts[row["model"]]
        size = f"{abs(row['mean']):.2f} nats per token"
        said = words.get(verdict.outcome)
        text = (
            f"In {row['model']}, descriptions cost {size} {said} than names, asked as trained."
            if said
            else f"In {row['model']}, descriptions and names differ by {size}, asked as trained: "
            f"{count(row['facts'], 'fact')} do not tell which cost more."
        )
        yield Finding(text, verdict)


def _draw(positions: Rows) -> Figure:
    kinds = dict(distinct(positions, "model", "kind"))
    colours = {"name": "p2", "description": "p3"}
    panels = []
    for model in colour_models(kinds):
        lines = []
        for asked, given in distinct(select(positions, model=model), "asked", "given"):
            points = select(positions, model=model, asked=asked, given=given)
            points.sort(key=lambda row: row["position"])
            how = {"same": "as trained", "reverse": "reversed", "alone": "without a prompt"}[given]
            lines.append(
                Line(
                    f"{asked}, {how}",
                    colours.get(asked, "p4"),
                    [row["position"] for row in points],
                    [row["mean"] for row in points],
                    [row["low"] for row in points],
                    [row["high"] for row in points],
                    _DASHES[given],
                )
            )
        panels.append(LinePanel(model, lines))
    return Figure(
        name="nll",
        title="Cost of an answer, token by token",
        alt="Line charts of −log p of names and descriptions by the position of the token in the "
        "answer, one panel for each model: as trained, reversed, and without a prompt.",
        caption="Bands are 95 % intervals by fact.",
        chart="lines",
        views={(): panels},
        xlabel="token of the answer",
        ylabel="−log p, nats",
    )


MEASURE = Measure(
    name="nll",
    title="What answers cost",
    help="Nats per token of names and descriptions, given their prompts and alone.",
    settings=NllSettings,
    tables={"nll": "nll/1"},
    inputs=QUESTIONS,
    jobs=list_jobs,
    summarise=summarise,
    judge=judge,
    describe=describe,
)

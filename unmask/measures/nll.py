"""nll: what each token of a name and of a description costs a model, in nats.

The study supposes that descriptions are harder to recall than names because their text is harder to
predict. An answer's cost is −log p of its tokens by the chain rule, without guidance: given its
prompt, and alone, at the start of an otherwise masked canvas, or after an end token where the model
is causal. Intervals are by fact. Facts trained both ways stand in the table alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from unmask.blocks import blocks, labels, tidy
from unmask.measures.inputs import ALL_TESTS, ModelInputs
from unmask.measures.measure import Job, Measure, Rows, Summary, Tables
from unmask.measures.result import Result
from unmask.measures.settings import QuestionSettings
from unmask.results.comparison import MODEL, Comparison, Factor, Quantity
from unmask.results.summaries import estimate_means

if TYPE_CHECKING:
    from unmask.net.model import Model

METRICS = {
    "nll_per_token": Quantity("per token, prompt given", least=0.0),
    "nll_first": Quantity("first token", least=0.0),
    "nll_later": Quantity("later tokens", least=0.0),
    "alone_per_token": Quantity("per token, alone", least=0.0),
    "nll_total": Quantity("whole answer", least=0.0),
}
COMPARISON = Comparison(metrics=METRICS, title="Cost", means="−log p of the answers, nats")
BY_ANSWER = Comparison(
    metrics={"nll_per_token": Quantity("cost of answers asked as trained", "nats per token")},
    groups=(MODEL,),
    variant=Factor("asked", "asked for"),
    against=[("description", "name")],
    title="Descriptions and names",
)
MOST_POSITIONS = 24
"""Tokens of an answer that the figure shows."""
GIVEN = {"same": "as trained", "reverse": "reversed", "alone": "without a prompt"}
DASHES = {"same": "solid", "reverse": "dash", "alone": "dot"}


@dataclass(frozen=True, kw_only=True)
class AnswerCostSettings(QuestionSettings):
    """What is asked, of which splits."""

    dropped: ClassVar[frozenset[str]] = frozenset({"seed"})


def list_jobs(inputs: ModelInputs, settings: AnswerCostSettings) -> Iterator[Job]:
    """One part for each checkpoint."""
    from unmask.evaluation.costs import score_names

    def ask(model: "Model") -> Iterator[dict[str, Any]]:
        for row in score_names(model, list(inputs.data.encode(model, settings.length))):
            yield row | {"asked": labels.ASKED[row["direction"]]}

    return inputs.ask_each("nll", ask)


def summarise(tables: Tables, settings: AnswerCostSettings) -> Summary:
    """Means by model and split, by the token's position, and descriptions minus names."""
    rows = tables["nll"].to_pylist()
    one_way = [row for row in rows if not row["split"].startswith("both_")] or rows
    trained = tidy.select(one_way, trained="same")
    return {
        "means": COMPARISON.average(rows, "asked"),
        "positions": _estimate_positions(one_way),
        "differences": BY_ANSWER.subtract(trained),
        "answers": BY_ANSWER.average(trained),
    }


def _estimate_positions(rows: Rows) -> Rows:
    """Mean cost by position in the answer, from 1, as long as every fact has a token there."""
    spread = [
        {name: row[name] for name in ("model", "asked", "fact", "seed")}
        | {"given": given, "position": position, "nll": cost}
        for row in rows
        for given, costs in ((row["trained"], row["nll"]), ("alone", row["nll_alone"]))
        for position, cost in enumerate(costs[:MOST_POSITIONS], start=1)
    ]
    line = ("model", "asked", "given")
    means = estimate_means(spread, (*line, "position"), ("nll",), least={"nll": 0.0})
    groups = tidy.group_by(means, *line).values()
    return [row for group in groups for row in group if row["facts"] == group[0]["facts"]]


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """A sentence for each model, the cost token by token, the table."""
    summary = result.summary
    figure = tidy.draw_lines(
        summary["positions"],
        "nll",
        "Cost of an answer, token by token",
        "Bands are 95 % intervals by fact.",
        x="position",
        line=lambda row: f"{row['asked']}, {GIVEN[row['given']]}",
        colour=lambda row: "p2" if row["asked"] == "name" else "p3",
        dash=lambda row: DASHES[row["given"]],
        xlabel="token of the answer",
        ylabel="−log p, nats",
    )
    sentences = BY_ANSWER.state(
        {"means": summary["answers"], "differences": summary["differences"]}
    )
    return [*sentences, figure, COMPARISON.tabulate(summary["means"])]


MEASURE = Measure(
    name="nll",
    title="What answers cost",
    help="Nats per token of names and descriptions, given their prompts and alone.",
    settings=AnswerCostSettings,
    tables={"nll": "nll/2"},
    inputs=ALL_TESTS,
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    method=__doc__,
)

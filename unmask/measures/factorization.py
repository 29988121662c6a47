"""factorization: does a model give a sentence the same probability in both orders?

A sentence is a prompt A and its completion B, so that log p(A) + log p(B|A) and log p(B) +
log p(A|B) are the same number for a consistent model (Kitouni et al. 2024, arXiv 2406.05183). A
masked model keeps the sentence as it stands and changes the order of writing. A causal model reads
in one order only, so for the second sum the parts change places; both stand after an end token.

Where A and B belong together, B tells as much about A as A about B: log p(B|A) − log p(B) and
log p(A|B) − log p(A) are both the pointwise mutual information.

Beside a run of recall (`recall=FOLDER`): whether facts whose two sums lie far apart are recalled
less when asked in reverse, by Spearman's correlation over facts, with a bootstrap interval. Values
of a fact are means over phrasings and training seeds; recall is that at the most steps. Where fewer
than six facts are recalled otherwise than most are, nothing is called clear.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any

from unmask.base.config import CheckedSettings, option
from unmask.base.errors import UserError
from unmask.blocks import blocks, labels, tidy
from unmask.measures.inputs import ALL_TESTS, ModelInputs, RunFolders
from unmask.measures.measure import Job, Measure, Rows, Stage, Summary, Tables
from unmask.measures.recall_summary import keep_last
from unmask.measures.result import Result
from unmask.measures.settings import QuestionSettings
from unmask.results.comparison import ASKED, KIND, MODEL, Comparison, Quantity
from unmask.results.summaries import name_outcome

if TYPE_CHECKING:
    from unmask.net.model import Model

METRICS = {
    "joint_forward": Quantity("log p(A) + log p(B|A), per token"),
    "joint_backward": Quantity("log p(B) + log p(A|B), per token"),
    "gap": Quantity("distance, per token", least=0.0),
    "information_forward": Quantity("log p(B|A) − log p(B)"),
    "information_backward": Quantity("log p(A|B) − log p(A)"),
}
COMPARISON = Comparison(
    metrics=METRICS,
    title="Sentences in two orders",
    means="Sentences of a prompt A and its completion B, nats",
)
DIFFERENCE = "log p with the prompt first minus that with the answer first"
ORDERS = Comparison(
    metrics={
        "difference": Quantity(DIFFERENCE, "nats per token", has_sign=True),
        "gap": METRICS["gap"],
    },
    groups=(MODEL, KIND),
    chance={"difference": 0.0},
    title="Both orders",
)
CORRELATIONS = Comparison(
    metrics={
        name: replace(METRICS[name], has_sign=True) for name in ("gap", "information_forward")
    },
    groups=(MODEL, ASKED),
    title="Recall",
    names=("correlations", ""),
    means="Spearman's correlation with recall in reverse, over facts",
)


@dataclass(frozen=True, kw_only=True)
class FactorizationSettings(QuestionSettings):
    """Which sentences are scored."""

    limit: int | None = option(30, "Sentences of each split.", least=1)
    recall: str | None = option(
        None,
        "Folder of a run of `unmask recall` of the same models and data, to compare with.",
        is_identity=False,
    )


def list_jobs(inputs: ModelInputs, settings: FactorizationSettings) -> Iterator[Job]:
    """One part for each checkpoint."""
    from unmask.evaluation.costs import score_orders

    def ask(model: "Model") -> Iterator[dict[str, Any]]:
        return score_orders(model, list(inputs.data.encode(model, settings.length)))

    return inputs.ask_each("factorization", ask)


def summarise(tables: Tables, settings: FactorizationSettings) -> Summary:
    """Means by model and split, forward minus backward over all sentences of a model, and recall
    of the same facts."""
    rows = tables["factorization"].to_pylist()
    for row in rows:
        row["difference"] = row["joint_forward"] - row["joint_backward"]
    correlations = list(_compare_with_recall(rows, settings.recall)) if settings.recall else []
    means, differences = COMPARISON.average(rows), ORDERS.average(rows)
    return {"means": means, "differences": differences, "correlations": correlations}


def _compare_with_recall(rows: Rows, folder: str) -> Iterator[dict[str, Any]]:
    """How gaps and information go with recall in reverse, over facts, by model and split."""
    from unmask.evaluation.statistics import rank_correlation

    ours, hits = (tidy.group_by(x, "model", "split") for x in (rows, _read_recall(folder)))
    shared = [key for key in ours if key in hits and labels.is_reversed(key[1])]
    if not shared:
        raise UserError(
            f"{folder} has no model and reversed split of this run: expected recall of "
            f"{', '.join(tidy.distinct(rows, 'model'))} on the same data."
        )
    for key, metric in product(shared, CORRELATIONS.metrics):
        values, recall = _average(ours[key], metric), _average(hits[key], "hit")
        facts = sorted(values.keys() & recall.keys())
        one, other = ([side[fact] for fact in facts] for side in (values, recall))
        # Where nearly all facts are recalled alike, a few say all of the correlation.
        deviating = len(facts) - max(Counter(other).values(), default=0)
        correlation = rank_correlation(one, other)
        named = {"model": key[0], "split": key[1], "metric": metric, "facts": len(facts)}
        named |= {"deviating": deviating, "outcome": name_outcome(correlation, deviating)}
        yield named | vars(correlation)


def _read_recall(folder: str) -> Rows:
    """Rows with the most steps of their model, at the first strength of guidance it has."""
    ((_, recalled),) = RunFolders("recall").read({"runs": [folder]}, CheckedSettings())
    rows = keep_last(recalled.rows(), "model")
    first = {model: own[0]["guidance"] for model, own in tidy.group_by(rows, "model").items()}
    return [row for row in rows if row["guidance"] == first[row["model"]]]


def _average(rows: Rows, column: str) -> dict[str, float]:
    """The mean of a column by fact."""
    facts = tidy.group_by(rows, "fact").items()
    return {fact: fmean(row[column] for row in own) for fact, own in facts}


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """A sentence for each model, the table, and correlations where a run of recall was named."""
    summary = result.summary
    means, correlations = summary["means"], summary["correlations"]
    shown = [*ORDERS.state({"means": summary["differences"]}), COMPARISON.tabulate(means)]
    if correlations:
        columns = {"facts": "facts", "recalled unlike most": "deviating"}
        shown.append(CORRELATIONS.tabulate(correlations, **columns))
    return shown


MEASURE = Measure(
    name="factorization",
    title="A sentence's probability in two orders",
    help="Compare log p(A) + log p(B|A) with log p(B) + log p(A|B) on the same sentences.",
    settings=FactorizationSettings,
    tables={"factorization": "factorization/1"},
    inputs=ALL_TESTS,
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    method=__doc__,
    stages=[Stage(sizes={"quick": {"limit": 3}, "laptop": {"limit": 14}, "full": {"limit": None}})],
)

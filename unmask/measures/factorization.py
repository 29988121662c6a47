"""factorization: does a model give a sentence the same probability in both orders?

A sentence is a prompt A and its completion B, so that log p(A) + log p(B|A) and log p(B) +
log p(A|B) are the same number for a consistent model (Kitouni et al. 2024, arXiv 2406.05183). A
masked model keeps the sentence as it stands and changes the order of writing. A causal model reads
in one order only, so for the second sum the parts change places; both stand after an end token.

Where A and B belong together, B tells as much about A as A about B: log p(B|A) - log p(B) and
log p(A|B) - log p(A) are both the pointwise mutual information.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unmask.base.config import option
from unmask.blocks.blocks import Column, Finding, Fold, Section, Text, Verdict
from unmask.blocks.labels import KINDS, count, name_split
from unmask.evaluation.statistics import Interval
from unmask.measures.inputs import ModelInputs, ModelsAndData, Questions, read_questions
from unmask.measures.measure import Job, Measure, Stage, Summary, Tables, judge_interval
from unmask.measures.result import Result
from unmask.measures.settings import QuestionSettings
from unmask.measures.summaries import distinct, estimate_means, select, tabulate_means, to_interval

if TYPE_CHECKING:
    from unmask.net.model import Model

METRICS = {
    "joint_forward": Column("log p(A) + log p(B|A), per token"),
    "joint_backward": Column("log p(B) + log p(A|B), per token"),
    "gap": Column("distance, per token"),
    "information_forward": Column("log p(B|A) − log p(B)"),
    "information_backward": Column("log p(A|B) − log p(A)"),
}


@dataclass(frozen=True, kw_only=True)
class FactorizationSettings(QuestionSettings):
    """Which sentences are scored."""

    limit: int | None = option(30, "Sentences of each split.", least=1)


def _read(data: Any, settings: Any, families: Any) -> tuple[Questions, str, str]:
    """The tests, and the facts trained both ways where the corpus has them."""
    from dataclasses import replace

    questions, source, digest = read_questions(data, settings, families)
    two_way = [split for split in ("both_d2p", "both_p2d") if split in questions.corpus.splits]
    if settings.splits or not two_way:
        return questions, source, digest
    asked = replace(settings, splits=(*questions.names, *two_way))
    return read_questions(questions.corpus, asked, families)


def list_jobs(inputs: ModelInputs, settings: FactorizationSettings) -> Iterator[Job]:
    """One part for each checkpoint."""
    for member in inputs.members():

        def work(member=member) -> Mapping[str, Any]:
            rows = score_both_orders(inputs.load(member), inputs.data, settings.length)
            return {"factorization": [member.columns | row for row in rows]}

        yield Job(member.key, work)


def score_both_orders(
    model: "Model", questions: Questions, length: int | None
) -> Iterator[dict[str, Any]]:
    """A row for each sentence: its parts' log-probabilities in both orders, in nats."""
    from unmask.evaluation.chain import score_orders
    from unmask.evaluation.questions import (
        check_scored,
        choose_length,
        encode_facts,
        require_tokenizer,
    )

    check_scored(model)
    facts = questions.facts()
    encoded = encode_facts([fact for _, fact in facts], require_tokenizer(model))
    canvas = choose_length(model, list(encoded.values()), length)
    cut = [(encoded[fact].ids, encoded[fact].prompt_length) for _, fact in facts]
    forward, backward = score_orders(model, cut, canvas)
    for (split, fact), (ids, at), there, back in zip(facts, cut, forward, backward, strict=True):
        num_b = len(ids) - at
        a, b_given_a = sum(there[:at]), sum(there[at:])
        b, a_given_b = sum(back[:num_b]), sum(back[num_b:])
        yield {
            "split": split,
            "direction": fact.direction,
            "trained": fact.trained,
            "fact": fact.fact_id,
            "phrasing": fact.phrasing,
            "text": fact.text,
            "tokens": len(ids),
            "logp_a": a,
            "logp_b_given_a": b_given_a,
            "logp_b": b,
            "logp_a_given_b": a_given_b,
            "joint_forward": (a + b_given_a) / len(ids),
            "joint_backward": (b + a_given_b) / len(ids),
            "gap": abs(a + b_given_a - b - a_given_b) / len(ids),
            "information_forward": b_given_a - b,
            "information_backward": a_given_b - a,
        }


def summarise(tables: Tables, settings: FactorizationSettings) -> Summary:
    """Means by model and split, and forward minus backward over all sentences of a model."""
    rows = [
        row | {"difference": row["joint_forward"] - row["joint_backward"]}
        for row in tables["factorization"].to_pylist()
    ]
    return {
        "means": estimate_means(rows, ("model", "kind", "split"), list(METRICS)),
        "differences": estimate_means(rows, ("model", "kind"), ("difference", "gap")),
    }


def judge(summary: Summary, settings: FactorizationSettings) -> Sequence[Verdict]:
    """Whether a model finds sentences likelier in one order than in the other."""
    return [
        judge_interval(row["model"], to_interval(row), row["facts"])
        for row in select(summary["differences"], metric="difference")
    ]


def describe(result: Result) -> Section:
    """A sentence for each model, and the table."""
    means, differences = result.summary["means"], result.summary["differences"]
    findings = []
    for model, kind in distinct(differences, "model", "kind"):
        gap = to_interval(select(differences, model=model, metric="gap")[0])
        findings.append(_state(model, kind, gap, result.verdicts[model]))
    splits = {split: name_split(split) for split in distinct(means, "split")}
    table = tabulate_means(
        "means",
        "Sentences of a prompt A and its completion B, nats",
        means,
        {"model": Column("model"), "split": Column("asked")},
        METRICS,
        {"split": splits},
    )
    method = Text(
        "For a consistent model both sums are one number. The differences of the last two columns "
        "are equal then, too: what A and B tell about each other."
    )
    return Section("factorization", MEASURE.title, [*findings, table, Fold("Method", [method])])


def _state(model: str, kind: str, gap: Interval, verdict: Verdict) -> Finding:
    size = f"{gap.mean:.2f} nats per token [{gap.low:.2f}, {gap.high:.2f}]"
    side = {
        "above": "and the order in which the prompt comes first is the likelier one",
        "below": "and the order in which the answer comes first is the likelier one",
        "unsettled": "with no order the likelier one on average",
        "too few": f"over {count(verdict.facts, 'fact')}",
        "not measured": "",
    }[verdict.outcome]
    text = (
        f"{model} ({KINDS[kind]}) gives a sentence two probabilities that lie {size} apart, {side}."
    )
    return Finding(text, verdict)


MEASURE = Measure(
    name="factorization",
    title="A sentence's probability in two orders",
    help="Compare log p(A) + log p(B|A) with log p(B) + log p(A|B) on the same sentences.",
    settings=FactorizationSettings,
    tables={"factorization": "factorization/1"},
    inputs=ModelsAndData(
        _read,
        "A corpus folder (this project's or Berglund's) or a file of facts; by default the corpus "
        "that a shipped model was trained on.",
    ),
    jobs=list_jobs,
    summarise=summarise,
    judge=judge,
    describe=describe,
    stages=[
        Stage(
            sizes={
                "quick": {"limit": 3},
                "laptop": {"limit": 14},
                "full": {"limit": None},
            }
        )
    ],
)

"""knowns: single-token completions of plain knowledge prompts, asked forwards and in reverse."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.blocks.blocks import Column, Finding, Fold, Row, Section, Table, Text, Verdict
from unmask.blocks.labels import KINDS, count
from unmask.evaluation.statistics import cluster, estimate_difference
from unmask.measures.inputs import Member, ModelInputs, ModelsAndData
from unmask.measures.measure import Job, Measure, Rows, Summary, Tables, judge_interval
from unmask.measures.result import Result
from unmask.measures.settings import MachineSettings
from unmask.measures.summaries import (
    distinct,
    estimate_means,
    say_points,
    say_share,
    select,
    tabulate_means,
    to_interval,
)

if TYPE_CHECKING:
    from unmask.evaluation.knowns import Known

METRICS = {
    "hit": Column("hit, %", 1, is_percent=True),
    "entropy": Column("entropy, nats"),
    "logp": Column("log p of the right token"),
    "rank": Column("rank", 1),
}


@dataclass(frozen=True, kw_only=True)
class KnownsSettings(MachineSettings):
    """Which facts are asked."""

    limit: int | None = option(None, "The first so many facts; all by default.", least=1)
    examples: int = option(
        3, "Completions to show of each model and way.", least=0, is_identity=False
    )


def _read(data: Any, settings: KnownsSettings, families: Any) -> "tuple[list[Known], str, str]":
    from unmask.evaluation.knowns import read_knowns
    from unmask.evaluation.questions import digest

    if not isinstance(data, str | Path):
        raise UserError(
            f"the data are a {type(data).__name__}: expected the path of a JSON list of facts."
        )
    knowns = read_knowns(data, settings.limit)
    return knowns, str(data), digest(knowns)


def list_jobs(inputs: ModelInputs, settings: KnownsSettings) -> Iterator[Job]:
    """One part for each checkpoint."""
    from unmask.evaluation.knowns import ask_knowns

    def work(member: Member) -> Mapping[str, Rows]:
        rows = ask_knowns(inputs.load(member), inputs.data)
        return {"knowns": [member.columns | row for row in rows]}

    for member in inputs.members():
        yield Job(member.key, lambda member=member: work(member))


def summarise(tables: Tables, settings: KnownsSettings) -> Summary:
    """Means by model and way, hits forwards minus in reverse, and the first completions."""
    rows = tables["knowns"].to_pylist()
    examples = []
    for model, way in distinct(rows, "model", "way"):
        examples += select(rows, model=model, way=way, seed=0)[: settings.examples]
    return {
        "means": estimate_means(rows, ("model", "kind", "way"), list(METRICS), shares=("hit",)),
        "differences": list(_compare_ways(rows)),
        "examples": examples,
    }


def _compare_ways(rows: Rows) -> Iterator[dict[str, Any]]:
    for model, kind in distinct(rows, "model", "kind"):
        forward, reverse = (
            cluster(*([row[name] for row in select(rows, model=model, way=way)]
                      for name in ("hit", "fact", "seed")))
            for way in ("forward", "reverse")
        )  # fmt: skip
        difference = estimate_difference(forward, reverse, is_share=True)
        yield {"model": model, "kind": kind} | vars(difference) | {"facts": forward.sums.shape[1]}


def judge(summary: Summary, settings: KnownsSettings) -> Sequence[Verdict]:
    """Whether a model completes facts more often forwards than in reverse."""
    return [
        judge_interval(row["model"], to_interval(row), row["facts"])
        for row in summary["differences"]
    ]


def describe(result: Result) -> Section:
    """A sentence for each model, the means, and some completions."""
    means = result.summary["means"]
    table = tabulate_means(
        "means",
        "First tokens of the answers",
        means,
        {"model": Column("model"), "way": Column("asked")},
        METRICS,
    )
    method = Text(
        "Only the first token of the answer counts: whether it is the likeliest, and how open the "
        "choice is (entropy). In reverse the sentence is quoted with a blank for its subject; a "
        "masked model is also asked in place, where the subject's tokens are masked. Several "
        "subjects can be right in reverse, so that its hit rate is a lower bound on knowledge."
    )
    blocks = [*_state(result, means), table, *_show(result.summary["examples"])]
    return Section("knowns", result.measure.title, [*blocks, Fold("Method", [method])])


def _state(result: Result, means: Rows) -> Iterator[Finding]:
    for row in result.summary["differences"]:
        verdict = result.verdicts[row["model"]]
        forward, reverse = (
            say_share(to_interval(select(means, model=row["model"], way=way, metric="hit")[0]))
            for way in ("forward", "reverse")
        )
        ending = {
            "above": "more forwards",
            "below": "more in reverse",
            "too few": f"{count(verdict.facts, 'fact')} are too few to compare the two",
        }.get(verdict.outcome, f"a difference of {say_points(to_interval(row))} could be chance")
        yield Finding(
            f"{row['model']} ({KINDS[row['kind']]}) has the right first token for {forward} of the "
            f"facts forwards and {reverse} in reverse: {ending}.",
            verdict,
        )


def _show(examples: Rows) -> Iterator[Table]:
    if examples:
        names = ("model", "asked", "prompt", "right", "likeliest tokens")
        columns = [*map(Column, names), Column("entropy, nats")]
        rows = [
            Row([row["model"], row["way"], row["prompt"], row["answer"], " · ".join(row["top"]),
                 row["entropy"]])
            for row in examples
        ]  # fmt: skip
        yield Table("examples", "The first completions", columns, rows)


MEASURE = Measure(
    name="knowns",
    title="Plain knowledge, one token at a time",
    help="Hit rate and entropy of the first token asked for, forwards and in reverse.",
    settings=KnownsSettings,
    tables={"knowns": "knowns/1"},
    inputs=ModelsAndData(
        _read,
        "A JSON list of facts with subject, attribute and prompt, such as knowns.json.",
        is_required=True,
    ),
    jobs=list_jobs,
    summarise=summarise,
    judge=judge,
    describe=describe,
)

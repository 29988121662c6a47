"""knowns: single-token completions of plain knowledge prompts, asked forwards and in reverse.

Only the first token of the answer counts: whether it is the likeliest, and how open the choice is
(entropy). In reverse the sentence is quoted with a blank for its subject; a masked model is also
asked in place, where the subject's tokens are masked. Several subjects can be right in reverse, so
that its hit rate is a lower bound on knowledge.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.blocks import blocks, tidy
from unmask.blocks.blocks import Column
from unmask.measures.inputs import ModelInputs, ModelsAndData
from unmask.measures.measure import Job, Measure, Rows, Summary, Tables
from unmask.measures.result import Result
from unmask.measures.settings import MachineSettings
from unmask.results.comparison import KIND, MODEL, Comparison, Factor, Quantity
from unmask.results.summaries import estimate_means

if TYPE_CHECKING:
    from unmask.evaluation.knowns import Known

COMPARISON = Comparison(
    metrics={
        "hit": Quantity("right first token", "%"),
        "entropy": Quantity("entropy", "nats", least=0.0),
        "logp": Quantity("log p of the right token"),
        "rank": Quantity("rank", digits=1, least=1.0),
    },
    groups=(MODEL, KIND),
    variant=Factor("way", "asked"),
    against=[("forward", "reverse")],
    compared=("hit",),
    title="Plain knowledge",
    means="First tokens of the answers",
)


@dataclass(frozen=True, kw_only=True)
class KnownsSettings(MachineSettings):
    """Which facts are asked."""

    limit: int | None = option(None, "The first so many facts; all by default.", least=1)
    examples: int = option(
        3, "Completions to show of each model and way.", least=0, is_identity=False
    )


def _read(data: Any, settings: KnownsSettings, families: Any) -> "tuple[list[Known], str, Any]":
    from unmask.evaluation.knowns import read_knowns

    if not isinstance(data, str | Path):
        raise UserError(
            f"the data are a {type(data).__name__}: expected the path of a JSON list of facts."
        )
    knowns = read_knowns(data, settings.limit)
    return knowns, str(data), knowns


def list_jobs(inputs: ModelInputs, settings: KnownsSettings) -> Iterator[Job]:
    """One part for each checkpoint."""
    from unmask.evaluation.knowns import ask_knowns

    return inputs.ask_each("knowns", lambda model: ask_knowns(model, inputs.data))


def summarise(tables: Tables, settings: KnownsSettings) -> Summary:
    """Means by model and way, hits forwards minus in reverse, and the first completions."""
    rows = tables["knowns"].to_pylist()
    ways = tidy.group_by(tidy.select(rows, seed=0), "model", "way").values()
    return {
        **COMPARISON.summarise(rows),
        "outcomes": list(_compare_outcomes(rows)),
        "examples": [row for same in ways for row in same[: settings.examples]],
    }


def _compare_outcomes(rows: Rows) -> Iterator[dict[str, Any]]:
    """The entropy of right and of wrong first tokens; training seeds are pooled."""
    pooled = [{**row, "seed": 0, "answered": "right" if row["hit"] else "wrong"} for row in rows]
    for row in estimate_means(pooled, ("model", "kind", "way", "answered"), ("entropy",)):
        yield row | {"metric": row["answered"]}


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """A sentence for each model, the means, and some completions."""
    summary = result.summary
    keys: dict[str, tidy.Get] = {"model": "model", "asked": "way"}
    outcomes = tidy.tabulate_means(
        "outcomes",
        "Entropy where the likeliest token is right, and where it is wrong, nats",
        summary["outcomes"],
        keys,
        {"right": Column("right"), "wrong": Column("wrong")},
    )
    completions = tidy.tabulate(
        "examples",
        "The first completions",
        summary["examples"],
        {
            **keys,
            "prompt": "prompt",
            "right": "answer",
            "likeliest tokens": lambda row: " · ".join(row["top"]),
            "entropy, nats": "entropy",
        },
    )
    described = [*COMPARISON.state(summary), COMPARISON.tabulate(summary["means"]), outcomes]
    return [*described, *([completions] if summary["examples"] else [])]


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
    describe=describe,
    method=__doc__,
)

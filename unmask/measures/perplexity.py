"""perplexity: what a text costs a model, exact for causal models, a bound for masked ones."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from typing import Any

import numpy as np

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.blocks.blocks import Block, Column, Finding, Fold, Row, Section, Table, Text, Verdict
from unmask.blocks.labels import KINDS, count
from unmask.evaluation.statistics import Clusters, estimate_difference
from unmask.measures.inputs import Member, ModelInputs, ModelsAndData
from unmask.measures.measure import Job, Measure, Rows, Summary, Tables, judge_interval
from unmask.measures.result import Result
from unmask.measures.settings import MachineSettings
from unmask.measures.summaries import distinct, select, to_interval


@dataclass(frozen=True, kw_only=True)
class PerplexitySettings(MachineSettings):
    """How a text longer than the context is cut, and how often its noise is drawn."""

    limit: int | None = option(None, "Characters to score; all by default.", least=1)
    context: int | None = option(None, "Tokens of a window; the model's by default.", least=2)
    stride: int | None = option(
        None, "Tokens that windows move on by; half a window by default.", least=1
    )
    repeats: int = option(8, "Independent draws of the noise, for the error.", least=1)
    seed: int = option(0, "Seed of the noise.", least=0)


def _read(data: Any, settings: PerplexitySettings, families: Any) -> tuple[list[str], str, str]:
    """The documents of a file, or of several from Python."""
    from unmask.data.text import read_documents
    from unmask.evaluation.perplexity import cut_documents
    from unmask.evaluation.questions import digest

    paths = list(data) if isinstance(data, list | tuple) else [data]
    documents = cut_documents(list(read_documents(paths)), settings.limit)
    return documents, ", ".join(map(str, paths)), digest(documents)


def list_jobs(inputs: ModelInputs, settings: PerplexitySettings) -> Iterator[Job]:
    """One part for each checkpoint."""
    from unmask.evaluation.perplexity import score_documents

    def work(member: Member) -> Mapping[str, Rows]:
        costs = score_documents(
            inputs.load(member),
            inputs.data,
            settings.context,
            settings.stride,
            settings.repeats,
            settings.seed,
        )
        rows = [
            {
                "document": number,
                "is_bound": member.family.kind != "causal",
                "tokens": cost.tokens,
                "characters": len(text),
                "bytes": len(text.encode()),
                "nll": cost.nll,
                "error": cost.error,
            }
            for number, (text, cost) in enumerate(zip(inputs.data, costs, strict=True))
        ]
        return {"perplexity": [member.columns | row for row in rows]}

    for member in inputs.members():
        yield Job(member.key, lambda member=member: work(member))


def summarise(tables: Tables, settings: PerplexitySettings) -> Summary:
    """Costs of the whole text by model and training seed, and differences between models."""
    rows = tables["perplexity"].to_pylist()
    return {"models": list(_add_documents(rows)), "differences": list(_compare(rows))}


def _add_documents(rows: Rows) -> Iterator[dict[str, Any]]:
    from unmask.objectives.likelihood import exponentiate

    for model, kind, seed in distinct(rows, "model", "kind", "seed"):
        documents = select(rows, model=model, seed=seed)
        tokens, characters, num_bytes, nll = (
            sum(row[name] for row in documents) for name in ("tokens", "characters", "bytes", "nll")
        )
        error = reduce(math.hypot, (row["error"] for row in documents))
        perplexity = exponentiate(nll / tokens)
        yield {
            "model": model,
            "kind": kind,
            "seed": seed,
            "is_bound": documents[0]["is_bound"],
            "documents": len(documents),
            "tokens": tokens,
            "characters": characters,
            "bytes": num_bytes,
            "nll": nll,
            "error": error,
            "per_token": nll / tokens,
            "per_token_error": error / tokens,
            "perplexity": perplexity,
            "perplexity_error": perplexity * error / tokens,
            "bits_per_character": nll / math.log(2) / characters,
            "bits_per_byte": nll / math.log(2) / num_bytes,
            "bits_per_byte_error": error / math.log(2) / num_bytes,
        }


def _compare(rows: Rows) -> Iterator[dict[str, Any]]:
    """Bits per byte of one model minus another's, paired by document."""
    for one, other in combinations(distinct(rows, "model"), 2):
        difference = estimate_difference(_cluster(rows, one), _cluster(rows, other))
        documents = len(distinct(select(rows, model=one), "document"))
        yield {"one": one, "other": other} | vars(difference) | {"documents": documents}


def _cluster(rows: Rows, model: str) -> Clusters:
    """Bits and bytes by training seed and document: their ratio is the mean."""
    own = select(rows, model=model)
    shape = len(distinct(own, "seed")), -1
    bits = np.array([row["nll"] / math.log(2) for row in own]).reshape(shape)
    return Clusters(bits, np.array([float(row["bytes"]) for row in own]).reshape(shape))


def judge(summary: Summary, settings: PerplexitySettings) -> Sequence[Verdict]:
    """Whether one model's cost, or its bound, is lower than another's."""
    return [
        judge_interval(f"{row['one']} − {row['other']}", to_interval(row), row["documents"])
        for row in summary["differences"]
    ]


def describe(result: Result) -> Section:
    """What the text costs each model, and the table."""
    models = result.summary["models"]
    blocks: list[Block] = [*_compare_in_words(result, models)]
    if not blocks:
        blocks.append(Text(f"The text costs {_say_cost(models[0])}."))
    method = Text(
        "Documents stand after an end token; one longer than the context is read in overlapping "
        "windows. A masked model's cost is an upper bound, with the standard error of its "
        "estimate over independent draws of the noise: the true likelihood may be higher, so that "
        "the number beside an exact one is unfavourable to it. Compare models of different "
        "tokenizers by bits per byte. Differences are paired by document."
    )
    return Section(
        "perplexity", result.measure.title, [*blocks, _tabulate(models), Fold("Method", [method])]
    )


def _say_cost(row: Mapping[str, Any]) -> str:
    """A model's bits per byte, such as "mdm (diffusion) at most 1.20 ± 0.01 bits per byte"."""
    bound = "at most " if row["is_bound"] else ""
    error = f" ± {row['bits_per_byte_error']:.2f}" if row["is_bound"] else ""
    cost = f"{row['bits_per_byte']:.2f}{error} bits per byte"
    return f"{row['model']} ({KINDS[row['kind']]}) {bound}{cost}"


def _compare_in_words(result: Result, models: Rows) -> Iterator[Finding]:
    """The first model against each of the others."""
    first = models[0]
    for difference in select(result.summary["differences"], one=first["model"]):
        verdict = result.verdicts[f"{first['model']} − {difference['other']}"]
        other = select(models, model=difference["other"])[0]
        size = f"[{difference['low']:.2f}, {difference['high']:.2f}]".replace("-", "−")
        ending = {
            "too few": f"{count(verdict.facts, 'document')} cannot say whether another text would "
            "give the same difference.",
            "unsettled": f"The difference may be 0 for other documents of the kind {size}.",
        }.get(verdict.outcome, f"The difference is not one of chance between documents {size}.")
        text = f"The text costs {_say_cost(first)}, {_say_cost(other)}. {ending}"
        yield Finding(text, verdict)


def _tabulate(models: Rows) -> Table:
    names = ("tokens", "perplexity", "per_token", "bits_per_byte", "bits_per_byte_error",
             "bits_per_character")  # fmt: skip
    rows = [
        Row(
            [
                row["model"] + (f", seed {row['seed']}" if row["seed"] else ""),
                "upper bound" if row["is_bound"] else "exact",
                *(row[name] for name in names),
            ]
        )
        for row in models
    ]
    columns = [
        Column("model"),
        Column("likelihood"),
        Column("tokens"),
        Column("perplexity", is_short=True),
        Column("nats per token", 4),
        Column("bits per byte", 4),
        Column("± standard error", 4),
        Column("bits per character", 4),
    ]
    return Table("models", "What the text costs", columns, rows)


def pool(results: Sequence[Result]) -> Tables:
    """The rows of all runs, which must have scored the same documents: they are paired."""
    from unmask.measures.runner import pool_tables

    if len({record.inputs["asked"] for result in results for record in result.records}) > 1:
        raise UserError(
            "the runs scored different texts: costs of the same text can be compared; draw the "
            "runs one by one."
        )
    return pool_tables(results)


MEASURE = Measure(
    name="perplexity",
    title="What a text costs",
    help="Perplexity with its error: a bound for masked models, exact for causal ones.",
    settings=PerplexitySettings,
    tables={"perplexity": "perplexity/1"},
    inputs=ModelsAndData(
        _read,
        "A text file: .txt, .md or .jsonl (lines with a `text`), also packed as .xz.",
        is_required=True,
    ),
    jobs=list_jobs,
    summarise=summarise,
    judge=judge,
    describe=describe,
    pool=pool,
)

"""perplexity: what a text costs a model, exact for causal models, a bound for diffusion models.

Documents stand after an end token; one longer than the context is read in overlapping windows. A
diffusion model's cost is an upper bound, with the standard error of its estimate over independent
draws of the noise: the true likelihood may be higher, so that the number beside an exact one is
unfavourable to it. A masked model's cost of writing the text from left to right, one token in a
call (method chain), is exact: beside a causal model's it compares both in one order. Compare
models of different tokenizers by bits per byte. Differences are paired by document.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.base.runs import DIGESTS
from unmask.blocks import blocks, labels, tidy
from unmask.blocks.blocks import Column
from unmask.evaluation.statistics import Clusters, estimate_difference
from unmask.measures.inputs import ModelInputs, ModelsAndData
from unmask.measures.measure import Job, Measure, Rows, Summary, Tables, judge_interval
from unmask.measures.result import Result
from unmask.measures.settings import MachineSettings

if TYPE_CHECKING:
    from unmask.net.model import Model


@dataclass(frozen=True, kw_only=True)
class PerplexitySettings(MachineSettings):
    """How a text longer than the context is cut, and how often its noise is drawn."""

    limit: int | None = option(None, "Characters to score; all by default.", least=1)
    context: int | None = option(None, "Tokens of a window; the model's by default.", least=2)
    stride: int | None = option(
        None, "Tokens that windows move on by; half a window by default.", least=1
    )
    repeats: int = option(
        8, "Independent draws of the noise, for the error.", least=2, most=100_000
    )
    seed: int = option(0, "Seed of the noise.", least=0)
    method: Literal["bound", "chain"] = option(
        "bound",
        "Of diffusion models: bound, or chain, the exact cost of writing the text from left to "
        "right, which masked ones have.",
    )


def _read(data: Any, settings: PerplexitySettings, families: Any) -> tuple[list[str], str, str]:
    """The documents of a file, or of several from Python."""
    from unmask.base.identity import digest_values
    from unmask.data.text import read_documents
    from unmask.evaluation.perplexity import cut_documents

    paths = list(data) if isinstance(data, list | tuple) else [data]
    documents = cut_documents(list(read_documents(paths)), settings.limit)
    return documents, ", ".join(map(str, paths)), digest_values(documents)


def list_jobs(inputs: ModelInputs, settings: PerplexitySettings) -> Iterator[Job]:
    """One part for each checkpoint."""
    from unmask.evaluation.perplexity import check_method

    for family in inputs.families:
        check_method(family.paradigm, family.name, settings.method)
    return inputs.ask_each("perplexity", lambda model: score_texts(model, inputs.data, settings))


def score_texts(
    model: "Model", documents: Sequence[str], settings: PerplexitySettings
) -> Iterator[dict[str, Any]]:
    """A row for each document: its sizes, and its cost in nats with its standard error."""
    from unmask.evaluation.perplexity import score_documents

    costs = score_documents(
        model,
        documents,
        settings.context,
        settings.stride,
        settings.repeats,
        settings.seed,
        settings.method,
    )
    for number, (text, cost) in enumerate(zip(documents, costs, strict=True)):
        yield {
            "document": number,
            "is_bound": model.paradigm.is_bound and settings.method == "bound",
            "tokens": cost.tokens,
            "characters": len(text),
            "bytes": len(text.encode()),
            "nll": cost.nll,
            "error": cost.error,
        }


def summarise(tables: Tables, settings: PerplexitySettings) -> Summary:
    """Costs of the whole text by model and training seed, and differences between models."""
    rows = tables["perplexity"].to_pylist()
    return {"models": list(_add_documents(rows)), "differences": list(_compare(rows))}


def _add_documents(rows: Rows) -> Iterator[dict[str, Any]]:
    from unmask.objectives.likelihood import exponentiate

    for (model, kind, seed), documents in tidy.group_by(rows, "model", "kind", "seed").items():
        names = ("tokens", "characters", "bytes", "nll")
        sums = {name: sum(row[name] for row in documents) for name in names}
        error, bit = reduce(math.hypot, (row["error"] for row in documents)), math.log(2)
        per_token, per_token_error = sums["nll"] / sums["tokens"], error / sums["tokens"]
        perplexity = exponentiate(per_token)
        yield sums | {
            "model": model,
            "kind": kind,
            "seed": seed,
            "is_bound": documents[0]["is_bound"],
            "documents": len(documents),
            "error": error,
            "per_token": per_token,
            "per_token_error": per_token_error,
            "perplexity": perplexity,
            "perplexity_error": perplexity * per_token_error,
            "bits_per_character": sums["nll"] / bit / sums["characters"],
            "bits_per_byte": sums["nll"] / bit / sums["bytes"],
            "bits_per_byte_error": error / bit / sums["bytes"],
        }


def _compare(rows: Rows) -> Iterator[dict[str, Any]]:
    """Bits per byte of one model minus another's, paired by document."""
    models = {model: _cluster(own) for model, own in tidy.group_by(rows, "model").items()}
    for (one, ours), (other, theirs) in combinations(models.items(), 2):
        difference, documents = estimate_difference(ours, theirs), ours.sums.shape[1]
        yield {"one": one, "other": other} | vars(difference) | {"documents": documents}


def _cluster(rows: Rows) -> Clusters:
    """Bits and bytes by training seed and document: their ratio is the mean."""
    shape = len(tidy.distinct(rows, "seed")), -1
    bits = np.array([row["nll"] / math.log(2) for row in rows]).reshape(shape)
    return Clusters(bits, np.array([float(row["bytes"]) for row in rows]).reshape(shape))


def judge(summary: Summary, settings: PerplexitySettings) -> Iterable[blocks.Verdict]:
    """Whether one model's cost, or its bound, is lower than another's."""
    for row in summary["differences"]:
        claim = f"{row['one']} − {row['other']}"
        yield judge_interval(claim, tidy.to_interval(row), row["documents"], "documents")


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """What the text costs each model, and the table."""
    models = result.summary["models"]
    table = tidy.tabulate(
        "models",
        "What the text costs",
        models,
        {
            "model": lambda row: _name_member(row, models),
            "likelihood": _name_likelihood,
            "tokens": "tokens",
            Column("perplexity", is_short=True): "perplexity",
            Column("nats per token", 4): "per_token",
            Column("bits per byte", 4): "bits_per_byte",
            Column("± standard error", 4): "bits_per_byte_error",
            Column("bits per character", 4): "bits_per_character",
        },
    )
    alone = blocks.Text(f"The text costs {_say_cost(models, models[0]['model'])}.")
    return [*(list(_compare_in_words(result, models)) or [alone]), table]


def _name_likelihood(row: Mapping[str, Any]) -> str:
    if row["is_bound"]:
        return "upper bound"
    return "exact, left to right" if _is_chain(row) else "exact"


def _is_chain(row: Mapping[str, Any]) -> bool:
    """Whether the cost is that of one order of writing, under a model that has others."""
    from unmask.net.paradigm import get_paradigm

    return get_paradigm(row["kind"]).is_bound and not row["is_bound"]


def _name_member(row: Mapping[str, Any], models: Rows) -> str:
    """A model's name, with its training seed where it has several."""
    has_several = len(tidy.select(models, model=row["model"])) > 1
    return f"{row['model']}, seed {row['seed']}" if has_several else row["model"]


def _say_cost(models: Rows, name: str) -> str:
    """A model's cost, such as "mdm (diffusion) at most 1.20 ± 0.01 bits per byte": the mean over
    its training seeds, as in the differences."""
    own = tidy.select(models, model=name)
    row, number = own[0], len(own)
    bits = sum(each["bits_per_byte"] for each in own) / number
    error = math.hypot(*(each["bits_per_byte_error"] for each in own)) / number
    bound = "at most " if row["is_bound"] else ""
    margin = f" ± {error:.2f}" if row["is_bound"] else ""
    order = " from left to right" if _is_chain(row) else ""
    seeds = f", mean of {number} training seeds" if number > 1 else ""
    cost = f"{bound}{bits:.2f}{margin} bits per byte{order}"
    return f"{name} ({labels.KINDS[row['kind']]}{seeds}) {cost}"


def _compare_in_words(result: Result, models: Rows) -> Iterator[blocks.Finding]:
    """The first model against each of the others."""
    first = models[0]["model"]
    for row in tidy.select(result.summary["differences"], one=first):
        verdict = result.verdicts[f"{first} − {row['other']}"]
        size = tidy.say(row, has_sign=True)
        ours, theirs = (_say_cost(models, name) for name in (first, row["other"]))
        text = (
            f"The text costs {ours}, {theirs}. The difference is {size} "
            f"({labels.count(verdict.facts, 'document')})."
        )
        yield blocks.Finding(text, verdict)


def pool(results: Sequence[Result]) -> Tables:
    """The rows of all runs, which must have scored the same documents: they are paired."""
    from unmask.measures.runner import pool_tables

    inputs = [record.inputs for result in results for record in result.records]
    if len({str(each[DIGESTS].get("the data")) for each in inputs}) > 1:
        raise UserError(
            "the runs scored different texts: costs of the same text can be compared; draw the "
            "runs one by one."
        )
    return pool_tables(results)


MEASURE = Measure(
    name="perplexity",
    title="What a text costs",
    help="Perplexity with its error: a bound for diffusion models, exact for causal ones.",
    settings=PerplexitySettings,
    tables={"perplexity": "perplexity/1"},
    inputs=ModelsAndData(
        _read,
        "A text file: .txt, .md or .jsonl (lines with a `text`), also packed as .xz or .zst.",
        is_required=True,
    ),
    jobs=list_jobs,
    summarise=summarise,
    judge=judge,
    describe=describe,
    method=__doc__,
    pool=pool,
)

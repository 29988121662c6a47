"""perplexity: what a text costs a model, exact for causal models, a bound for diffusion models.

Documents stand after an end token; one longer than the context is read in overlapping windows. A
diffusion model's cost is an upper bound, with the standard error of its estimate over independent
draws of the noise: the true likelihood may be higher, so that the number beside an exact one is
unfavourable to it. A masked model's cost of writing the text from left to right, one token in a
call (method chain), is exact: beside a causal model's it compares both in one order. Compare
models of different tokenizers by bits per byte. Differences are paired by document.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.blocks import blocks, labels, tidy
from unmask.blocks.blocks import Column
from unmask.measures.inputs import ModelInputs, ModelsAndData
from unmask.measures.measure import Job, Measure, Rows, Summary, Tables
from unmask.measures.result import Result, list_differences
from unmask.measures.settings import MachineSettings
from unmask.measures.texts import OWN
from unmask.results.summaries import add_outcome, cluster_ratio, subtract_clusters

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


def _read(data: Any, settings: PerplexitySettings, families: Any) -> tuple[list[str], str, Any]:
    """The documents of a file, or of several from Python."""
    from unmask.evaluation.perplexity import cut_documents
    from unmask.measures.texts import find_texts

    documents, source = find_texts(data, families)
    documents = cut_documents(documents, settings.limit)
    return documents, source, documents


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

    chosen = settings.context, settings.stride, settings.repeats, settings.seed, settings.method
    costs = score_documents(model, documents, *chosen)
    is_bound = model.paradigm.is_bound and settings.method == "bound"
    for number, (text, cost) in enumerate(zip(documents, costs, strict=True)):
        sizes = {"tokens": cost.tokens, "characters": len(text), "bytes": len(text.encode())}
        row = {"document": number, "is_bound": is_bound} | sizes
        yield row | {"nll": cost.nll, "error": cost.error}


def summarise(tables: Tables, settings: PerplexitySettings) -> Summary:
    """Costs of the whole text by model and training seed, and differences between models."""
    rows = tables["perplexity"].to_pylist()
    return {"models": list(_add_documents(rows)), "differences": list(_compare(rows))}


def _add_documents(rows: Rows) -> Iterator[dict[str, Any]]:
    from unmask.objectives.likelihood import exponentiate

    for key, documents in tidy.group_by(rows, "model", "kind", "seed").items():
        names = ("tokens", "characters", "bytes", "nll")
        sums = {name: sum(row[name] for row in documents) for name in names}
        error, bit = reduce(math.hypot, (row["error"] for row in documents)), math.log(2)
        yield dict(zip(("model", "kind", "seed"), key, strict=True)) | {
            **sums,
            "documents": len(documents),
            "is_bound": documents[0]["is_bound"],
            "error": error,
            "per_token": sums["nll"] / sums["tokens"],
            "perplexity": exponentiate(sums["nll"] / sums["tokens"]),
            "bits_per_character": sums["nll"] / bit / sums["characters"],
            "bits_per_byte": sums["nll"] / bit / sums["bytes"],
            "bits_per_byte_error": error / bit / sums["bytes"],
        }


def _compare(rows: Rows) -> Iterator[dict[str, Any]]:
    """Bits per byte of one model minus another's, paired by document."""
    bits = [{**row, "fact": row["document"], "bits": row["nll"] / math.log(2)} for row in rows]
    models = tidy.group_by(bits, "model")
    for one, other in combinations(models, 2):
        sides = (cluster_ratio(models[model], "bits", "bytes") for model in (one, other))
        gap = subtract_clusters(*sides, is_share=False)
        yield {"one": one, "other": other, "documents": gap["facts"]} | add_outcome(gap)


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """What the text costs each model, and the table."""
    models = result.summary["models"]
    table = tidy.tabulate(
        "models",
        "What the text costs",
        models,
        {
            "model": "model",
            "training seed": "seed",
            "likelihood": _name_likelihood,
            "tokens": "tokens",
            Column("perplexity", is_short=True): "perplexity",
            Column("nats per token", 4): "per_token",
            Column("bits per byte", 4): "bits_per_byte",
            Column("± standard error", 4): "bits_per_byte_error",
            Column("bits per character", 4): "bits_per_character",
        },
    )
    return [*_state(models, result.summary["differences"]), table]


def _name_likelihood(row: Mapping[str, Any]) -> str:
    from unmask.net.paradigm import get_paradigm

    if row["is_bound"]:
        return "upper bound"
    # The cost of one order of writing, under a model that has others.
    return "exact, left to right" if get_paradigm(row["kind"]).is_bound else "exact"


def _state(models: Rows, differences: Rows) -> Iterator[blocks.ReportBlock]:
    """The first model's cost beside each of the others', or alone."""
    costs = {model: _say_cost(own) for model, own in tidy.group_by(models, "model").items()}
    first = models[0]["model"]
    if len(costs) == 1:
        yield blocks.Text(f"Bits per byte: {costs[first]}.")
    for row in tidy.select(differences, one=first):
        yield blocks.Finding(
            f"Bits per byte: {costs[first]}; {costs[row['other']]}. The difference is "
            f"{tidy.say(row, has_sign=True)} ({labels.count(row['facts'], 'document')}).",
            row["outcome"],
            "documents",
        )


def _say_cost(own: Rows) -> str:
    """A model's cost, the mean over its training seeds as in the differences."""
    bits = fmean(row["bits_per_byte"] for row in own)
    error = math.hypot(*(row["bits_per_byte_error"] for row in own)) / len(own)
    spread = f" ± {error:.2f}" if own[0]["is_bound"] else ""
    seeds = f", mean of {len(own)} training seeds" if len(own) > 1 else ""
    return f"{own[0]['model']} {bits:.2f}{spread} ({_name_likelihood(own[0])}{seeds})"


def pool(results: Sequence[Result]) -> Tables:
    """The rows of all runs, which must have scored the same documents: they are paired."""
    from unmask.measures.runner import pool_tables

    if "the data" in list_differences(results):
        raise UserError("the runs scored different texts: expected one text; draw them one by one.")
    return pool_tables(results)


MEASURE = Measure(
    name="perplexity",
    title="What a text costs",
    help="Perplexity with its error: a bound for diffusion models, exact for causal ones.",
    settings=PerplexitySettings,
    tables={"perplexity": "perplexity/1"},
    inputs=ModelsAndData(
        _read,
        "A text file: .txt, .md or .jsonl (lines with a `text`), also packed as .xz or .zst; "
        f"{OWN}",
        is_text=True,
    ),
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    method=__doc__,
    pool=pool,
)

"""What the texts of each sampler come to: means, values of the whole set, what all of it took."""

import math
from collections.abc import Iterator
from typing import Any

from unmask.base.config import CheckedSettings
from unmask.blocks import tidy
from unmask.evaluation.statistics import Interval, estimate_mean
from unmask.measures.measure import Rows, Summary, Tables
from unmask.results.summaries import (
    GRAMS,
    cluster_ratio,
    cluster_rows,
    estimate_means,
    keep_shared,
)


def summarise(tables: Tables, settings: CheckedSettings) -> Summary:
    """Means by model, sampler and steps; values of all texts together; and what judging took."""
    rows = list(_average_calls(tables["quality"].to_pylist()))
    by = ("model", "kind", "sampler", "steps", "calls")
    metrics = ("per_token", "entropy")
    means = estimate_means(rows, by, metrics, least=dict.fromkeys(metrics, 0.0))
    return {"means": means, "texts": list(pool_rows(rows)), "judged": list(_add_judged(rows))}


def _average_calls(rows: Rows) -> Iterator[dict[str, Any]]:
    """The rows, each with the mean calls of its sampler.

    Batches, and models of other training seeds, stop earlier where all of their texts have ended:
    they are one sampler all the same.
    """
    for own in tidy.group_by(rows, "model", "sampler", "steps").values():
        calls = sum(row["calls"] for row in own) / len(own)
        calls = int(calls) if calls.is_integer() else round(calls, 1)
        yield from ({**row, "calls": calls} for row in own)


def _add_judged(rows: Rows) -> Iterator[dict[str, Any]]:
    """What records say of each model and the judge, and what judging its texts took."""
    for model, own in tidy.group_by(rows, "model").items():
        yield {
            "model": model,
            "is_apart": all(row["is_apart"] for row in own),
            "shares_text": any(row["shares_text"] for row in own),
            "texts": len(own),
            "flops": sum(row["flops"] for row in own),
            "judge_flops": sum(row["judge_flops"] for row in own),
        }


def pool_rows(rows: Rows) -> Iterator[dict[str, Any]]:
    """Over all texts together: generative perplexity, and shares of different n-grams."""
    names = ("model", "sampler", "steps", "calls")
    for key, own in tidy.group_by(rows, *names).items():
        row = dict(zip(names, key, strict=True))
        row["flops"] = sum(each["flops"] for each in own) / len(own)
        row |= _name_ends("perplexity", _find_perplexity(own))
        for size in GRAMS:
            row |= _name_ends(f"distinct_{size}", _find_distinct(own, size))
        yield row


def _name_ends(name: str, value: Interval) -> dict[str, float]:
    return {name: value.mean, f"{name}_low": value.low, f"{name}_high": value.high}


def _find_perplexity(rows: Rows) -> Interval:
    """exp of nats per token over all texts, and of the ends of that ratio's interval."""
    from unmask.objectives.likelihood import exponentiate

    tokens, shared = sum(row["judge_tokens"] for row in rows), keep_shared(rows)
    if not any(row["judge_tokens"] for row in shared):
        mean = exponentiate(sum(row["nll"] for row in rows) / tokens) if tokens else math.nan
        return Interval(mean, math.nan, math.nan)
    ratio = estimate_mean(cluster_ratio(shared, "nll", "judge_tokens"))
    return Interval(*(exponentiate(each) for each in (ratio.mean, ratio.low, ratio.high)))


def _find_distinct(rows: Rows, size: int) -> Interval:
    """The share of different n-grams among all, over the texts of a training seed; the mean.

    How far other texts would move it is how far they would move the mean of the pseudo-values that
    `find_pseudo_values` explains.
    """
    from unmask.evaluation.quality import find_distinct_share, find_pseudo_values

    seeds = list(tidy.group_by(rows, "seed").values())
    shares, valued = [], []
    for own in seeds:
        texts = [row["text"] for row in own]
        shares.append(find_distinct_share(texts, size))
        values = find_pseudo_values(texts, size) or [None] * len(own)
        valued += [{**row, "pseudo_value": each} for row, each in zip(own, values, strict=True)]
    known = [share for share in shares if share is not None]
    if not known:  # no text has so many words
        return Interval(math.nan, math.nan, math.nan)
    share, shared = sum(known) / len(known), keep_shared(valued)
    if not shared or any(row["pseudo_value"] is None for row in shared):
        return Interval(share, math.nan, math.nan)
    # Where nothing is repeated, all values are 1: as many texts as of a share never hit still may.
    estimate = estimate_mean(cluster_rows(shared, "pseudo_value"), is_share=share == 1)
    low, high = (share + end - estimate.mean for end in (estimate.low, estimate.high))
    return Interval(share, max(low, 0.0), min(high, 1.0))

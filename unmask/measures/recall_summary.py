"""The statistics of recall: means, differences between models, to the controls, between steps."""

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING, Any

from unmask.base.tables import find_row_groups, list_rows
from unmask.blocks.labels import is_causal, order_splits
from unmask.evaluation.statistics import Clusters
from unmask.measures.measure import Rows, Summary, Tables
from unmask.measures.recall_details import (
    CONTROL,
    FILE_CONTROL,
    MATCHES,
    OTHER_METRICS,
    is_asked,
)
from unmask.results.summaries import (
    cluster_rows,
    estimate_means,
    subtract_clusters,
    subtract_shares,
)

if TYPE_CHECKING:
    import pyarrow

METRICS = (*MATCHES, *OTHER_METRICS)
LEAST = {"rank": 1.0, "rank_chain": 1.0, "bleu": 0.0}
"""What no mean can be below."""
SHARES = (*MATCHES, *(name for name, column in OTHER_METRICS.items() if column.is_percent))
"""Metrics between 0 and 1."""
UNUSED = ("completion", "generation", "guidance", "length", "direction", "trained", "phrasing")
UNUSED += ("rivals", "tokens", "seconds")
"""Columns that no statistic is made of."""


def summarise(tables: Tables, settings: Any) -> Summary:
    """Means of all metrics; differences between models, to the controls, and between steps."""
    from unmask.evaluation.metrics import bleu_signature

    groups = Groups(tables["recall"])
    by = ("model", "kind", "split", "steps")
    cells = [estimate_means(rows, by, METRICS, SHARES, LEAST) for rows in groups.values()]
    summary: dict[str, Rows] = {
        "cells": [cell for group in cells for cell in group],
        "pairs": list(_compare_models(groups)),
        "controls": list(_subtract_controls(groups)),
        "gains": list(_compare_steps(groups)),
        "runs": list(_list_runs(groups)),
        "budgets": list(_count_tokens(groups)),
        "example": _choose_example(groups),
        "method": [{"bleu": bleu_signature()}],
    }
    left_out = tables.get("left_out")
    return summary if left_out is None else summary | {"left_out": left_out.to_pylist()}


class Groups(Mapping[tuple[str, str, int | None], Rows]):
    """Rows by model, split and steps, made when they are looked at: all at once would fill memory.

    A model that was asked with several strengths of guidance is one model for each of them. Rows
    have `beats_control` and `beats_file`: whether the true answer is likelier than the shuffled
    one, of the same phrasing or of the data's own file.
    """

    def __init__(self, table: "pyarrow.Table"):
        table = _name_strengths(table)
        self.table, self.places = table, find_row_groups(table, "model", "split", "steps")
        self.kinds = {key[0]: table["kind"][at[0]].as_py() for key, at in self.places.items()}

    def __getitem__(self, key: tuple[str, str, int | None]) -> Rows:
        rows = list_rows(self.table.take(self.places[key]), *UNUSED)
        for column, ending in (("beats_control", CONTROL), ("beats_file", FILE_CONTROL)):
            controls = self._find_logp((key[0], key[1] + ending, key[2]))
            for row in rows:
                logp = controls.get((row["seed"], row["prompt"]))
                row[column] = None if logp is None else row["logp"] > logp
        return rows

    def _find_logp(self, key: tuple[str, str, int | None]) -> dict[tuple[int, str], float]:
        """log p of a group's answers, by seed and prompt."""
        if key not in self.places:
            return {}
        names = ("seed", "prompt", "logp")
        columns = (self.table[name].take(self.places[key]).to_pylist() for name in names)
        return {(seed, prompt): logp for seed, prompt, logp in zip(*columns, strict=True)}

    def __iter__(self) -> Iterator[tuple[str, str, int | None]]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def _name_strengths(table: "pyarrow.Table") -> "pyarrow.Table":
    """The table with a model's name for each strength of guidance, where it has several."""
    import pyarrow

    if "guidance" not in table.column_names:
        return table
    models = [model for model, _ in find_row_groups(table, "model", "guidance")]
    several = {model for model in models if models.count(model) > 1}
    if not several:
        return table
    columns = (table[name].to_pylist() for name in ("model", "guidance"))
    named = [
        f"{model}, guidance {guidance:g}" if model in several else model
        for model, guidance in zip(*columns, strict=True)
    ]
    at = table.column_names.index("model")
    return table.set_column(at, "model", pyarrow.array(named, pyarrow.string()))


def _list_runs(groups: Groups) -> Iterator[dict[str, Any]]:
    """Recall of each training run by itself, where a model has several."""
    names = [name for name in ("seed", "opening") if name in groups.table.column_names]
    for (model, split, steps), at in groups.places.items():
        runs = find_row_groups(groups.table.select([*names, "hit"]).take(at), *names)
        if is_asked(split) and len(runs) > 1:
            hits = groups.table["hit"].take(at)
            for run, places in runs.items():
                share = sum(hits.take(places).to_pylist()) / len(places)
                named = {"model": model, "split": split, "steps": steps}
                yield named | dict(zip(names, run, strict=True)) | {"mean": share}


def _count_tokens(groups: Groups) -> Iterator[dict[str, Any]]:
    """How long the answers are in a model's own tokens, and how many steps that leaves a token."""
    if "tokens" not in groups.table.column_names:
        return
    for (model, split, steps), at in groups.places.items():
        if is_asked(split):
            tokens = sum(groups.table["tokens"].take(at).to_pylist()) / len(at)
            named = {"model": model, "split": split, "steps": steps, "tokens": tokens}
            yield named | {"per_token": None if steps is None else steps / tokens}


def _compare_models(groups: Groups) -> Iterator[dict[str, Any]]:
    """How much more often one model hits than another, at the step counts that both have.

    A causal model is the same at every step count. Diffusion models come first.
    """
    kinds = groups.kinds
    splits = dict.fromkeys(split for _, split, _ in groups if is_asked(split))
    models = sorted(kinds, key=lambda model: is_causal(kinds[model]))
    counts = sorted({steps for _, _, steps in groups if steps is not None})

    @cache  # each is compared with all others, and making its rows is what takes time
    def cluster_hits(model: str, split: str, steps: int | None) -> Clusters | None:
        rows = groups.get((model, split, None if is_causal(kinds[model]) else steps))
        return cluster_rows(rows, "hit") if rows else None

    for one, other in combinations(models, 2):
        has_steps = not (is_causal(kinds[one]) and is_causal(kinds[other]))
        for split in splits:
            for steps in counts if has_steps else [None]:
                ours, theirs = (cluster_hits(model, split, steps) for model in (one, other))
                if ours is not None and theirs is not None:
                    named = {"one": one, "other": other, "split": split, "steps": steps}
                    yield named | subtract_clusters(ours, theirs)


def _subtract_controls(groups: Groups) -> Iterator[dict[str, Any]]:
    """How much more often the texts hold the true answers than the shuffled ones."""
    for (model, split, steps), rows in groups.items():
        if controls := groups.get((model, split + CONTROL, steps)):
            kept = [row for row in rows if row["beats_control"] is not None]
            named = {"model": model, "split": split, "steps": steps}
            yield named | subtract_shares(kept, controls, "hit")


def _compare_steps(groups: Groups) -> Iterator[dict[str, Any]]:
    """How much more often a model hits with the most steps than with the fewest."""
    for model, split in dict.fromkeys(key[:2] for key in groups if is_asked(key[1])):
        steps = [key[2] or 0 for key in groups if key[:2] == (model, split)]
        few, many = min(steps), max(steps)
        if few < many:
            sides = (groups[model, split, at] for at in (many, few))
            named = {"model": model, "split": split, "few": few, "many": many}
            yield named | subtract_shares(*sides, "hit")


def _choose_example(groups: Groups) -> Rows:
    """What each model wrote after one prompt, one that diffusion recalls where there is one."""
    split = order_splits([split for _, split, _ in groups if is_asked(split)])[0]
    first_seed = min(groups.table["seed"].to_pylist())
    steps: dict[str, int | None] = {}
    for model, each, count in groups:
        if each == split and (steps.get(model) or 0) <= (count or 0):
            steps[model] = count
    scores: dict[str, int] = {}
    places: dict[str, dict[str, int]] = {}
    columns = ("model", "kind", "split", "steps", "prompt", "completion", "generation", "hit")
    for model, count in steps.items():
        at = groups.places[model, split, count]
        needed = groups.table.select(["seed", "prompt", "hit"]).take(at).to_pylist()
        for place, row in zip(at, needed, strict=True):
            same = places.setdefault(row["prompt"], {})
            # Of a prompt that is there several times, the first.
            if row["seed"] == first_seed and model not in same:
                same[model] = place
                won = -row["hit"] if is_causal(groups.kinds[model]) else row["hit"]
                scores[row["prompt"]] = scores.get(row["prompt"], 0) + won
    prompt = max(scores, key=lambda each: scores[each])
    return groups.table.select(list(columns)).take([*places[prompt].values()]).to_pylist()

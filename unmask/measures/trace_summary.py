"""The summary of traces: averages, shares, differences, counts of facts, single texts."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from unmask.blocks.labels import order_splits
from unmask.blocks.tidy import Record, distinct, group_by, select
from unmask.evaluation.equivalence import MARGIN
from unmask.measures import trace_effects as of_traces
from unmask.measures.clean_runs import count_prompts
from unmask.measures.result import open_table
from unmask.results import effects as by_fact
from unmask.results.summaries import Rows, Summary, Tables
from unmask.tracing import table as traced
from unmask.tracing.settings import STEPS, Tracing
from unmask.tracing.windows import window_of

if TYPE_CHECKING:
    import pyarrow

MOST_TEXTS = 2
"""Texts of each model and split whose effects are kept cell by cell."""
MOST_CELLS = 200_000
"""Cells of single texts that a summary holds; more texts are left out."""


def summarise(tables: Tables, settings: Tracing) -> Summary:
    """Averages over facts, shares of what was lost, differences between groups, counts, texts."""
    counts, facts = list(_count_facts(tables)), tables["facts"].to_pylist()
    effects, metric = read_effects(tables, settings), settings.to_record()["metric"]
    margin, seed = getattr(settings, "margin", MARGIN), settings.seed
    shares = [by_fact.bound_effect(row, metric) for row in of_traces.fit_shares(effects)]
    tests = of_traces.compare_effects(effects, seed)
    summary: dict[str, Rows] = {
        **of_traces.add_outcomes(_average(metric, effects, facts), shares),
        "tests": [by_fact.bound_effect(row, metric) for row in tests],
        "bands": list(of_traces.compare_bands(effects, margin, seed)),
        "counts": counts,
        "texts": list(_list_texts(tables, facts, settings.mode)),
    }
    further = [
        row
        for name in getattr(settings, "also", ())
        for row in _average(name, read_effects(tables, settings, name), facts)
    ]
    return summary | ({"further": further} if further else {})


def read_effects(
    tables: Tables, settings: Any, metric: str = "value"
) -> dict[by_fact.GroupKey, by_fact.GroupEffects]:
    """Each fact's effects, group by group: in the metric of the run, or in a further one.

    Ways of asking stand in one order, and the steps of each in theirs.
    """
    names = [*of_traces.PROMPT, *of_traces.GROUP, *of_traces.CELL]
    pieces = open_table(tables, "trace").pieces([*names, metric])
    pieces = (piece.rename_columns([*names, "value"]) for piece in pieces)
    effects = of_traces.find_effects(pieces, settings.mode)
    splits = order_splits([group[2] for group in effects])
    order = sorted(effects, key=lambda group: (splits.index(group[2]), rank_stage(group[4])))
    return {group: effects[group] for group in order}


def _average(metric: str, effects: Any, facts: Rows) -> list[dict[str, Any]]:
    """The averages with the layers that each cell restored, from `first` to `last`."""
    rows = [
        by_fact.bound_effect(row, metric)
        for row in by_fact.average_panels({metric: effects}, of_traces.LAYOUT)
        if row["facts"] or row["part"] != of_traces.TOTAL  # a metric may be missing as a whole
    ]
    width = next((fact["window"] for fact in facts if fact["window"]), 1)
    depths = {
        model: 1 + max(row["layer"] for row in own)
        for model, own in group_by(rows, "model").items()
    }
    for row in rows:
        part, _, narrow = row["part"].partition("@")
        row["first"] = row["last"] = row["layer"]
        if part in ("mlp", "attn"):
            first, stop = window_of(row["layer"], int(narrow or width), depths[row["model"]])
            row |= {"first": first, "last": stop - 1}
    return rows


def rank_stage(stage: str) -> int:
    """Steps by name come first, numbered ones in their order."""
    return STEPS.index(stage) if stage in STEPS else len(STEPS) + int(stage.removeprefix("t1+"))


def _count_facts(tables: Tables) -> Iterator[Record]:
    """How many prompts were traced, with what is known of traced ones alone."""
    facts, names = tables["facts"].to_pylist(), ("model", "split", "corruption", "joint")
    for row in count_prompts(tables):
        rows = select(facts, **{name: row[name] for name in names})
        clean = [fact["clean"] for fact in rows if fact["kept"]]
        more: dict[str, Any] = {"clean": sum(clean) / len(clean) if clean else math.nan}
        more["window"] = rows[0]["window"]
        for name in ("considered", "recalled"):
            # All rows of a training seed have it alike.
            values = [value for _, value in distinct(rows, "seed", name)]
            more[name] = None if None in values else sum(values)
        yield {**row, **more}


def _list_texts(tables: Tables, facts: Rows, mode: str) -> Iterator[dict[str, Any]]:
    """Effects cell by cell of the first texts of each group, a row for each token."""
    shown: Counter[tuple[str, ...]] = Counter()
    cells = 0
    texts, traces = (open_table(tables, name) for name in ("tokens", "trace"))
    for fact in select(facts, kept=True) if texts.num_rows else ():  # condensed runs have none
        group = tuple(fact[name] for name in ("model", "split", "corruption"))
        if shown[group] == MOST_TEXTS:
            continue
        shown[group] += 1
        prompt = {name: fact[name] for name in ("model", "seed", "split", "fact", "phrasing")}
        if not (tokens := texts.select(**prompt).to_pylist()):
            continue
        table = traces.select(**prompt, corruption=fact["corruption"])
        rows = list(_lay_out_text(table, tokens, mode))
        cells += sum(len(row["effects"]) for row in rows)
        if cells > MOST_CELLS and shown.total() > 1:
            return
        names = (*prompt, "kind", "corruption", "prompt", "object")
        about = {name: fact[name] for name in names} | {"text": shown[group]}
        yield from (about | row for row in rows)


def _lay_out_text(table: "pyarrow.Table", tokens: Rows, mode: str) -> Iterator[dict[str, Any]]:
    """Effects of one text by layer, mean over noise samples; of heads the strongest."""
    import pyarrow.compute as pc

    cell = ["stage", "step", "part", "layer", "head", "token", "role"]
    results = table.filter(pc.field("control") == traced.RESULT)
    rows = results.group_by(cell, use_threads=False).aggregate([("value", "mean")]).to_pylist()
    ends = {(row["stage"], row["step"], row["part"]): row["value_mean"] for row in rows}
    spelled = {token["position"]: token for token in tokens}
    # What comes after the first end token is padding.
    end = next((at for at, token in spelled.items() if token["piece"] == "⏎"), math.inf)
    cells = sorted((row for row in rows if 0 <= row["token"] <= end), key=lambda row: row["token"])
    for key, members in group_by(cells, "stage", "step", "part", "token").items():
        clean, corrupted = (ends[(*key[:2], end)] for end in (traced.CLEAN, traced.CORRUPTED))
        effects = [-math.inf] * (1 + max(row["layer"] for row in members))
        for row in members:
            value, layer = row["value_mean"], row["layer"]
            effect = clean - value if mode != "restore" else value - corrupted
            effects[layer] = max(effects[layer], effect)
        named = ("position", "piece", "written", "in_subject", "in_answer")
        yield (
            dict(zip(("stage", "step", "part"), key, strict=False))
            | {"clean": clean, "corrupted": corrupted, "role": members[0]["role"]}
            | {name: spelled[key[-1]][name] for name in named}
            | {"effects": effects}
        )

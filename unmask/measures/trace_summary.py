"""The statistics of traces: averages and what they may say, differences, counts of facts, texts."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from unmask.blocks import labels
from unmask.blocks.blocks import Outcome, is_clear
from unmask.blocks.labels import is_numbered, order_splits
from unmask.blocks.tidy import ENDS, Record, distinct, group_by, select, to_interval
from unmask.evaluation.equivalence import MARGIN
from unmask.evaluation.statistics import ALPHA, ENOUGH, is_above_placebos
from unmask.measures import trace_effects as effects_of_traces
from unmask.measures.clean_runs import explain_nothing
from unmask.measures.result import open_table
from unmask.results.summaries import Rows, Summary, Tables, add_outcome, name_outcome
from unmask.tracing import table as traced
from unmask.tracing.settings import STEPS, WHOLE_SUBJECT, Tracing
from unmask.tracing.windows import window_of

if TYPE_CHECKING:
    import pyarrow

MOST_TEXTS = 2
"""Texts of each model and split whose effects are kept cell by cell."""
MOST_CELLS = 200_000
"""Cells of single texts that a summary holds; more texts are left out."""
GROUP = ("model", "kind", "split", "corruption", "stage")
PAIR = ("model", "split", "other_model", "other_split", "corruption", "stage")
PLACEBO = ("placebo", *(f"placebo_{end}" for end in ENDS))
HIDDEN = {
    "subject": "the subject",
    "committed": "the answer tokens written so far",
    "both": "the subject and the answer tokens written so far",
}


def summarise(tables: Tables, settings: Tracing) -> Summary:
    """Averages over facts and their peaks, differences between groups, counts, single texts."""
    facts = tables["facts"].to_pylist()
    if not any(fact["kept"] for fact in facts):
        raise explain_nothing(facts)
    effects, metric = read_effects(tables, settings), settings.to_record()["metric"]
    margin = getattr(settings, "margin", MARGIN)
    tests = _bound(effects_of_traces.compare_groups(effects, settings.seed), metric)
    bands = effects_of_traces.compare_bands(effects, margin, settings.seed)
    bands = [row | {"outcome": _name_likeness(row)} for row in bands]
    averages = _average(effects, facts, metric)
    summary: dict[str, Rows] = {
        "averages": averages,
        "peaks": find_peaks(averages),
        "tests": [row | {"outcome": _name_difference(row)} for row in tests],
        "shares": _bound(effects_of_traces.fit_shares(effects), metric),
        "bands": bands,
        "alike": [_count_alike(rows) for rows in group_by(bands, *PAIR).values()],
        "counts": list(count_facts(facts)),
        "texts": list(_list_texts(tables, facts, settings.mode)),
    }
    further = [
        {"metric": name, **row}
        for name in getattr(settings, "also", ())
        for row in _average(read_effects(tables, settings, name), facts, name)
    ]
    return summary | ({"further": further} if further else {})


def read_effects(
    tables: Tables, settings: Any, metric: str = "value"
) -> dict[effects_of_traces.GroupKey, effects_of_traces.GroupEffects]:
    """Each fact's effects, group by group: in the metric of the run, or in a further one."""
    names = [*effects_of_traces.PROMPT, *effects_of_traces.CELL]
    pieces = open_table(tables, "trace").pieces([*names, metric])
    return effects_of_traces.find_effects(
        (piece.rename_columns([*names, "value"]) for piece in pieces), settings.mode
    )


def _average(effects: Any, facts: Rows, metric: str) -> list[dict[str, Any]]:
    """The averages with the layers that each cell restored, from `first` to `last`."""
    rows = _bound(effects_of_traces.average(effects), metric)
    width = next((fact["window"] for fact in facts if fact["window"]), 1)
    depths: dict[str, int] = {}
    for row in rows:
        depths[row["model"]] = max(depths.get(row["model"], 1), row["layer"] + 1)
    for row in rows:
        part, _, narrow = row["part"].partition("@")
        row["first"] = row["last"] = row["layer"]
        if part in ("mlp", "attn"):
            first, stop = window_of(row["layer"], int(narrow or width), depths[row["model"]])
            row |= {"first": first, "last": stop - 1}
    return rows


def _bound(rows: Rows, metric: str) -> list[dict[str, Any]]:
    """The rows; intervals of effects on probabilities end at −1 and 1."""
    ends = ("low", "high") if metric == "p" else ()
    return [
        {**row, **{name: min(max(row[name], -1.0), 1.0) for name in ends if name in row}}
        for row in rows
    ]


def find_peaks(averages: Rows) -> list[dict[str, Any]]:
    """The total effect of each group, and every part and role at its best layer (and head).

    Groups are models, splits, corruptions and steps; named steps and reversed ways come first.
    `share` is of what was lost, None where nothing is for certain; the placebo is the highest
    that was measured in the same cell. A cell's outcome is "above" where it lies above 0 and above
    every placebo.
    """
    models, splits = distinct(averages, "model"), order_splits(distinct(averages, "split"))

    def rank(rows: Rows) -> tuple[Any, ...]:
        model, _, split, corruption, stage = (rows[0][name] for name in GROUP)
        place = (splits.index(split), models.index(model), corruption)
        return (is_numbered(stage), *place, rank_stage(stage))

    peaks: list[dict[str, Any]] = []
    for rows in sorted(group_by(averages, *GROUP).values(), key=rank):
        names = ("control", *effects_of_traces.CELL)
        cells = {tuple(row[name] for name in names): row for row in rows}
        total = cells.get((traced.RESULT, effects_of_traces.TOTAL, -1, -1, ""))
        if total is None:
            continue
        lost = None if total["low"] <= 0 or total["mean"] == 0 else total["mean"]
        peaks.append(add_outcome(total) | dict.fromkeys(("share", *PLACEBO)))
        effects = [row for row in select(rows, control=traced.RESULT) if row["layer"] >= 0]
        for (part, role), roles in group_by(effects, "part", "role").items():
            best = max(roles, key=lambda row: row["mean"])
            controls = (traced.OTHER_FACT, traced.RANDOM, traced.SHUFFLED)
            places = [
                (effects_of_traces.OTHER_TOKEN, effects_of_traces.PLACEBO),
                *((at, role) for at in controls),
            ]
            keys = [(at, part, best["layer"], best["head"], name) for at, name in places]
            placebos = [cells[key] for key in keys if key in cells]
            highest = max(placebos, key=lambda row: row["mean"], default={})
            shown = (highest.get(name) for name in ("control", *ENDS))
            outcome = _name_peak(best, placebos)
            share = None if lost is None else best["mean"] / lost
            peak = dict(zip(PLACEBO, shown, strict=True)) | {"share": share, "outcome": outcome}
            peaks.append({**best, **peak})
    return peaks


def _name_peak(cell: Record, placebos: Rows) -> Outcome:
    """Whether a cell is above 0 and above every placebo that was measured beside it."""
    if cell["facts"] < ENOUGH:
        return "too few"
    beside = [to_interval(row) for row in placebos]
    return "above" if is_above_placebos(to_interval(cell), beside, cell["facts"]) else "unsettled"


def _name_difference(test: Record) -> Outcome:
    """Whether a group's effect is above or below another's, by its corrected test."""
    outcome = name_outcome(to_interval(test), test["facts"], p=test["p_holm"])
    return "below" if outcome == "above" and test["mean"] < 0 else outcome


def _name_likeness(band: Record) -> Outcome:
    """Whether two groups differ in a band of layers, are alike, or neither is shown."""
    if band["facts"] < ENOUGH:
        return "too few"
    likeness = effects_of_traces.name_likeness_outcome(band)
    if likeness.startswith("differ"):
        return "above" if band["mean"] > 0 else "below"
    return "alike" if likeness == "alike" else "unsettled"


def _count_alike(bands: Rows) -> dict[str, Any]:
    """What all bands of two groups show together: how many differ, are alike, and are neither."""
    outcomes = [row["outcome"] for row in bands]
    is_within = all(row["p_equivalent"] <= ALPHA for row in bands)
    differ, alike = sum(map(is_clear, outcomes)), outcomes.count("alike")
    together = "alike" if is_within else "no difference detected"
    if differ:
        together = "differ, within the margin" if is_within else "differ"
    return {name: bands[0][name] for name in (*PAIR, "margin", "facts", "paired")} | {
        "compared": len(bands),
        "differ": differ,
        "alike": alike,
        "neither": len(bands) - differ - alike,
        "smallest_margin": max(row["smallest_margin"] for row in bands),
        "power": min(row["power"] for row in bands),
        "together": "too few facts" if "too few" in outcomes else together,
    }


def find_best_subject(peaks: Rows) -> Record | None:
    """The subject token that gives back most, or the whole subject where roles were restored; of
    states where there are any, else of other parts."""
    for rows in (select(peaks, part="resid"), peaks):
        tokens = [row for row in rows if row["role"] in traced.SUBJECT_ROLES]
        if subjects := tokens or select(rows, role=WHOLE_SUBJECT):
            return max(subjects, key=lambda row: row["mean"])
    return None


def rank_stage(stage: str) -> int:
    """Steps by name come first, numbered ones in their order."""
    return STEPS.index(stage) if stage in STEPS else len(STEPS) + int(stage.removeprefix("t1+"))


def count_facts(facts: Rows) -> Iterator[dict[str, Any]]:
    """How many prompts of each model and split were traced, and why others were not."""
    by = ("model", "kind", "split", "corruption")
    shared: dict[str, set[str]] = {}
    for (split, _), rows in group_by(facts, "split", "model").items():
        traced_here = {fact["fact"] for fact in rows if fact["kept"]}
        shared[split] = shared.get(split, traced_here) & traced_here
    for key, rows in group_by(facts, *by).items():
        kept = select(rows, kept=True)
        reasons = Counter(fact["reason"] for fact in rows if not fact["kept"])
        yield dict(zip(by, key, strict=True)) | {
            "prompts": len(rows),
            "kept": len(kept),
            "facts": len(distinct(kept, "fact")),
            "shared": len(shared[key[2]]),
            "seeds": len(distinct(rows, "seed")),
            "left_out": ", ".join(f"{reasons[each]} {each}" for each in sorted(reasons)),
            "clean": sum(fact["clean"] for fact in kept) / len(kept) if kept else math.nan,
            **{name: rows[0][name] for name in ("joint", "window")},
            **{name: _sum_seeds(rows, name) for name in ("considered", "recalled")},
        }


def _sum_seeds(rows: Rows, name: str) -> int | None:
    """The sum over seeds of a column that all rows of a seed have alike."""
    values = [value for _, value in distinct(rows, "seed", name)]
    return None if None in values else sum(values)


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


def describe_setup(counts: Rows, settings: Mapping[str, Any]) -> str:
    """How the facts were traced, in sentences."""
    hidden, window = " or ".join(group_by(counts, labels.name_corruption)), counts[0]["window"]
    text = f"{HIDDEN[settings['source']].capitalize()} is hidden, the subject by {hidden}."
    if settings["source"] == "subject":
        text = f"The subject is hidden by {hidden}."
    if window and {"mlp", "attn"} & {*settings["parts"]}:
        width = f"in windows of {window} layers around the named one"
        text += f" MLP and attention outputs change {width if window > 1 else 'one by one'}."
    names = ("mode", "run", "severed", "guidance")
    changed = [name for name in names if settings[name] != getattr(Tracing(), name)]
    return text + "".join(f" Setting `{name}`: {settings[name]}." for name in changed)

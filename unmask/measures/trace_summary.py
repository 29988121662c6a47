"""The statistics of traces: averages, differences, counts of facts, single texts; and verdicts."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.blocks import tidy
from unmask.blocks.blocks import Verdict
from unmask.blocks.labels import is_numbered, order_splits
from unmask.blocks.tidy import distinct, group_by, to_interval
from unmask.evaluation.equivalence import MARGIN
from unmask.evaluation.statistics import ENOUGH, is_above_placebos
from unmask.measures import trace_effects as averaging
from unmask.measures import trace_effects as shares
from unmask.measures.clean_runs import explain_nothing
from unmask.measures.measure import Rows, Summary, Tables, judge_interval, judge_p
from unmask.measures.result import open_table
from unmask.tracing import table as traced
from unmask.tracing.settings import STEPS, WHOLE_SUBJECT, Tracing
from unmask.tracing.table import SUBJECT_ROLES
from unmask.tracing.windows import window_of

if TYPE_CHECKING:
    import pyarrow

MOST_TEXTS = 2
"""Texts of each model and split whose effects are kept cell by cell."""
MOST_CELLS = 200_000
"""Cells of single texts that a summary holds; more texts are left out."""
ENDS = ("low", "high")
PROBABILITIES = ("p",)
"""Metrics whose effects cannot leave −1 to 1."""
GROUP = ("model", "kind", "split", "corruption", "stage")


def summarise(tables: Tables, settings: Tracing) -> Summary:
    """Averages over facts, differences between groups, counts of facts, and a few single texts."""
    facts = tables["facts"].to_pylist()
    if not any(fact["kept"] for fact in facts):
        raise explain_nothing(facts)
    effects = read_effects(tables, settings)
    name = settings.to_record()["metric"]
    summary: dict[str, Rows] = {
        "averages": bound(_add_windows(averaging.average(effects), facts), name),
        "tests": bound(averaging.compare_groups(effects, settings.seed), name),
        "shares": bound(shares.fit_shares(effects), name),
        "bands": shares.compare_bands(effects, getattr(settings, "margin", MARGIN), settings.seed),
        "counts": list(count_facts(facts)),
        "texts": list(_list_texts(tables, facts, settings.mode)),
    }
    further: list[dict[str, Any]] = []
    for metric in getattr(settings, "also", ()):
        averages = averaging.average(read_effects(tables, settings, metric))
        rows = bound(_add_windows(averages, facts), metric)
        further += [{"metric": metric, **row} for row in rows]
    return summary | ({"further": further} if further else {})


def read_effects(
    tables: Tables, settings: Any, metric: str = "value"
) -> dict[averaging.GroupKey, averaging.GroupEffects]:
    """Each fact's effects, group by group: in the metric of the run, or in a further one."""
    names = [*averaging.PROMPT, *averaging.CELL]
    pieces = open_table(tables, "trace").pieces([*names, metric])
    named = (piece.rename_columns([*names, "value"]) for piece in pieces)
    return averaging.find_effects(named, settings.mode)


def bound(rows: Rows, metric: str) -> list[dict[str, Any]]:
    """The rows with intervals of probabilities, and of their differences, within −1 and 1."""
    if metric not in PROBABILITIES:
        return [dict(row) for row in rows]
    return [
        {**row, **{name: min(max(row[name], -1.0), 1.0) for name in ENDS if name in row}}
        for row in rows
    ]


def _add_windows(averages: Rows, facts: Rows) -> list[dict[str, Any]]:
    """The averages with the layers that each cell restored, from `first` to `last`."""
    depths: dict[str, int] = {}
    for row in averages:
        depths[row["model"]] = max(depths.get(row["model"], 1), row["layer"] + 1)
    width = next((fact["window"] for fact in facts if fact["window"]), 1)
    rows = []
    for row in averages:
        part, _, own = row["part"].partition("@")
        first, stop = row["layer"], row["layer"] + 1
        if part in ("mlp", "attn"):
            first, stop = window_of(row["layer"], int(own or width), depths[row["model"]])
        rows.append({**row, "first": first, "last": stop - 1})
    return rows


def count_facts(facts: Rows) -> Iterator[dict[str, Any]]:
    """How many prompts of each model and split were traced, and why others were not."""
    by = ("model", "kind", "split", "corruption")
    shared: dict[str, set[str]] = {}
    for (split, _), rows in group_by(facts, "split", "model").items():
        own = {fact["fact"] for fact in rows if fact["kept"]}
        shared[split] = shared.get(split, own) & own
    for key, rows in group_by(facts, *by).items():
        kept = [fact for fact in rows if fact["kept"]]
        reasons = [fact["reason"] for fact in rows if not fact["kept"]]
        yield dict(zip(by, key, strict=True)) | {
            "prompts": len(rows),
            "kept": len(kept),
            "facts": len(distinct(kept, "fact")),
            "shared": len(shared[key[2]]),
            "seeds": len(distinct(rows, "seed")),
            "left_out": ", ".join(f"{reasons.count(each)} {each}" for each in sorted(set(reasons))),
            "clean": sum(fact["clean"] for fact in kept) / len(kept) if kept else math.nan,
            **{name: rows[0][name] for name in ("joint", "window")},
            **{name: _sum_seeds(rows, name) for name in ("considered", "recalled")},
        }


def _sum_seeds(rows: Rows, name: str) -> int | None:
    """The sum over seeds of a column that all rows of a seed have alike."""
    values = [value for _, value in distinct(rows, "seed", name)]
    return None if None in values else sum(values)


def _list_texts(tables: Tables, facts: Rows, mode: str) -> Iterator[dict[str, Any]]:
    """Effects cell by cell of the first texts of each group, a row for each step and part."""
    shown: Counter[tuple[str, ...]] = Counter()
    cells = 0
    texts, traces = (open_table(tables, name) for name in ("tokens", "trace"))
    if not texts.num_rows:  # runs of version 0.1 did not keep them
        return
    for fact in facts:
        group = tuple(fact[name] for name in ("model", "split", "corruption"))
        if not fact["kept"] or shown[group] == MOST_TEXTS:
            continue
        shown[group] += 1
        prompt = {name: fact[name] for name in ("model", "seed", "split", "fact", "phrasing")}
        tokens = texts.select(**prompt).to_pylist()
        if not tokens:
            continue
        cells_of_text = traces.select(**prompt, corruption=fact["corruption"])
        rows = list(_lay_out_text(cells_of_text, tokens, mode))
        cells += sum(np.size(row["effects"]) for row in rows)
        if cells > MOST_CELLS and shown.total() > 1:
            return
        names = ("model", "kind", "seed", "split", "corruption", "fact", "phrasing")
        about = {name: fact[name] for name in (*names, "prompt", "object")}
        yield from (about | row for row in rows)


def _lay_out_text(table: "pyarrow.Table", tokens: Rows, mode: str) -> Iterator[dict[str, Any]]:
    """Effects of one text [token][layer], mean over noise samples; of heads the strongest."""
    import pyarrow.compute as pc

    cell = ["stage", "step", "part", "layer", "head", "token", "role"]
    results = table.filter(pc.field("control") == traced.RESULT)
    rows = results.group_by(cell, use_threads=False).aggregate([("value", "mean")]).to_pylist()
    spelled = {token["position"]: token for token in tokens}
    for (stage, step), here in group_by(rows, "stage", "step").items():
        ends = {row["part"]: row["value_mean"] for row in here if row["token"] < 0}
        clean, corrupted = ends[traced.CLEAN], ends[traced.CORRUPTED]
        cells = [row for row in here if row["token"] >= 0]
        for part, own in group_by(cells, "part").items():
            roles = {row["token"]: row["role"] for row in own}
            places = sorted(roles)
            effects = np.full((len(places), 1 + max(row["layer"] for row in own)), -np.inf)
            for row in own:
                value = row["value_mean"]
                effect = clean - value if mode != "restore" else value - corrupted
                at = places.index(row["token"]), row["layer"]
                effects[at] = max(effects[at], effect)
            yield {
                "stage": stage,
                "step": step,
                "part": part,
                "clean": clean,
                "corrupted": corrupted,
                "positions": places,
                "roles": [roles[place] for place in places],
                **{
                    name: [spelled[place][name] for place in places]
                    for name in ("piece", "written", "in_subject", "in_answer")
                },
                "effects": effects.tolist(),
            }


def list_groups(averages: Rows) -> list[dict[str, Any]]:
    """A record for each model, split, corruption and step; named steps and reversed ways first.

    `total` is what the corruption takes, `asked` how many answer tokens were asked for, `subject`
    and `committed` what these tokens give to p, `peaks` every part and role at its best layer
    beside its placebos, and `best` the subject's state that gives back most (without states, the
    best of other parts). What was not measured is None.
    """
    names = ("part", "layer", "head", "role", "control")
    places = {"total": (averaging.TOTAL, ""), "asked": (traced.ASKED, "")}
    places |= {name: (traced.FLOW, name) for name in ("subject", "committed")}
    groups = []
    for key, rows in group_by(averages, *GROUP).items():
        cells = {tuple(row[name] for name in names): row for row in rows}
        group: dict[str, Any] = dict(zip(GROUP, key, strict=True))
        for name, (part, role) in places.items():
            group[name] = cells.get((part, -1, -1, role, traced.RESULT))
        if group["total"] is not None:
            group["peaks"] = list(_list_peaks(cells, group["total"]))
            states = tidy.select(group["peaks"], part="resid")
            group["best"] = find_best_subject(states) or find_best_subject(group["peaks"])
            groups.append(group)
    models, splits = distinct(averages, "model"), order_splits(distinct(averages, "split"))

    def rank(group: tidy.Record) -> tuple[Any, ...]:
        place = (splits.index(group["split"]), models.index(group["model"]), group["corruption"])
        return (is_numbered(group["stage"]), *place, rank_stage(group["stage"]))

    return sorted(groups, key=rank)


def find_best_subject(cells: Rows) -> tidy.Record | None:
    """The subject token that gives back most, or the whole subject where roles were restored."""
    tokens = [cell for cell in cells if cell["role"] in SUBJECT_ROLES]
    subjects = tokens or tidy.select(cells, role=WHOLE_SUBJECT)
    return max(subjects, key=lambda cell: cell["mean"], default=None)


def _list_peaks(
    cells: Mapping[tuple[Any, ...], tidy.Record], total: tidy.Record
) -> Iterator[dict[str, Any]]:
    """The best layer (of heads the best head and layer) of each part and role, its share of what
    was lost, and its placebos: another token or answer, another fact's state, a random one.

    Where nothing is lost for certain, there are no shares of it.
    """
    lost = None if total["low"] <= 0 or total["mean"] == 0 else total["mean"]
    effects = [
        row for row in cells.values() if row["control"] == traced.RESULT and row["layer"] >= 0
    ]
    for (part, role), rows in group_by(effects, "part", "role").items():
        best = max(rows, key=lambda row: row["mean"])
        roles = {averaging.OTHER_TOKEN: averaging.PLACEBO}
        roles |= {traced.OTHER_FACT: role, traced.RANDOM: role}
        keys = {
            control: (part, best["layer"], best["head"], at, control)
            for control, at in (roles | {traced.SHUFFLED: role}).items()
        }
        placebos = {control: cells[at] for control, at in keys.items() if at in cells}
        share = None if lost is None else best["mean"] / lost
        yield {**best, "share": share, "placebos": placebos}


def rank_stage(stage: str) -> int:
    """Steps by name come first, numbered ones in their order."""
    number = stage.removeprefix("t1+")
    return STEPS.index(stage) if stage in STEPS else len(STEPS) + int(number)


def judge(summary: Summary, settings: Tracing) -> Sequence[Verdict]:
    """What the corruption takes, which cells are above their placebos, which groups differ."""
    verdicts = []
    for group in list_groups(summary["averages"]):
        total = group["total"]
        verdicts.append(judge_interval(name_cell(total), to_interval(total), total["facts"]))
        verdicts += [_judge_cell(cell) for cell in group["peaks"]]
    for test in summary["tests"]:
        value = to_interval(test)
        verdicts.append(judge_p(name_test(test), value, test["p_holm"], test["facts"]))
    return verdicts


def _judge_cell(cell: tidy.Record) -> Verdict:
    """Whether a cell is above 0 and above every placebo that was measured beside it."""
    claim, value, facts = name_cell(cell), to_interval(cell), cell["facts"]
    if facts < ENOUGH:
        return Verdict(claim, "too few", value, facts)
    placebos = [to_interval(row) for row in cell["placebos"].values()]
    outcome = "above" if is_above_placebos(value, placebos, facts) else "unsettled"
    return Verdict(claim, outcome, value, facts)


def name_cell(cell: tidy.Record) -> str:
    """The name of the verdict on a cell, or on the total effect."""
    where = ", ".join(cell[name] for name in ("model", "split", "corruption", "stage"))
    return f"{where}: {cell['part']} {cell['role']}".rstrip()


def list_pairs(rows: Rows) -> dict[Any, list[tidy.Record]]:
    """Comparisons by the pair of groups that they are of."""
    names = ("model", "split", "other_model", "other_split", "corruption", "stage")
    return group_by(rows, *names)


def name_test(test: tidy.Record) -> str:
    """The name of the verdict on a difference between two groups."""
    pair = f"{test['model']}, {test['split']} − {test['other_model']}, {test['other_split']}"
    where = f"{test['corruption']}, {test['stage']}"
    return f"{pair}, {where}: {test['part']} {test['role']}".rstrip()

"""The statistics of traces: averages, differences, counts of facts, single texts; and verdicts."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.base.errors import NotMeasuredError, UserError
from unmask.blocks.blocks import Verdict
from unmask.blocks.labels import order_splits
from unmask.blocks.tidy import distinct, to_interval
from unmask.evaluation.statistics import ENOUGH, Interval, is_clear
from unmask.measures.measure import Rows, Summary, Tables, judge_interval, judge_p
from unmask.tracing.averages import (
    OTHER_TOKEN,
    PLACEBO,
    TOTAL,
    average,
    compare_groups,
    find_effects,
)
from unmask.tracing.roles import SUBJECT_ROLES
from unmask.tracing.settings import STEPS, Tracing
from unmask.tracing.table import ASKED, CLEAN, CORRUPTED, FLOW, OTHER_FACT, RESULT, SHUFFLED

if TYPE_CHECKING:
    import pyarrow

MOST_TEXTS = 2
"""Texts of each model and split whose effects are kept cell by cell."""
MOST_CELLS = 200_000
"""Cells of single texts that a summary holds; more texts are left out."""
Row = Mapping[str, Any]


def summarise(tables: Tables, settings: Tracing) -> Summary:
    """Averages over facts, differences between groups, counts of facts, and a few single texts."""
    facts = tables["facts"].to_pylist()
    if not any(fact["kept"] for fact in facts):
        raise explain_nothing(facts)
    effects = find_effects(tables["trace"], settings.mode)
    return {
        "averages": average(effects),
        "tests": compare_groups(effects, settings.seed),
        "counts": list(count_facts(facts)),
        "texts": list(_list_texts(tables, facts, settings.mode)),
    }


def explain_nothing(facts: Rows) -> UserError:
    """Why no fact was traced at all."""
    reasons = {fact["reason"] for fact in facts}
    if reasons <= {"not recalled", "not aligned"}:
        return NotMeasuredError("none recalled", models=" and ".join(distinct(facts, "model")))
    return UserError(
        f"no fact could be traced ({', '.join(sorted(reasons))}): give other facts, or other "
        "settings."
    )


def count_facts(facts: Rows) -> Iterator[dict[str, Any]]:
    """How many prompts of each model and split were traced, and why others were not."""
    by = ("model", "kind", "split", "corruption")
    for key in distinct(facts, *by):
        rows = [fact for fact in facts if tuple(fact[name] for name in by) == key]
        kept = [fact for fact in rows if fact["kept"]]
        reasons = [fact["reason"] for fact in rows if not fact["kept"]]
        yield dict(zip(by, key, strict=True)) | {
            "prompts": len(rows),
            "kept": len(kept),
            "facts": len(distinct(kept, "fact")),
            "seeds": len(distinct(rows, "seed")),
            "left_out": ", ".join(f"{reasons.count(each)} {each}" for each in sorted(set(reasons))),
            "clean": sum(fact["clean"] for fact in kept) / len(kept) if kept else float("nan"),
            **{name: rows[0][name] for name in ("joint", "window", "considered", "recalled")},
        }


def _list_texts(tables: Tables, facts: Rows, mode: str) -> Iterator[dict[str, Any]]:
    """Effects cell by cell of the first texts of each group, a row for each step and part."""
    shown: Counter[tuple[str, ...]] = Counter()
    cells = 0
    if not tables["tokens"].num_rows:  # runs of version 0.1 did not keep them
        return
    for fact in facts:
        group = tuple(fact[name] for name in ("model", "split", "corruption"))
        if not fact["kept"] or shown[group] == MOST_TEXTS:
            continue
        shown[group] += 1
        tokens = _select(tables["tokens"], fact).to_pylist()
        if not tokens:
            continue
        rows = list(_lay_out_text(_select(tables["trace"], fact, "corruption"), tokens, mode))
        cells += sum(np.size(row["effects"]) for row in rows)
        if cells > MOST_CELLS and shown.total() > 1:
            return
        names = ("model", "kind", "seed", "split", "corruption", "fact", "phrasing")
        about = {name: fact[name] for name in (*names, "prompt", "object")}
        yield from (about | row for row in rows)


def _select(table: "pyarrow.Table", fact: Row, *more: str) -> "pyarrow.Table":
    """The rows of one prompt in one model."""
    import pyarrow.compute as pc

    keep = pc.scalar(True)
    for name in ("model", "seed", "split", "fact", "phrasing", *more):
        keep = keep & (pc.field(name) == fact[name])
    return table.filter(keep)


def _lay_out_text(table: "pyarrow.Table", tokens: Rows, mode: str) -> Iterator[dict[str, Any]]:
    """Effects of one text [token][layer], mean over noise samples; of heads the strongest."""
    import pyarrow.compute as pc

    cell = ["stage", "step", "part", "layer", "head", "token", "role"]
    results = table.filter(pc.field("control") == RESULT)
    rows = results.group_by(cell, use_threads=False).aggregate([("value", "mean")]).to_pylist()
    spelled = {token["position"]: token for token in tokens}
    for stage, step in distinct(rows, "stage", "step"):
        here = [row for row in rows if row["stage"] == stage]
        ends = {row["part"]: row["value_mean"] for row in here if row["token"] < 0}
        clean, corrupted = ends[CLEAN], ends[CORRUPTED]
        for part in distinct((row for row in here if row["token"] >= 0), "part"):
            own = [row for row in here if row["part"] == part]
            roles = {row["token"]: row["role"] for row in own}
            places = sorted(roles)
            effects = np.full((len(places), 1 + max(row["layer"] for row in own)), -np.inf)
            for row in own:
                value = row["value_mean"]
                effect = clean - value if mode == "ablate" else value - corrupted
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


@dataclass(frozen=True)
class Group:
    """The averages of one model, split, corruption and step."""

    model: str
    kind: str
    split: str
    corruption: str
    stage: str
    cells: Mapping[tuple[str, int, int, str, str], Row]
    """By part, layer, head, role and control."""

    @property
    def total(self) -> Row:
        """What the corruption takes."""
        return self.cells[TOTAL, -1, -1, "", RESULT]

    @property
    def asked(self) -> float:
        """How many answer tokens were asked for, the mean over facts; NaN in older tables."""
        row = self.cells.get((ASKED, -1, -1, "", RESULT))
        return float("nan") if row is None else row["mean"]

    def flow(self, source: str) -> Interval | None:
        """What the subject or the committed answer tokens give to p; None where none are."""
        row = self.cells.get((FLOW, -1, -1, source, RESULT))
        return None if row is None else to_interval(row)

    def peaks(self) -> list[Row]:
        """The best layer of each part and role, of heads the best head and layer."""
        best: dict[tuple[str, str], Row] = {}
        for (part, layer, _, role, control), row in self.cells.items():
            if control != RESULT or layer < 0:
                continue
            if (part, role) not in best or row["mean"] > best[part, role]["mean"]:
                best[part, role] = row
        return list(best.values())

    def best_subject(self) -> Row | None:
        """The subject's state that gives back most; without states, the best of other parts."""
        cells = [row for row in self.peaks() if row["role"] in SUBJECT_ROLES]
        states = [row for row in cells if row["part"] == "resid"] or cells
        return max(states, key=lambda row: row["mean"], default=None)

    def placebos(self, cell: Row) -> dict[str, Row]:
        """What was measured beside a cell: another token, another fact's state, another answer."""
        at = (cell["part"], cell["layer"], cell["head"])
        keys = {
            OTHER_TOKEN: (*at, PLACEBO, OTHER_TOKEN),
            OTHER_FACT: (*at, cell["role"], OTHER_FACT),
            SHUFFLED: (*at, cell["role"], SHUFFLED),
        }
        return {name: self.cells[key] for name, key in keys.items() if key in self.cells}

    def claim(self, cell: Row) -> str:
        """The name of the verdict on a cell, or on the total effect."""
        where = f"{self.model}, {self.split}, {self.corruption}, {self.stage}"
        return f"{where}: {cell['part']} {cell['role']}".rstrip()


def list_groups(averages: Rows) -> list[Group]:
    """The groups that have results, those of named steps and of reversed ways of asking first."""
    cells: dict[tuple[str, ...], dict[tuple[str, int, int, str, str], Row]] = {}
    for row in averages:
        key = tuple(row[name] for name in ("model", "kind", "split", "corruption", "stage"))
        at = (row["part"], row["layer"], row["head"], row["role"], row["control"])
        cells.setdefault(key, {})[at] = row
    models = distinct(averages, "model")
    splits = order_splits(distinct(averages, "split"))
    has_total = (TOTAL, -1, -1, "", RESULT)
    groups = [Group(*key, own) for key, own in cells.items() if has_total in own]

    def rank(group: Group) -> tuple[Any, ...]:
        place = (splits.index(group.split), models.index(group.model), group.corruption)
        return (group.stage.isdecimal(), *place, rank_stage(group.stage))

    return sorted(groups, key=rank)


def rank_stage(stage: str) -> int:
    """Steps by name come first, numbered ones in their order."""
    return STEPS.index(stage) if stage in STEPS else len(STEPS) + int(stage)


def judge(summary: Summary, settings: Tracing) -> Sequence[Verdict]:
    """What the corruption takes, which cells are above their placebos, which groups differ."""
    verdicts = []
    for group in list_groups(summary["averages"]):
        total = group.total
        verdicts.append(judge_interval(group.claim(total), to_interval(total), total["facts"]))
        verdicts += [_judge_cell(group, cell) for cell in group.peaks()]
    for test in summary["tests"]:
        value = to_interval(test)
        verdicts.append(judge_p(claim_test(test), value, test["p_holm"], test["facts"]))
    return verdicts


def _judge_cell(group: Group, cell: Row) -> Verdict:
    """Whether a cell is above 0 and above every placebo that was measured beside it."""
    claim, value, facts = group.claim(cell), to_interval(cell), cell["facts"]
    if facts < ENOUGH:
        return Verdict(claim, "too few", value, facts)
    placebos = [to_interval(row) for row in group.placebos(cell).values()]
    outcome = "above" if is_clear(value, placebos, facts) else "unsettled"
    return Verdict(claim, outcome, value, facts)


def claim_test(test: Row) -> str:
    """The name of the verdict on a difference between two groups."""
    pair = f"{test['model']}, {test['split']} − {test['other_model']}, {test['other_split']}"
    where = f"{test['corruption']}, {test['stage']}"
    return f"{pair}, {where}: {test['part']} {test['role']}".rstrip()

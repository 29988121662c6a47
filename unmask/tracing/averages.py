"""Averages over facts: AIE and ATE with paired intervals, controls beside them, differences tested.

A prompt's effect at a role is the mean over its tokens of that role, against the prompt's own
baseline; phrasings of one fact are averaged first, so that facts are what is counted.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.tracing.bootstrap import Difference, adjust, compare, mean_interval, resample
from unmask.tracing.roles import PLACEBO_ROLES
from unmask.tracing.table import RESULT

if TYPE_CHECKING:
    import pyarrow

SCHEMA = "trace-averages/1"
TESTS_SCHEMA = "trace-tests/1"
OTHER_TOKEN = "other token"
"""The control that restores a prompt token which is not the subject's."""
TOTAL = "total"

_GROUP = ("direction", "trained", "kind", "corruption", "stage", "control")
_PROMPT = ("fact", "phrasing", *_GROUP)
Group = tuple[str, ...]
Cell = tuple[str, int, int, str]
"""Part, layer, head and role."""
Effects = dict[Group, dict[Cell, dict[str, float]]]
"""An effect for each group, cell and fact."""


def find_effects(table: "pyarrow.Table", mode: str = "restore") -> tuple[Effects, dict]:
    """Each fact's effect in each cell, and how many prompts each group has."""
    cells = (*_PROMPT, "part", "layer", "head", "role")
    rows = table.group_by(list(cells)).aggregate([("value", "mean")]).to_pylist()
    clean: dict[tuple, float] = {}
    corrupted: dict[tuple, float] = {}
    for row in rows:
        prompt = tuple(row[name] for name in _PROMPT)
        if row["part"] == "clean":
            clean[prompt] = row["value_mean"]
        elif row["part"] == "corrupted":
            corrupted[prompt] = row["value_mean"]
    found: dict[tuple, list[float]] = defaultdict(list)
    for prompt in clean:
        found[*_split(prompt), (TOTAL, -1, -1, "")].append(clean[prompt] - corrupted[prompt])
    placebo: dict[tuple, list[float]] = defaultdict(list)
    for row in rows:
        prompt, part = tuple(row[name] for name in _PROMPT), row["part"]
        if part in ("clean", "corrupted"):
            continue
        value = row["value_mean"]
        if part != "flow":
            value = clean[prompt] - value if mode == "ablate" else value - corrupted[prompt]
        group, fact = _split(prompt)
        found[group, fact, (part, row["layer"], row["head"], row["role"])].append(value)
        if group[-1] == RESULT and row["role"] in PLACEBO_ROLES:
            cell = (part, row["layer"], row["head"], "placebo")
            placebo[(*group[:-1], OTHER_TOKEN), fact, cell].append(value)
    effects: Effects = defaultdict(lambda: defaultdict(dict))
    for (group, fact, cell), values in [*found.items(), *placebo.items()]:
        effects[group][cell][fact] = float(np.mean(values))
    prompts: dict[Group, set] = defaultdict(set)
    for prompt in clean:
        prompts[_split(prompt)[0]].add(prompt)
    return effects, {group: len(each) for group, each in prompts.items()}


def average(table: "pyarrow.Table", mode: str = "restore", seed: int = 0) -> list[dict[str, Any]]:
    """AIE of every cell of every group, and ATE as part `total`, with intervals over facts.

    No row pools over `trained`, directions, kinds of model, corruptions, steps or controls.
    """
    effects, prompts = find_effects(table, mode)
    rows = []
    for group, cells in effects.items():
        facts = sorted({fact for values in cells.values() for fact in values})
        values = np.array([[each.get(fact, np.nan) for each in cells.values()] for fact in facts])
        mean, low, high = mean_interval(values, resample(len(facts), seed))
        for i, (part, layer, head, role) in enumerate(cells):
            rows.append(
                dict(zip(_GROUP, group, strict=True))
                | {"part": part, "layer": layer, "head": head, "role": role}
                | {"facts": len(cells[part, layer, head, role])}
                | {"prompts": prompts.get((*group[:-1], RESULT), 0)}
                | {"mean": float(mean[i]), "low": float(low[i]), "high": float(high[i])}
            )
    return rows


def compare_groups(effects: Effects, seed: int = 0) -> list[dict[str, Any]]:
    """Forward against reverse, diffusion against autoregressive: pairs of groups, one by one.

    The two share corruption and step, and differ in kind of model, or else in the way asked.
    What is compared is the effect's mean over layers, part by part and role by role; `p_holm` is
    corrected for all comparisons of one pair.
    """
    rows = []
    for one, other, what in _find_pairs(effects):
        found: list[tuple[str, str, Difference]] = []
        for part, role in _find_roles(effects[one]):
            means = [_average_layers(effects[group], part, role) for group in (one, other)]
            difference = compare(*means, seed=seed)
            if difference is not None:
                found.append((part, role, difference))
        corrected = adjust([difference.p for *_, difference in found])
        for (part, role, difference), p_holm in zip(found, corrected, strict=True):
            rows.append(
                {"what": what, "corruption": one[3], "stage": one[4]}
                | {"one": _name(one), "other": _name(other)}
                | {"part": part, "role": role}
                | vars(difference)
                | {"p_holm": p_holm}
            )
    return rows


def _find_pairs(groups: Iterable[Group]) -> Iterable[tuple[Group, Group, str]]:
    results = sorted(group for group in groups if group[-1] == RESULT)
    for i, one in enumerate(results):
        for other in results[i + 1 :]:
            (direction, trained, kind, *how, _), (d2, t2, k2, *how2, _) = one, other
            if how != how2:
                continue
            if kind != k2 and (direction, trained) == (d2, t2):
                yield one, other, "kind"
            elif kind == k2 and direction != d2 and trained == t2:
                yield one, other, "direction"
            elif kind == k2 and trained != t2 and direction == d2:
                yield one, other, "trained"
            elif kind == k2 and direction != d2 and trained != t2:
                yield one, other, "asked way"


def _average_layers(cells: Mapping[Cell, dict[str, float]], part: str, role: str) -> dict:
    values: dict[str, list[float]] = defaultdict(list)
    for (its_part, _, head, its_role), each in cells.items():
        if (its_part, its_role) == (part, role) and head < 0:
            for fact, value in each.items():
                values[fact].append(value)
    return {fact: float(np.mean(layers)) for fact, layers in values.items()}


def _find_roles(cells: Iterable[Cell]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((part, role) for part, _, head, role in cells if head < 0))


def _split(prompt: tuple) -> tuple[Group, str]:
    """The group of a prompt, and its fact."""
    fact, _, *group = prompt
    return tuple(group), fact


def _name(group: Group) -> str:
    direction, trained, kind, *_ = group
    return f"{kind} {direction} {trained}"

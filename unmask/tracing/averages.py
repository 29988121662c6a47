"""Averages over facts: AIE and ATE with paired intervals, controls beside them, differences tested.

A prompt's effect at a role is the mean over its tokens of that role, against the prompt's own
baseline; phrasings of one fact are averaged first, so that facts are what is counted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.evaluation.statistics import Difference, compare, holm, mean_intervals
from unmask.tracing.roles import PLACEBO_ROLES
from unmask.tracing.table import ASKED, RESULT

if TYPE_CHECKING:
    import pyarrow

SCHEMA = "trace-averages/1"
TESTS_SCHEMA = "trace-tests/1"
OTHER_TOKEN = "other token"
"""The control that restores a prompt token which is not the subject's."""
TOTAL = "total"

_GROUP = ("direction", "trained", "kind", "corruption", "stage", "control")
_PROMPT = ("fact", "phrasing", *_GROUP)
_CELL = ("part", "layer", "head", "role")
Group = tuple[str, ...]
Cell = tuple[str, int, int, str]
"""Part, layer, head and role."""


@dataclass(frozen=True)
class Panel:
    """The effects of one group: a row a fact, a column a cell; NaN where a fact lacks a role."""

    facts: list[str]
    cells: list[Cell]
    effects: np.ndarray
    prompts: int

    def average_layers(self, part: str, role: str) -> dict[str, float]:
        """Each fact's effect at a role, mean over layers; none where the group lacks the role."""
        mine = [
            i
            for i, (its_part, _, head, its_role) in enumerate(self.cells)
            if (its_part, its_role) == (part, role) and head < 0
        ]
        if not mine:
            return {}
        rows = zip(self.facts, self.effects[:, mine], strict=True)
        return {fact: float(row.mean()) for fact, row in rows if np.isfinite(row).all()}


def find_effects(table: "pyarrow.Table", mode: str = "restore") -> dict[Group, Panel]:
    """Each fact's effect in each cell, group by group."""
    # One thread: the order of groups, and of sums, is then that of the table.
    grouped = table.group_by([*_PROMPT, *_CELL], use_threads=False)
    means = grouped.aggregate([("value", "mean")])
    value = means["value_mean"].to_numpy()
    prompt, prompts = _number(means, _PROMPT)
    cell, cells = _number(means, _CELL)
    parts = np.array([each[0] for each in cells], dtype=object)[cell]
    clean, corrupted = (_spread(value, prompt, parts == part, prompts) for part in _ENDS)
    effect = clean[prompt] - value if mode == "ablate" else value - corrupted[prompt]
    effect = np.where(np.isin(parts, ("flow", ASKED)), value, effect)
    rows = [(prompt, cell, effect, ~np.isin(parts, _ENDS))]
    # The total effect is one more cell of every prompt.
    cells.append((TOTAL, -1, -1, ""))
    everyone = np.arange(len(prompts))
    total = np.full(len(prompts), len(cells) - 1)
    rows.append((everyone, total, clean - corrupted, np.isfinite(clean)))
    found: dict[Group, Panel] = {}
    for control, chosen in ((None, rows), (OTHER_TOKEN, [rows[0]])):
        found |= _make_panels(chosen, prompts, cells, control)
    return found


_ENDS = ["clean", "corrupted"]
"""Parts that are no cells but what cells stand between."""


def _make_panels(
    rows: Sequence[tuple[np.ndarray, ...]],
    prompts: Sequence[tuple],
    cells: Sequence[Cell],
    control: str | None,
) -> dict[Group, Panel]:
    """Effects by group; as the control of other tokens, those of the placebo roles alone."""
    prompt, cell, effect, wanted = (np.concatenate(each) for each in zip(*rows, strict=True))
    if control is not None:
        placebo = np.array([each[3] in PLACEBO_ROLES for each in cells])
        result = np.array([each[-1] == RESULT for each in prompts])
        wanted = wanted & placebo[cell] & result[prompt]
        renamed = [(part, layer, head, "placebo") for part, layer, head, _ in cells]
        cells = list(dict.fromkeys(renamed))
        order = {each: i for i, each in enumerate(cells)}
        cell = np.array([order[each] for each in renamed])[cell]
    prompt, cell, effect = prompt[wanted], cell[wanted], effect[wanted]
    groups: dict[Group, list[int]] = {}
    for i, (_, _, *group) in enumerate(prompts):
        groups.setdefault(tuple(group), []).append(i)
    panels = {}
    for group, members in groups.items():
        mine = np.isin(prompt, members)
        if not mine.any():
            continue
        names = sorted({prompts[i][0] for i in members})
        row_of = np.zeros(len(prompts), dtype=int)
        row_of[members] = [names.index(prompts[i][0]) for i in members]
        columns, column = np.unique(cell[mine], return_inverse=True)
        total, count = np.zeros((2, len(names), len(columns)))
        np.add.at(total, (row_of[prompt[mine]], column), effect[mine])
        np.add.at(count, (row_of[prompt[mine]], column), 1)
        with np.errstate(invalid="ignore"):
            effects = total / count
        key = group if control is None else (*group[:-1], control)
        panels[key] = Panel(names, [cells[i] for i in columns], effects, len(members))
    return panels


def _number(table: "pyarrow.Table", names: Sequence[str]) -> tuple[np.ndarray, list[tuple]]:
    """Which distinct tuple of values each row has in some columns, and those tuples."""
    code, sizes, values = np.zeros(table.num_rows, dtype=np.int64), [], []
    for name in names:
        column = table[name].combine_chunks().dictionary_encode()
        code = code * len(column.dictionary) + column.indices.to_numpy()
        sizes.append(len(column.dictionary))
        values.append(column.dictionary.to_pylist())
    distinct, number = np.unique(code, return_inverse=True)
    places = np.unravel_index(distinct, sizes)
    columns = [[kept[i] for i in each] for kept, each in zip(values, places, strict=True)]
    return number, list(zip(*columns, strict=True))


def _spread(
    value: np.ndarray, prompt: np.ndarray, chosen: np.ndarray, prompts: Sequence[tuple]
) -> np.ndarray:
    """The chosen rows' values by prompt."""
    spread = np.full(len(prompts), np.nan)
    spread[prompt[chosen]] = value[chosen]
    return spread


def average(table: "pyarrow.Table", mode: str = "restore") -> list[dict[str, Any]]:
    """AIE of every cell of every group, and ATE as part `total`, with intervals over facts.

    No row pools over `trained`, directions, kinds of model, corruptions, steps or controls.
    """
    rows = []
    for group, panel in find_effects(table, mode).items():
        mean, low, high = mean_intervals(panel.effects)
        count = np.isfinite(panel.effects).sum(0)
        for i, cell in enumerate(panel.cells):
            rows.append(
                dict(zip(_GROUP, group, strict=True))
                | dict(zip(_CELL, cell, strict=True))
                | {"facts": int(count[i]), "prompts": panel.prompts}
                | {"mean": float(mean[i]), "low": float(low[i]), "high": float(high[i])}
            )
    return rows


def compare_groups(effects: dict[Group, Panel], seed: int = 0) -> list[dict[str, Any]]:
    """Forward against reverse, diffusion against autoregressive: pairs of groups, one by one.

    The two share corruption and step, and differ in kind of model, or else in the way asked.
    What is compared is the effect's mean over layers, part by part and role by role; `p_holm` is
    corrected for all comparisons of one pair.
    """
    rows = []
    for one, other, what in _find_pairs(effects):
        found: list[tuple[str, str, Difference]] = []
        for part, role in _find_roles(effects[one].cells):
            means = [effects[group].average_layers(part, role) for group in (one, other)]
            difference = compare(*means, seed=seed)
            if difference is not None:
                found.append((part, role, difference))
        corrected = holm([difference.p for *_, difference in found])
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


def _find_roles(cells: Iterable[Cell]) -> list[tuple[str, str]]:
    found = dict.fromkeys((part, role) for part, _, head, role in cells if head < 0)
    return [each for each in found if each[0] != ASKED]


def _name(group: Group) -> str:
    direction, trained, kind, *_ = group
    return f"{kind} {direction} {trained}"

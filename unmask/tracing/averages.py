"""Averages over facts: AIE and ATE with intervals, controls beside them, differences tested.

A prompt's effect at a role is the mean over its tokens of that role, against the prompt's own
baseline; phrasings and training seeds of one fact are averaged first, so that facts are counted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.evaluation.statistics import Difference, compare, holm, mean_intervals
from unmask.tracing.table import ASKED, CLEAN, CORRUPTED, FLOW, PLACEBO_ROLES, RESULT

if TYPE_CHECKING:
    import pyarrow

OTHER_TOKEN, PLACEBO = "other token", "placebo"
"""The control that restores a prompt token which is not the subject's, and the role it has."""
TOTAL = "total"
"""The part of the rows that hold the total effect."""
GROUP = ("model", "kind", "split", "corruption", "stage", "control")
_PROMPT = ("fact", "phrasing", "seed", *GROUP)
_CELL = ("part", "layer", "head", "role")
GroupKey = tuple[str, ...]
CellKey = tuple[str, int, int, str]
"""Part, layer, head and role."""


@dataclass(frozen=True)
class GroupEffects:
    """The effects of one group, a row per fact, a column per cell; NaN where a fact has none."""

    facts: list[str]
    cells: list[CellKey]
    effects: np.ndarray
    prompts: int

    def average_layers(self, part: str, role: str) -> dict[str, float]:
        """Each fact's effect at a role, mean over layers; none where the group lacks the role."""
        columns = [
            i
            for i, cell in enumerate(self.cells)
            if (cell[0], cell[3]) == (part, role) and cell[2] < 0
        ]
        if not columns:
            return {}
        rows = zip(self.facts, self.effects[:, columns], strict=True)
        return {fact: float(row.mean()) for fact, row in rows if np.isfinite(row).all()}


def find_effects(table: "pyarrow.Table", mode: str = "restore") -> dict[GroupKey, GroupEffects]:
    """Each fact's effect in each cell, group by group."""
    # 1. The mean of every cell of every prompt, over tokens of its role and samples. One thread:
    #    the order of groups, and of sums, is then that of the table.
    grouped = table.group_by([*_PROMPT, *_CELL], use_threads=False)
    means = grouped.aggregate([("value", "mean")])
    value = means["value_mean"].to_numpy()
    prompt, prompts = _number(means, _PROMPT)
    cell, cells = _number(means, _CELL)
    part, role = (np.array([each[i] for each in cells], dtype=object)[cell] for i in (0, 3))
    # 2. Its effect, against the prompt's own clean and corrupted scores.
    clean, corrupted = np.full((2, len(prompts)), np.nan)
    for end, scores in ((CLEAN, clean), (CORRUPTED, corrupted)):
        scores[prompt[part == end]] = value[part == end]
    effect = clean[prompt] - value if mode == "ablate" else value - corrupted[prompt]
    effect = np.where(np.isin(part, (FLOW, ASKED)), value, effect)
    is_cell = ~np.isin(part, (CLEAN, CORRUPTED))
    panels = _make_panels(
        # The total effect is one more cell of every prompt.
        np.append(prompt[is_cell], np.flatnonzero(np.isfinite(clean))),
        np.append(cell[is_cell], np.full(np.isfinite(clean).sum(), len(cells))),
        np.append(effect[is_cell], (clean - corrupted)[np.isfinite(clean)]),
        prompts,
        [*cells, (TOTAL, -1, -1, "")],
    )
    # 3. The control of other tokens: effects of the placebo roles, as one role.
    is_result = np.array([each[-1] == RESULT for each in prompts])[prompt]
    chosen = is_cell & is_result & np.isin(role, PLACEBO_ROLES)
    renamed = [(*each[:3], PLACEBO) for each in cells]
    number = {each: i for i, each in enumerate(dict.fromkeys(renamed))}
    cell = np.array([number[each] for each in renamed])[cell]
    others = _make_panels(prompt[chosen], cell[chosen], effect[chosen], prompts, list(number))
    return panels | {(*group[:-1], OTHER_TOKEN): panel for group, panel in others.items()}


def _make_panels(
    prompt: np.ndarray,
    cell: np.ndarray,
    effect: np.ndarray,
    prompts: Sequence[tuple],
    cells: Sequence[CellKey],
) -> dict[GroupKey, GroupEffects]:
    """Effects by group, given the numbers of the prompt and the cell that each effect is of."""
    groups: dict[GroupKey, list[int]] = {}
    for i, (_, _, _, *group) in enumerate(prompts):
        groups.setdefault(tuple(group), []).append(i)
    panels = {}
    for group, members in groups.items():
        is_member = np.isin(prompt, members)
        if not is_member.any():
            continue
        names = sorted({prompts[i][0] for i in members})
        row_of = np.zeros(len(prompts), dtype=int)
        row_of[members] = [names.index(prompts[i][0]) for i in members]
        columns, column = np.unique(cell[is_member], return_inverse=True)
        total, count = np.zeros((2, len(names), len(columns)))
        np.add.at(total, (row_of[prompt[is_member]], column), effect[is_member])
        np.add.at(count, (row_of[prompt[is_member]], column), 1)
        with np.errstate(invalid="ignore"):
            effects = total / count
        panels[group] = GroupEffects(names, [cells[i] for i in columns], effects, len(members))
    return panels


def _number(table: "pyarrow.Table", names: Sequence[str]) -> tuple[np.ndarray, list[tuple]]:
    """Which distinct tuple of values each row has in some columns, and those tuples."""
    columns = [table[name].combine_chunks().dictionary_encode() for name in names]
    sizes = [len(column.dictionary) for column in columns]
    code = np.ravel_multi_index([column.indices.to_numpy() for column in columns], sizes)
    distinct, number = np.unique(code, return_inverse=True)
    values = [column.dictionary.to_pylist() for column in columns]
    indices = zip(*np.unravel_index(distinct, sizes), strict=True)
    return number, [tuple(v[i] for v, i in zip(values, each, strict=True)) for each in indices]


def average(effects: dict[GroupKey, GroupEffects]) -> list[dict[str, Any]]:
    """AIE of every cell of every group, and ATE as part `total`, with intervals over facts.

    No row pools over models, splits, corruptions, steps or controls.
    """
    rows = []
    for group, panel in effects.items():
        mean, low, high = mean_intervals(panel.effects)
        count = np.isfinite(panel.effects).sum(0)
        for i, cell in enumerate(panel.cells):
            rows.append(
                dict(zip(GROUP, group, strict=True))
                | dict(zip(_CELL, cell, strict=True))
                | {"facts": int(count[i]), "prompts": panel.prompts}
                | {"mean": float(mean[i]), "low": float(low[i]), "high": float(high[i])}
            )
    return rows


def compare_groups(effects: dict[GroupKey, GroupEffects], seed: int = 0) -> list[dict[str, Any]]:
    """Differences between pairs of groups: two models asked alike, or one model asked two ways.

    The two share corruption and step. What is compared is the effect's mean over layers, part by
    part and role by role; `p_holm` is corrected for all comparisons of one pair.
    """
    rows = []
    for one, other in _find_pairs(effects):
        differences: list[tuple[str, str, Difference]] = []
        for part, role in _find_roles(effects[one].cells):
            means = [effects[group].average_layers(part, role) for group in (one, other)]
            difference = compare(*means, seed=seed)
            if difference is not None:
                differences.append((part, role, difference))
        corrected = holm([difference.p for *_, difference in differences])
        for (part, role, difference), p_holm in zip(differences, corrected, strict=True):
            rows.append(
                {"model": one[0], "split": one[2], "other_model": other[0], "other_split": other[2]}
                | {"corruption": one[3], "stage": one[4], "part": part, "role": role}
                | vars(difference)
                | {"p_holm": p_holm}
            )
    return rows


def _find_pairs(groups: Iterable[GroupKey]) -> Iterable[tuple[GroupKey, GroupKey]]:
    """Pairs that differ in the model or in the split; models stay in the order they are met."""
    results = [group for group in groups if group[-1] == RESULT]
    models = list(dict.fromkeys(group[0] for group in results))
    results.sort(key=lambda group: (models.index(group[0]), group))
    for i, one in enumerate(results):
        for other in results[i + 1 :]:
            is_same_way = one[3:] == other[3:]
            if is_same_way and (one[0] == other[0]) != (one[2] == other[2]):
                yield one, other


def _find_roles(cells: Iterable[CellKey]) -> list[tuple[str, str]]:
    roles = dict.fromkeys((part, role) for part, _, head, role in cells if head < 0)
    return [each for each in roles if each[0] != ASKED]

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
_ENDS = [CLEAN, CORRUPTED]
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
        columns = [
            i
            for i, cell in enumerate(self.cells)
            if (cell[0], cell[3]) == (part, role) and cell[2] < 0
        ]
        if not columns:
            return {}
        rows = zip(self.facts, self.effects[:, columns], strict=True)
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
    effect = np.where(np.isin(parts, (FLOW, ASKED)), value, effect)
    rows = [(prompt, cell, effect, ~np.isin(parts, _ENDS))]
    # The total effect is one more cell of every prompt.
    cells.append((TOTAL, -1, -1, ""))
    everyone = np.arange(len(prompts))
    total = np.full(len(prompts), len(cells) - 1)
    rows.append((everyone, total, clean - corrupted, np.isfinite(clean)))
    panels: dict[Group, Panel] = {}
    for control, chosen in ((None, rows), (OTHER_TOKEN, [rows[0]])):
        panels |= _make_panels(chosen, prompts, cells, control)
    return panels


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
        renamed = [(part, layer, head, PLACEBO) for part, layer, head, _ in cells]
        cells = list(dict.fromkeys(renamed))
        order = {each: i for i, each in enumerate(cells)}
        cell = np.array([order[each] for each in renamed])[cell]
    prompt, cell, effect = prompt[wanted], cell[wanted], effect[wanted]
    groups: dict[Group, list[int]] = {}
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


def average(effects: dict[Group, Panel]) -> list[dict[str, Any]]:
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


def compare_groups(effects: dict[Group, Panel], seed: int = 0) -> list[dict[str, Any]]:
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


def _find_pairs(groups: Iterable[Group]) -> Iterable[tuple[Group, Group]]:
    """Pairs that differ in the model or in the split; models stay in the order they are met."""
    results = [group for group in groups if group[-1] == RESULT]
    models = list(dict.fromkeys(group[0] for group in results))
    results.sort(key=lambda group: (models.index(group[0]), group))
    for i, one in enumerate(results):
        for other in results[i + 1 :]:
            is_same_way = one[3:] == other[3:]
            if is_same_way and (one[0] == other[0]) != (one[2] == other[2]):
                yield one, other


def _find_roles(cells: Iterable[Cell]) -> list[tuple[str, str]]:
    roles = dict.fromkeys((part, role) for part, _, head, role in cells if head < 0)
    return [each for each in roles if each[0] != ASKED]

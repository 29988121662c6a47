"""Averages over facts: AIE and ATE with intervals, controls beside them, differences tested.

A prompt's effect at a role is the mean over its tokens of that role, against the prompt's own
baseline; phrasings and training seeds of one fact are averaged first, so that facts are counted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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
PROMPT = ("fact", "phrasing", "seed", *GROUP)
_TEXT = ("fact", "phrasing", "seed", "model", "split")
"""What the rows of a prompt have in common, which stand together."""
CELL = ("part", "layer", "head", "role")
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

    def take(self, cells: Mapping[str, CellKey]) -> dict[str, float]:
        """Each fact's effect in a cell of its own; facts that have none there are left out."""
        rows, columns = self._places
        values = {
            fact: float(self.effects[rows[fact], columns[cell]])
            for fact, cell in cells.items()
            if fact in rows and cell in columns
        }
        return {fact: value for fact, value in values.items() if np.isfinite(value)}

    @cached_property
    def _places(self) -> tuple[dict[str, int], dict[CellKey, int]]:
        """The row of each fact, and the column of each cell."""
        rows = {fact: i for i, fact in enumerate(self.facts)}
        return rows, {cell: i for i, cell in enumerate(self.cells)}

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


def find_effects(
    pieces: "pyarrow.Table | Iterable[pyarrow.Table]", mode: str = "restore"
) -> dict[GroupKey, GroupEffects]:
    """Each fact's effect in each cell, group by group.

    Of a table that is given in pieces one is held at a time, and of every prompt one number for
    each cell. Rows of one prompt stand together.
    """
    numbers = _Numbers(PROMPT), _Numbers(CELL)
    effects_of_pieces = [
        _find_effects_of_prompts(piece, *numbers, mode) for piece in _cut_between_prompts(pieces)
    ]
    if not effects_of_pieces:
        return {}
    prompt, cell, effect, total = map(np.concatenate, zip(*effects_of_pieces, strict=True))
    (order, prompts), (cell_order, cells) = (each.sort() for each in numbers)
    total, prompt, cell = total[order], np.argsort(order)[prompt], np.argsort(cell_order)[cell]
    has_total = np.isfinite(total)
    panels = _make_panels(
        # The total effect is one more cell of every prompt.
        np.append(prompt, np.flatnonzero(has_total)),
        np.append(cell, np.full(has_total.sum(), len(cells))),
        np.append(effect, total[has_total]),
        prompts,
        [*cells, (TOTAL, -1, -1, "")],
    )
    # The control of other tokens: effects of the placebo roles, as one role.
    is_result = np.array([each[-1] == RESULT for each in prompts], dtype=bool)
    is_placebo = np.array([each[-1] in PLACEBO_ROLES for each in cells], dtype=bool)
    chosen = is_result[prompt] & is_placebo[cell]
    renamed = [(*each[:3], PLACEBO) for each in cells]
    number = {each: i for i, each in enumerate(dict.fromkeys(renamed))}
    cell = np.array([number[each] for each in renamed])[cell[chosen]]
    others = _make_panels(prompt[chosen], cell, effect[chosen], prompts, list(number))
    return panels | {(*group[:-1], OTHER_TOKEN): panel for group, panel in others.items()}


def _find_effects_of_prompts(
    table: "pyarrow.Table", prompts: "_Numbers", cells: "_Numbers", mode: str
) -> tuple[np.ndarray, ...]:
    """The numbers of the prompt and of the cell that each effect is of, the effects, and the total
    effect of each prompt."""
    # 1. The mean of every cell of every prompt, over tokens of its role and samples. One thread:
    #    the order of groups, and of sums, is then that of the table.
    grouped = table.group_by([*PROMPT, *CELL], use_threads=False)
    means = grouped.aggregate([("value", "mean")])
    value = means["value_mean"].to_numpy()
    before = len(prompts.known)
    prompt, cell = prompts.number(means), cells.number(means)
    own = prompt - before
    assert own.min() >= 0, "rows of one prompt stand apart"
    part = np.array([each[0] for each in cells.known], dtype=object)[cell]
    # 2. Its effect, against the prompt's own clean and corrupted scores.
    clean, corrupted = np.full((2, len(prompts.known) - before), np.nan)
    for end, scores in ((CLEAN, clean), (CORRUPTED, corrupted)):
        scores[own[part == end]] = value[part == end]
    effect = clean[own] - value if mode != "restore" else value - corrupted[own]
    effect = np.where(np.isin(part, (FLOW, ASKED)), value, effect)
    is_cell = ~np.isin(part, (CLEAN, CORRUPTED))
    return prompt[is_cell], cell[is_cell], effect[is_cell], clean - corrupted


class _Numbers:
    """Numbers for the distinct tuples of values that tables have in some columns."""

    def __init__(self, names: Sequence[str]):
        self.names = names
        self.known: dict[tuple, int] = {}
        self.codes: list[dict[Any, int]] = [{} for _ in names]
        """The values of each column, numbered as they are met."""

    def number(self, table: "pyarrow.Table") -> np.ndarray:
        """The number of the tuple that each row has; new tuples are numbered as they are met."""
        columns = [table[name].combine_chunks().dictionary_encode() for name in self.names]
        sizes = [len(column.dictionary) for column in columns]
        code = np.ravel_multi_index([column.indices.to_numpy() for column in columns], sizes)
        distinct, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        values = [column.dictionary.to_pylist() for column in columns]
        for column, codes in zip(values, self.codes, strict=True):
            for value in column:
                codes.setdefault(value, len(codes))
        numbers = np.empty(len(distinct), dtype=np.int32)
        for i in np.argsort(first):
            at = np.unravel_index(distinct[i], sizes)
            each = tuple(column[j] for column, j in zip(values, at, strict=True))
            numbers[i] = self.known.setdefault(each, len(self.known))
        return numbers[inverse]

    def sort(self) -> tuple[list[int], list[tuple]]:
        """The numbers and the tuples, by when the values of each column were first met."""
        known = list(self.known)
        codes = [
            [column[value] for column, value in zip(self.codes, each, strict=True)]
            for each in known
        ]
        order = sorted(range(len(known)), key=codes.__getitem__)
        return order, [known[i] for i in order]


def _cut_between_prompts(
    pieces: "pyarrow.Table | Iterable[pyarrow.Table]",
) -> "Iterator[pyarrow.Table]":
    """The rows in their order, in pieces that hold all rows of a prompt."""
    import pyarrow

    held: pyarrow.Table | None = None
    for piece in [pieces] if isinstance(pieces, pyarrow.Table) else pieces:
        if not piece.num_rows:
            continue
        if held is not None:
            columns = (held[name].to_numpy() == piece[name][0].as_py() for name in _TEXT)
            goes_on = np.logical_and.reduce(list(columns))
            cut = 0 if goes_on.all() else held.num_rows - int(np.argmin(goes_on[::-1]))
            if cut:
                yield held.slice(0, cut)
            piece = pyarrow.concat_tables([held.slice(cut), piece])
        held = piece
    if held is not None:
        yield held


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
                | dict(zip(CELL, cell, strict=True))
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
    for one, other in find_pairs(effects):
        differences: list[tuple[str, str, Difference]] = []
        for part, role in list_part_roles(effects[one].cells):
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


def find_pairs(groups: Iterable[GroupKey]) -> Iterable[tuple[GroupKey, GroupKey]]:
    """Pairs that differ in the model or in the split; models stay in the order they are met."""
    results = [group for group in groups if group[-1] == RESULT]
    models = list(dict.fromkeys(group[0] for group in results))
    results.sort(key=lambda group: (models.index(group[0]), group))
    for i, one in enumerate(results):
        for other in results[i + 1 :]:
            is_same_way = one[3:] == other[3:]
            if is_same_way and (one[0] == other[0]) != (one[2] == other[2]):
                yield one, other


def list_part_roles(cells: Iterable[CellKey]) -> list[tuple[str, str]]:
    roles = dict.fromkeys((part, role) for part, _, head, role in cells if head < 0)
    return [each for each in roles if each[0] != ASKED]

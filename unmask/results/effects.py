"""Effects by fact: a score in a cell minus the score that its prompt starts from.

    rows                               scores, by prompt and cell
    → list_effects(rows, layout, …)    an effect for each prompt and cell
    → .panels()                        by group, a row for each fact and a column for each cell
    → panel.estimate(total)            means and shares of the total effect, with intervals
    → panel.choose_cells(cells)        the best cells of each half of the facts, for the other half
    → compare_sides(one, other)        two groups: differences, tested and corrected

An `EffectLayout` says which columns name the group, the prompt and the cell, and which cell is the
start. Phrasings and training seeds of a fact are averaged first, so that facts are counted. Shares
are ratios of two means over the facts that have both, with the total's own variation in their
intervals.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from unmask.blocks import tidy
from unmask.evaluation.equivalence import divide, find_shares, measure_equivalence
from unmask.evaluation.statistics import ALPHA, compare, equivalence_p, holm, mean_intervals
from unmask.results.summaries import name_likeness

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.compute

GroupKey = tuple[str, ...]
CellKey = tuple[Any, ...]
FactValues = Mapping[str, float]
"""A value for each fact."""
SHARE = ("share", "share_low", "share_high")


@dataclass(frozen=True, kw_only=True)
class EffectLayout:
    """Which columns of a table say what its scores are of."""

    group: Sequence[str]
    """What is never averaged over."""
    prompt: Sequence[str] = ("fact", "direction", "phrasing", "seed")
    """What tells the prompts of a group apart, the fact first."""
    cell: Sequence[str]
    start: CellKey | None = None
    """The cell of each prompt that its effects are against; None: scores are effects already."""
    is_loss: bool = False
    """An effect is what is lost from the start, instead of what is gained."""
    unchanged: Collection[Any] = ()
    """Values of a cell's first column whose scores are effects already."""


@dataclass(frozen=True)
class GroupEffects:
    """The effects of one group, a row per fact, a column per cell; NaN where a fact has none."""

    facts: list[str]
    cells: list[CellKey]
    effects: Float[np.ndarray, "F C"]
    prompts: int

    @cached_property
    def _places(self) -> tuple[dict[str, int], dict[CellKey, int]]:
        """The row of each fact, and the column of each cell."""
        rows = {fact: i for i, fact in enumerate(self.facts)}
        return rows, {cell: i for i, cell in enumerate(self.cells)}

    def take(self, cells: Mapping[str, CellKey]) -> dict[str, float]:
        """Each fact's effect in a cell of its own; facts that have none there are left out."""
        rows, columns = self._places
        values = {
            fact: float(self.effects[rows[fact], columns[cell]])
            for fact, cell in cells.items()
            if fact in rows and cell in columns
        }
        return {fact: value for fact, value in values.items() if np.isfinite(value)}

    def read(self, cell: CellKey) -> dict[str, float]:
        """Each fact's effect in one cell."""
        return self.take(dict.fromkeys(self.facts, cell))

    def average(self, cells: Sequence[CellKey]) -> dict[str, float]:
        """Each fact's mean over some cells; facts that lack one of them are left out."""
        places = self._places[1]
        if not cells or any(cell not in places for cell in cells):
            return {}
        columns = [places[cell] for cell in cells]
        rows = zip(self.facts, self.effects[:, columns], strict=True)
        return {fact: float(row.mean()) for fact, row in rows if np.isfinite(row).all()}

    def share(self, total: CellKey) -> "GroupEffects":
        """Shares of the total effect: values whose mean is the ratio of two means."""
        totals = self.effects[:, [self._places[1][total]]]
        return replace(self, effects=find_shares(self.effects, totals))

    def estimate(self, total: CellKey | None = None) -> Iterator[tuple[CellKey, dict[str, Any]]]:
        """Each cell's mean with its interval by fact; and its share of the total, if one is named.

        A share's total is over the facts that have the cell.
        """
        ends = dict(zip(tidy.ENDS, mean_intervals(self.effects), strict=True))
        if total is not None:
            ends |= dict(zip(SHARE, mean_intervals(self.share(total).effects), strict=True))
        ends["facts"] = np.isfinite(self.effects).sum(0)
        for i, cell in enumerate(self.cells):
            yield cell, {name: column[i].item() for name, column in ends.items()}

    def choose_cells(
        self,
        cells: Sequence[CellKey],
        most: int = 1,
        halves: Mapping[str, int] | None = None,
    ) -> dict[str, list[CellKey]]:
        """For each fact, the cells that are best on average for the other half of the facts.

        Choosing a cell and reading it on the same facts would count luck as an effect. Facts that
        lack one of the cells are left out; without a fact in each half there is nothing to choose.
        """
        columns = [self._places[1][cell] for cell in cells]
        values = self.effects[:, columns]
        is_whole = np.isfinite(values).all(1)
        facts = [self.facts[i] for i in np.flatnonzero(is_whole)]
        sides = divide(facts) if halves is None else halves
        half = np.array([sides[fact] for fact in facts])
        if len({*half}) < 2:
            return {}
        means = [values[is_whole][half != side].mean(0) for side in (0, 1)]
        best = [[cells[i] for i in np.argsort(-mean, kind="stable")[:most]] for mean in means]
        return {fact: best[side] for fact, side in zip(facts, half, strict=True)}


@dataclass(frozen=True)
class PromptEffects:
    """An effect for each prompt and cell that a table has."""

    prompts: list[tuple[str, GroupKey]]
    """The fact and the group of each."""
    cells: list[CellKey]
    prompt: Int[np.ndarray, "E"]
    cell: Int[np.ndarray, "E"]
    effect: Float[np.ndarray, "E"]

    def rename(self, name: Callable[[CellKey], CellKey | None]) -> "PromptEffects":
        """Effects with other names of cells; those without a name are left out."""
        names = [name(cell) for cell in self.cells]
        known = {each: i for i, each in enumerate(dict.fromkeys(filter(None, names)))}
        cell = np.array([known.get(each, -1) for each in names], dtype=int)[self.cell]
        prompt, cell, effect = (x[cell >= 0] for x in (self.prompt, cell, self.effect))
        return PromptEffects(self.prompts, list(known), prompt, cell, effect)

    def panels(self) -> dict[GroupKey, GroupEffects]:
        """By group, each fact's mean effect over its prompts in each cell."""
        groups: dict[GroupKey, list[int]] = {}
        for i, (_, group) in enumerate(self.prompts):
            groups.setdefault(group, []).append(i)
        panels, row_of = {}, np.zeros(len(self.prompts), dtype=int)
        for group, members in groups.items():
            is_member = np.isin(self.prompt, members)
            if not is_member.any():
                continue
            names = [self.prompts[i][0] for i in members]
            facts, row_of[members] = np.unique(names, return_inverse=True)
            columns, column = np.unique(self.cell[is_member], return_inverse=True)
            shape = len(facts), len(columns)
            at = np.ravel_multi_index((row_of[self.prompt[is_member]], column), shape)
            total = np.bincount(at, self.effect[is_member], shape[0] * shape[1])
            with np.errstate(invalid="ignore"):
                effects = (total / np.bincount(at, minlength=len(total))).reshape(shape)
            cells = [self.cells[i] for i in columns]
            panels[group] = GroupEffects(facts.tolist(), cells, effects, len(members))
        return panels


def list_effects(
    pieces: "pyarrow.Table | Iterable[pyarrow.Table]", layout: EffectLayout, metric: str
) -> PromptEffects:
    """Each prompt's mean score in each cell, over its rows there, minus that of its start.

    Of a table that is given in pieces one is held at a time, and of every prompt a sum and a
    count for each cell. Cells without a score (null) are left out.
    """
    import pyarrow
    import pyarrow.compute

    # 1. Sums by prompt and cell. One thread: the order of groups, and of sums, is the table's.
    keys = [*layout.prompt, *layout.group, *layout.cell]
    known: dict[str, dict[Any, int]] = {name: {} for name in keys}
    numbers, sums = [], []
    for piece in [pieces] if isinstance(pieces, pyarrow.Table) else pieces:
        grouped = piece.group_by(keys, use_threads=False)
        grouped = grouped.aggregate([(metric, "sum"), (metric, "count")])
        grouped = grouped.filter(pyarrow.compute.field(f"{metric}_count") > 0)
        numbers.append(np.stack([_encode(grouped[name], known[name]) for name in keys]))
        sums.append(np.stack([grouped[f"{metric}_{name}"] for name in ("sum", "count")]))
    nothing = np.zeros(0, dtype=int)
    if not sum(each.shape[1] for each in numbers):
        return PromptEffects([], [], nothing, nothing, nothing.astype(float))
    columns = {name: (list(known[name]), codes)
               for name, codes in zip(keys, np.concatenate(numbers, 1), strict=True)}  # fmt: skip
    # 2. The score of each prompt in each cell; a prompt may stand in several pieces.
    prompts, prompt = _number(columns, [*layout.prompt, *layout.group])
    order = np.argsort(np.unique(prompt, return_index=True)[1])  # as they are met
    prompts, prompt = [prompts[i] for i in order], np.argsort(order)[prompt]
    cells, cell = _number(columns, layout.cell)
    pairs, pair = np.unique(prompt * len(cells) + cell, return_inverse=True)
    total, count = (np.bincount(pair, each) for each in np.concatenate(sums, 1))
    score = total / count
    prompt, cell = np.divmod(pairs, len(cells))
    # 3. Its effect, against the prompt's own start.
    is_start = np.array([each == layout.start for each in cells])[cell]
    start = np.full(len(prompts), np.nan if layout.start else 0.0)
    start[prompt[is_start]] = score[is_start]
    change = start[prompt] - score if layout.is_loss else score - start[prompt]
    is_unchanged = np.array([each[0] in layout.unchanged for each in cells])[cell]
    effect = np.where(is_unchanged, score, change)
    number = len(layout.prompt)
    return PromptEffects(
        [(each[0], each[number:]) for each in prompts],
        cells,
        *(x[~is_start] for x in (prompt, cell, effect)),
    )


def _encode(column: Any, known: dict[Any, int]) -> np.ndarray:
    """The number of each value, given those that are known; new ones are numbered as they come."""
    encoded = column.combine_chunks().dictionary_encode()
    places = [known.setdefault(value, len(known)) for value in encoded.dictionary.to_pylist()]
    return np.array(places, dtype=np.int32)[encoded.indices.to_numpy()]


def _number(
    columns: Mapping[str, tuple[list[Any], np.ndarray]], names: Sequence[str]
) -> tuple[list[tuple], np.ndarray]:
    """The distinct tuples of values in some columns, and the number of the one each row has.

    They are in the order in which the values of each column were first met.
    """
    values, codes = zip(*(columns[name] for name in names), strict=True)
    sizes = list(map(len, values))
    distinct, number = np.unique(np.ravel_multi_index(codes, sizes), return_inverse=True)
    places = np.unravel_index(distinct, sizes)
    parts = [[own[i] for i in at] for own, at in zip(values, places, strict=True)]
    return list(zip(*parts, strict=True)), number


def estimate_values(values: FactValues, totals: FactValues | None = None) -> dict[str, Any]:
    """The mean of some facts' values with its interval; and its share of the facts' mean total.

    Facts without a value (NaN) or a total do not count; without facts there is no estimate.
    """
    facts = [fact for fact in values if totals is None or fact in totals]
    if not facts:
        return {}
    columns = [[values[fact], totals[fact] if totals else 1.0] for fact in facts]
    panel = GroupEffects(facts, [("value",), ("total",)], np.array(columns), len(facts))
    return next(panel.estimate(("total",) if totals else None))[1]


def average_panels(
    panels: Mapping[str, Mapping[GroupKey, GroupEffects]],
    layout: EffectLayout,
    total: CellKey | None = None,
) -> Iterator[dict[str, Any]]:
    """A row for each metric, group and cell: its mean, and its share of a total effect."""
    for metric, groups in panels.items():
        for group, panel in groups.items():
            for cell, row in panel.estimate(total):
                keys = zip((*layout.group, *layout.cell), (*group, *cell), strict=True)
                yield dict(keys) | {"metric": metric, "prompts": panel.prompts} | row


def bound_effect(row: dict[str, Any], metric: str) -> dict[str, Any]:
    """A row of effects; on a probability, no end of an interval lies beyond −1 or 1."""
    ends = ("low", "high") if metric == "p" else ()
    return row | {end: min(max(row[end], -1.0), 1.0) for end in ends}


def pair_groups(
    groups: Iterable[GroupKey], columns: Sequence[str]
) -> Iterator[tuple[dict[str, Any], GroupKey, GroupKey]]:
    """Pairs that differ in the model or in the split, and in no further column; first their names.

    Groups begin with model, kind and split.
    """
    for one, other in combinations(groups, 2):
        if one[3:] == other[3:] and (one[0] == other[0]) != (one[2] == other[2]):
            names = {"model": one[0], "split": one[2]}
            names |= {"other_model": other[0], "other_split": other[2]}
            yield names | dict(zip(columns[3:], one[3:], strict=True)), one, other


def compare_sides(
    one: Mapping[Any, FactValues], other: Mapping[Any, FactValues], seed: int
) -> dict[Any, dict[str, Any]]:
    """The differences of two groups in what both have; `p_holm` is corrected for all of them."""
    compared = {key: compare(one[key], other[key], seed=seed) for key in one if key in other}
    differences = {key: each for key, each in compared.items() if each is not None}
    corrected = holm([each.p for each in differences.values()])
    pairs = zip(differences.items(), corrected, strict=True)
    return {key: vars(each) | {"p_holm": p_holm} for (key, each), p_holm in pairs}


def compare_likeness(
    one: Mapping[Any, FactValues], other: Mapping[Any, FactValues], margin: float, seed: int
) -> dict[str, Any]:
    """Whether two groups are alike in every one of several cells.

    Each difference is tested against the margin by two one-sided sign-flip tests where facts are
    paired (`p_equivalent` is the largest), else by its 95 % interval. `smallest_margin` is the
    smallest at which t tests would call all cells alike, `power` how often they would at the given
    one, in the least certain cell, without a difference. Groups with other cells are not alike.
    """
    if one.keys() != other.keys():
        return dict.fromkeys(("p_equivalent", "smallest_margin", "power")) | {"is_alike": False}
    tests, p_values, is_within = [], [0.0], True
    for ours, theirs in ((one[cell], other[cell]) for cell in one):
        tests.append(test := measure_equivalence(ours, theirs, margin))
        assert test is not None, "a cell has no two facts a side"
        if test.paired:
            gaps = [ours[fact] - theirs[fact] for fact in sorted(ours.keys() & theirs.keys())]
            p_values.append(equivalence_p(gaps, margin, seed))
        elif gap := compare(ours, theirs, seed):
            is_within &= -margin < gap.low and gap.high < margin
    return {
        "p_equivalent": max(p_values) or None,
        "is_alike": is_within and max(p_values) <= ALPHA,
        "smallest_margin": max(test.smallest_margin for test in tests),
        "power": min(test.power for test in tests),
    }


def compare_shares(
    panels: Mapping[GroupKey, GroupEffects],
    layout: EffectLayout,
    total: CellKey,
    over: str,
    margin: float,
    seed: int,
) -> Iterator[dict[str, Any]]:
    """Two models asked alike, or one model asked two ways: do they differ, and are they alike?

    Compared are shares of each group's own total effect. Of a cell's columns `over` is the layer,
    those before are its key: the difference is of means over layers, alike are two groups that are
    alike in every one.
    """
    at = layout.cell.index(over)
    layers: dict[GroupKey, dict[Any, dict[CellKey, dict[str, float]]]] = {}
    means: dict[GroupKey, dict[Any, dict[str, float]]] = {}
    for group, panel in panels.items():
        layers[group], shares = {}, panel.share(total)
        # 1. Of each group [facts × cells], the shares of its total effect, by key and layer.
        for cell in shares.cells:
            if cell != total and (values := shares.read(cell)):
                layers[group].setdefault(cell[:at], {})[cell] = values
        # 2. Their means over layers, of the facts that every layer has.
        means[group] = {key: shares.average([*own]) for key, own in layers[group].items()}
    # 3. The difference is of these means; to be alike, each layer must be within the margin.
    for where, one, other in pair_groups(panels, layout.group):
        for key, difference in compare_sides(means[one], means[other], seed).items():
            test = where | dict(zip(layout.cell[:at], key, strict=True)) | difference
            test |= compare_likeness(layers[one][key], layers[other][key], margin, seed)
            yield test | {"outcome": name_likeness(test)}

"""What roles give back as shares of what was lost, at layers chosen on other facts; and whether two
groups are alike.

Effects of different groups are compared as shares of each group's own total effect, role by role
and by band of layers; the unit is a fact. Where a second model was trained with swapped roles, both
groups hold the same facts, and the comparison is paired.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from unmask.evaluation.equivalence import cross_fit, divide, find_shares, measure_equivalence
from unmask.evaluation.statistics import ALPHA, compare, holm, mean_intervals
from unmask.tracing.averages import (
    GROUP,
    OTHER_TOKEN,
    PLACEBO,
    TOTAL,
    CellKey,
    GroupEffects,
    GroupKey,
    find_pairs,
)
from unmask.tracing.settings import WHOLE_ANSWER, WHOLE_SUBJECT
from unmask.tracing.table import (
    ASKED,
    FLOW,
    ONE_TOKEN,
    OTHER_FACT,
    PLACEBO_ROLES,
    RANDOM,
    RESULT,
    SHUFFLED,
)

BANDS = ("lower", "middle", "upper")
"""Thirds of a network's layers."""
COMPARED = ("resid", "mlp", "attn")
"""Parts that are tested for equivalence."""
_BAND = ("part", "role", "band", "first", "last")
EMBED = "embed"
_TOTAL: CellKey = (TOTAL, -1, -1, "")
_SHARE = ("mean", "low", "high", "share", "share_low", "share_high", "facts")
_BEYOND = tuple(f"beyond_{name}" for name in _SHARE)
_TESTED = ("p_equivalent", "smallest_margin", "power")
_PLACEBOS = {OTHER_TOKEN: PLACEBO, OTHER_FACT: None, RANDOM: None, SHUFFLED: None}
"""Controls, and the role that they have; None: that of the cell."""


def fit_shares(effects: Mapping[GroupKey, GroupEffects]) -> list[dict[str, Any]]:
    """Every part and role at layers chosen by cross-fitting, with its share of the total effect.

    `layer` is read on the first half of the facts and was chosen on the second, `other_layer` the
    other way round. Rows of placebos (`control`) are read in the same cells. `beyond` is what a
    state gives back beyond the same token's embedding, where that was restored as well.
    """
    rows = []
    for group, panel in effects.items():
        if group[-1] in (RESULT, ONE_TOKEN):
            roles = dict.fromkeys((cell[0], cell[3]) for cell in panel.cells)
            for part, role in roles:
                if part not in (TOTAL, ASKED, FLOW, EMBED):
                    rows += _fit_role(effects, group, part, role)
    return rows


def _fit_role(
    effects: Mapping[GroupKey, GroupEffects], group: GroupKey, part: str, role: str
) -> Iterator[dict[str, Any]]:
    panel = effects[group]
    # 1. Facts with a value in every layer, and the cell of each: the best for the other half.
    cells = [cell for cell in panel.cells if (cell[0], cell[3]) == (part, role)]
    columns = [panel.cells.index(cell) for cell in (*cells, _TOTAL)]
    rows = np.flatnonzero(np.isfinite(panel.effects[:, columns]).all(1))
    facts = [panel.facts[row] for row in rows]
    fitted = cross_fit(panel.effects[rows][:, columns[:-1]], facts)
    if fitted is None:
        return
    chosen = {fact: cells[column] for fact, column in zip(facts, fitted, strict=True)}
    halves = divide(facts)
    one, other = (next(chosen[fact] for fact in facts if halves[fact] == side) for side in (0, 1))
    where = dict(zip(GROUP, group, strict=True)) | {"part": part, "role": role}
    where |= {"layer": one[1], "head": one[2], "other_layer": other[1], "other_head": other[2]}
    totals = panel.take(dict.fromkeys(facts, _TOTAL))
    # 2. The share in these cells; of a single token's state, also beyond its embedding.
    own = panel.take(chosen)
    row = where | _share(own, totals) | dict.fromkeys(_BEYOND)
    if part == "resid" and role not in (WHOLE_SUBJECT, WHOLE_ANSWER):
        words = panel.take(dict.fromkeys(facts, (EMBED, 0, -1, role)))
        beyond = {fact: own[fact] - word for fact, word in words.items()}
        row |= {f"beyond_{name}": value for name, value in _share(beyond, totals).items()}
    yield row
    # 3. The placebos in the same cells.
    for control, renamed in _PLACEBOS.items():
        placebo = effects.get((*group[:-1], control)) if group[-1] == RESULT else None
        if placebo is not None:
            at = {fact: (*cell[:3], renamed or role) for fact, cell in chosen.items()}
            if values := placebo.take(at):
                yield row | dict.fromkeys(_BEYOND) | {"control": control} | _share(values, totals)


def _share(values: Mapping[str, float], totals: Mapping[str, float]) -> dict[str, Any]:
    """The mean of some facts' values, and its share of the mean total, both with intervals."""
    facts = [fact for fact in values if fact in totals]
    if not facts:
        return {}
    value = np.array([values[fact] for fact in facts])
    share = find_shares(value, [totals[fact] for fact in facts])
    ends = mean_intervals(np.stack([value, share], 1))
    numbers = [float(end[i]) for i in (0, 1) for end in ends]
    return dict(zip(_SHARE, (*numbers, len(facts)), strict=True))


def compare_bands(
    effects: Mapping[GroupKey, GroupEffects], margin: float, seed: int = 0
) -> list[dict[str, Any]]:
    """Shares of two groups compared, role by role and by band of layers: is there a difference, and
    is it within the margin?

    Compared are two models asked alike, and one model asked the same of facts trained this way and
    the other way; a group from which hiding the subject takes nothing for certain has no shares.
    `p_holm` is that of a permutation test, corrected for all comparisons of a pair of groups;
    `p_equivalent` that of two one-sided tests.
    """
    rows: list[dict[str, Any]] = []
    # 1. By group, and in it by part, role and band: a share for each fact [F].
    losing = [group for group, panel in effects.items() if _loses(panel)]
    bands = {group: _list_bands(effects[group], len(BANDS)) for group in losing}
    # 2. Pairs of groups; one model's two splits only where they ask in one direction.
    for one, other in find_pairs(losing):
        if one[0] == other[0] and _find_direction(one[2]) != _find_direction(other[2]):
            continue
        sides = bands[one], bands[other]
        compared = []
        for key in (key for key in sides[0] if key in sides[1]):
            values = sides[0][key], sides[1][key]
            # 3. Is there a difference, and is it within the margin? Two tests of the same facts.
            difference, alike = compare(*values, seed=seed), measure_equivalence(*values, margin)
            if difference is None or alike is None:
                continue
            where: dict[str, Any] = {"model": one[0], "split": one[2], "other_model": other[0]}
            where |= {"other_split": other[2], "corruption": one[3], "stage": one[4]}
            where |= dict(zip(_BAND, key, strict=True)) | {"band": BANDS[key[2]]}
            tested = {name: getattr(alike, name) for name in _TESTED} | {"margin": margin}
            compared.append(where | vars(difference) | tested)
        # 4. p corrected for all comparisons of the pair.
        corrected = holm([row["p"] for row in compared])
        rows += [row | {"p_holm": p} for row, p in zip(compared, corrected, strict=True)]
    return rows


def _loses(panel: GroupEffects) -> bool:
    """Whether the total effect of a group is clearly above 0."""
    totals = panel.take(dict.fromkeys(panel.facts, _TOTAL))
    if len(totals) < 2:
        return False
    _, low, _ = mean_intervals(np.array([*totals.values()])[:, None])
    return bool(low[0] > 0)


def _find_direction(split: str) -> str:
    """What a split's prompts give, d2p or p2d; other splits stand for themselves."""
    match = re.match(r"(?:both_)?(d2p|p2d)(_reverse)?", split)
    if match is None:
        return split
    return {"d2p": "p2d", "p2d": "d2p"}[match[1]] if match[2] else match[1]


def average_bands(effects: Mapping[GroupKey, GroupEffects], most: int) -> Iterator[dict[str, Any]]:
    """Mean shares with intervals, by group, role and layer; of more than `most` layers by as many
    bands of them."""
    for group, panel in effects.items():
        totals = panel.take(dict.fromkeys(panel.facts, _TOTAL))
        if group[-1] != RESULT or not any(totals.values()):
            continue
        for key, facts in _list_bands(panel, most).items():
            ends = mean_intervals(np.array([*facts.values()])[:, None])
            where = dict(zip(GROUP, group, strict=True)) | dict(zip(_BAND, key, strict=True))
            mean, low, high = (float(end[0]) for end in ends)
            yield where | {"mean": mean, "low": low, "high": high, "facts": len(facts)}


def _list_bands(
    panel: GroupEffects, most: int
) -> dict[tuple[str, str, int, int, int], dict[str, float]]:
    """By part, role and band (its number, first and last layer), each fact's share."""
    depth = 1 + max((cell[1] for cell in panel.cells), default=0)
    bounds = [round(depth * i / most) for i in range(most + 1)]
    roles = dict.fromkeys((cell[0], cell[3]) for cell in panel.cells if cell[0] in COMPARED)
    totals = panel.take(dict.fromkeys(panel.facts, _TOTAL))
    bands = {}
    for part, role in roles:
        if role in PLACEBO_ROLES:
            continue
        for band, (first, end) in enumerate(pairwise(bounds)):
            layers = [
                panel.take(dict.fromkeys(panel.facts, (part, layer, -1, role)))
                for layer in range(first, end)
            ]
            facts = [f for f in totals if layers and all(f in values for values in layers)]
            if len(facts) < 2:
                continue
            means = [np.mean([values[fact] for values in layers]) for fact in facts]
            shares = find_shares(means, [totals[fact] for fact in facts])
            bands[part, role, band, first, end - 1] = dict(zip(facts, shares.tolist(), strict=True))
    return bands


def count_outcomes(rows: Iterable[Mapping[str, Any]]) -> tuple[int, int, int]:
    """How many comparisons differ, are alike, and are neither."""
    outcomes = [name_likeness_outcome(row) for row in rows]
    alike, neither = (outcomes.count(each) for each in ("alike", "no difference detected"))
    return len(outcomes) - alike - neither, alike, neither


def name_likeness_outcome(row: Mapping[str, Any]) -> str:
    """What a comparison shows; without a proof of likeness, no more than that nothing was seen."""
    if row["p_holm"] <= ALPHA:
        return "differ, within the margin" if row["p_equivalent"] <= ALPHA else "differ"
    return "alike" if row["p_equivalent"] <= ALPHA else "no difference detected"

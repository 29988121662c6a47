"""Effects of traces by fact: AIE and ATE with intervals, controls beside them, groups compared.

A prompt's effect at a role is the mean over its tokens of that role, against the prompt's own
baseline. Effects of different groups are compared as shares of each group's own total effect, role
by role and by band of layers. Where a second model was trained with swapped roles, both groups hold
the same facts, and the comparison is paired.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from unmask.evaluation.equivalence import divide, measure_equivalence
from unmask.evaluation.statistics import ALPHA
from unmask.results.effects import (
    SHARE,
    CellKey,
    EffectLayout,
    FactValues,
    GroupEffects,
    GroupKey,
    compare_sides,
    estimate_values,
    list_effects,
    name_pair,
    pair_groups,
)
from unmask.tracing.settings import WHOLE_ANSWER, WHOLE_SUBJECT
from unmask.tracing.table import (
    ASKED,
    CLEAN,
    CORRUPTED,
    FLOW,
    ONE_TOKEN,
    OTHER_FACT,
    PLACEBO_ROLES,
    RANDOM,
    RESULT,
    SHUFFLED,
)

if TYPE_CHECKING:
    import pyarrow

OTHER_TOKEN, PLACEBO = "other token", "placebo"
"""The control that restores a prompt token which is not the subject's, and the role it has."""
TOTAL = "total"
"""The part of the rows that hold the total effect."""
GROUP = ("model", "kind", "split", "corruption", "stage", "control")
PROMPT = ("fact", "phrasing", "seed", *GROUP)
CELL = ("part", "layer", "head", "role")
BANDS = ("lower", "middle", "upper")
"""Thirds of a network's layers."""
COMPARED = ("resid", "mlp", "attn")
"""Parts that are tested for equivalence."""
EMBED = "embed"
_BAND = ("part", "role", "band", "first", "last")
_NOWHERE = (-1, -1, "")
_TOTAL: CellKey = (TOTAL, *_NOWHERE)
_BEYOND = tuple(f"beyond_{name}" for name in ("mean", "low", "high", *SHARE, "facts"))
_TESTED = ("p_equivalent", "smallest_margin", "power")
_PLACEBOS = {OTHER_TOKEN: PLACEBO, OTHER_FACT: None, RANDOM: None, SHUFFLED: None}
"""Controls, and the role that they have; None: that of the cell."""


def find_effects(
    pieces: "pyarrow.Table | Iterable[pyarrow.Table]", mode: str = "restore"
) -> dict[GroupKey, GroupEffects]:
    """Each fact's effect in each cell, group by group; the total effect is a cell as well.

    What the placebo roles give back stands as one role in the group of the control other token.
    """
    ends = (CORRUPTED, CLEAN) if mode == "restore" else (CLEAN, CORRUPTED)
    start, end = ((part, *_NOWHERE) for part in ends)
    layout = EffectLayout(
        group=GROUP,
        prompt=PROMPT[:3],
        cell=CELL,
        start=start,
        is_loss=mode != "restore",
        unchanged=(FLOW, ASKED),
    )
    effects = list_effects(pieces, layout, "value")
    panels = effects.rename(lambda cell: _TOTAL if cell == end else cell).panels()
    others = effects.rename(
        lambda cell: (*cell[:3], PLACEBO) if cell[-1] in PLACEBO_ROLES else None
    ).panels()
    return panels | {
        (*group[:-1], OTHER_TOKEN): panel for group, panel in others.items() if group[-1] == RESULT
    }


def average(effects: Mapping[GroupKey, GroupEffects]) -> list[dict[str, Any]]:
    """AIE of every cell of every group, and ATE as part `total`, with intervals over facts.

    No row pools over models, splits, corruptions, steps or controls.
    """
    return [
        dict(zip((*GROUP, *CELL), (*group, *cell), strict=True))
        | {"prompts": panel.prompts}
        | estimate
        for group, panel in effects.items()
        for cell, estimate in panel.estimate()
        if estimate["facts"] or cell != _TOTAL  # a metric may be missing as a whole
    ]


def compare_groups(effects: Mapping[GroupKey, GroupEffects], seed: int = 0) -> list[dict[str, Any]]:
    """Differences between pairs of groups: two models asked alike, or one model asked two ways.

    The two share corruption and step. What is compared is the effect's mean over layers, part by
    part and role by role; `p_holm` is corrected for all comparisons of one pair.
    """
    rows = []
    for one, other in find_pairs(effects):
        sides = [_average_layers(effects[group]) for group in (one, other)]
        for (part, role), difference in compare_sides(*sides, seed).items():
            where = name_pair(one, other) | {"corruption": one[3], "stage": one[4]}
            rows.append(where | {"part": part, "role": role} | difference)
    return rows


def _average_layers(panel: GroupEffects) -> dict[tuple[str, str], FactValues]:
    """By part and role, each fact's effect, mean over layers."""
    roles: dict[tuple[str, str], list[CellKey]] = {}
    for cell in panel.cells:
        part, _, head, role = cell
        if head < 0 and part != ASKED:
            roles.setdefault((part, role), []).append(cell)
    return {key: panel.average(cells) for key, cells in roles.items()}


def find_pairs(groups: Iterable[GroupKey]) -> Iterator[tuple[GroupKey, GroupKey]]:
    """Pairs that differ in the model or in the split; models stay in the order they are met."""
    results = [group for group in groups if group[-1] == RESULT]
    models = list(dict.fromkeys(group[0] for group in results))
    return pair_groups(sorted(results, key=lambda group: (models.index(group[0]), group)))


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
    # 1. Of each fact with a value in every layer the cell that is best for the other half.
    cells = [cell for cell in panel.cells if (cell[0], cell[3]) == (part, role)]
    chosen = {fact: best for fact, (best,) in panel.choose_cells(cells).items()}
    if not chosen:
        return
    halves = divide(chosen)
    one, other = (next(chosen[fact] for fact in chosen if halves[fact] == i) for i in (0, 1))
    where = dict(zip(GROUP, group, strict=True)) | {"part": part, "role": role}
    where |= {"layer": one[1], "head": one[2], "other_layer": other[1], "other_head": other[2]}
    totals = panel.read(_TOTAL)
    # 2. The share in these cells; of a single token's state, also beyond its embedding.
    own = panel.take(chosen)
    row = where | estimate_values(own, totals) | dict.fromkeys(_BEYOND)
    if part == "resid" and role not in (WHOLE_SUBJECT, WHOLE_ANSWER):
        words = panel.take(dict.fromkeys(chosen, (EMBED, 0, -1, role)))
        beyond = {fact: own[fact] - word for fact, word in words.items()}
        row |= {f"beyond_{name}": x for name, x in estimate_values(beyond, totals).items()}
    yield row
    # 3. The placebos in the same cells.
    for control, renamed in _PLACEBOS.items():
        placebo = effects.get((*group[:-1], control)) if group[-1] == RESULT else None
        if placebo is not None:
            at = {fact: (*cell[:3], renamed or role) for fact, cell in chosen.items()}
            if values := estimate_values(placebo.take(at), totals):
                yield row | dict.fromkeys(_BEYOND) | {"control": control} | values


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
    losing = [group for group, panel in effects.items() if panel.is_above_zero(_TOTAL)]
    bands = {group: _list_bands(effects[group], len(BANDS)) for group in losing}
    for one, other in find_pairs(losing):
        if one[0] == other[0] and _find_direction(one[2]) != _find_direction(other[2]):
            continue
        for key, difference in compare_sides(bands[one], bands[other], seed).items():
            alike = measure_equivalence(bands[one][key], bands[other][key], margin)
            where = name_pair(one, other) | {"corruption": one[3], "stage": one[4]}
            where |= dict(zip(_BAND, key, strict=True)) | {"band": BANDS[key[2]]}
            tested = {name: getattr(alike, name) for name in _TESTED} | {"margin": margin}
            rows.append(where | difference | tested)
    return rows


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
        if group[-1] != RESULT:
            continue
        for key, shares in _list_bands(panel, most).items():
            where = dict(zip((*GROUP, *_BAND), (*group, *key), strict=True))
            yield where | estimate_values(shares)


def _list_bands(
    panel: GroupEffects, most: int
) -> dict[tuple[str, str, int, int, int], dict[str, float]]:
    """By part, role and band (its number, first and last layer), each fact's share."""
    if _TOTAL not in panel.cells:
        return {}
    depth = 1 + max((cell[1] for cell in panel.cells), default=0)
    bounds = [round(depth * i / most) for i in range(most + 1)]
    roles = dict.fromkeys((cell[0], cell[3]) for cell in panel.cells if cell[0] in COMPARED)
    shares, bands = panel.share(_TOTAL), {}
    for part, role in roles:
        for band, (first, end) in enumerate(pairwise(bounds)):
            means = shares.average([(part, layer, -1, role) for layer in range(first, end)])
            if role not in PLACEBO_ROLES and len(means) >= 2:
                bands[part, role, band, first, end - 1] = means
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

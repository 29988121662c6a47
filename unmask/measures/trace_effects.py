"""Effects of traces by fact: AIE and ATE with intervals, controls beside them, groups compared.

A prompt's effect at a role is the mean over its tokens of that role, against the prompt's own
baseline. Effects of different groups are compared as shares of each group's own total effect, role
by role and by band of layers. Where a second model was trained with swapped roles, both groups hold
the same facts, and the comparison is paired.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from unmask.blocks import labels, tidy
from unmask.evaluation.equivalence import divide, measure_equivalence
from unmask.evaluation.statistics import ALPHA, ENOUGH, is_above_placebos
from unmask.results import effects as by_fact
from unmask.results.effects import SHARE, CellKey, EffectLayout, FactValues, GroupEffects, GroupKey
from unmask.results.summaries import Rows, add_outcome, name_likeness
from unmask.tracing import table as traced
from unmask.tracing.settings import WHOLE_ANSWER, WHOLE_SUBJECT

if TYPE_CHECKING:
    import pyarrow

OTHER_TOKEN, PLACEBO = "other token", "placebo"
"""The control that restores a prompt token which is not the subject's, and the role it has."""
PLACEBOS = (OTHER_TOKEN, traced.OTHER_FACT, traced.RANDOM, traced.SHUFFLED)
"""The controls that should give nothing back."""
TOTAL = "total"
"""The part of the rows that hold the total effect."""
GROUP = ("model", "kind", "split", "corruption", "stage", "control")
PROMPT = ("fact", "phrasing", "seed")
CELL = ("part", "layer", "head", "role")
LAYOUT = EffectLayout(group=GROUP, prompt=PROMPT, cell=CELL)
BANDS = ("lower", "middle", "upper")
"""Thirds of a network's layers."""
COMPARED = ("resid", "mlp", "attn")
"""Parts that are tested for equivalence."""
EMBED = "embed"
_BAND = ("part", "role", "band", "first", "last")
_NOWHERE = (-1, -1, "")
_TOTAL: CellKey = (TOTAL, *_NOWHERE)
_BEYOND = tuple(f"beyond_{name}" for name in ("mean", "low", "high", *SHARE, "facts"))
HIGHEST = tuple(f"placebo_{end}" for end in SHARE)
"""The columns of the share that the highest placebo gives back."""


def find_effects(
    pieces: "pyarrow.Table | Iterable[pyarrow.Table]", mode: str = "restore"
) -> dict[GroupKey, GroupEffects]:
    """Each fact's effect in each cell, group by group; the total effect is a cell as well.

    What the placebo roles give back stands as one role in the group of the control other token.
    """
    ends = (traced.CORRUPTED, traced.CLEAN)
    start, end = ((part, *_NOWHERE) for part in (ends if mode == "restore" else ends[::-1]))
    layout = EffectLayout(
        group=GROUP,
        prompt=PROMPT,
        cell=CELL,
        start=start,
        is_loss=mode != "restore",
        unchanged=(traced.FLOW, traced.ASKED),
    )
    effects = by_fact.list_effects(pieces, layout, "value")
    panels = effects.rename(lambda cell: _TOTAL if cell == end else cell).panels()
    others = effects.rename(
        lambda cell: (*cell[:3], PLACEBO) if cell[-1] in traced.PLACEBO_ROLES else None
    ).panels()
    return panels | {
        (*group[:-1], OTHER_TOKEN): panel
        for group, panel in others.items()
        if group[-1] == traced.RESULT
    }


def compare_effects(
    effects: Mapping[GroupKey, GroupEffects], seed: int = 0
) -> Iterator[dict[str, Any]]:
    """Differences between pairs of groups: two models asked alike, or one model asked two ways.

    The two share corruption and step. What is compared is the effect's mean over layers, part by
    part and role by role; `p_holm` is corrected for all comparisons of one pair.
    """
    sides = {group: _average_layers(panel) for group, panel in effects.items()}
    for where, one, other in by_fact.pair_groups(_list_results(effects), GROUP):
        for (part, role), gap in by_fact.compare_sides(sides[one], sides[other], seed).items():
            test = where | {"part": part, "role": role} | gap
            yield test | {"outcome": name_likeness(test)}


def _average_layers(panel: GroupEffects) -> dict[tuple[str, str], FactValues]:
    """By part and role, each fact's effect, mean over layers."""
    roles: dict[tuple[str, str], list[CellKey]] = {}
    for cell in panel.cells:
        part, _, head, role = cell
        if head < 0 and part != traced.ASKED:
            roles.setdefault((part, role), []).append(cell)
    return {key: panel.average(cells) for key, cells in roles.items()}


def _list_results(groups: Iterable[GroupKey]) -> list[GroupKey]:
    """The groups that are no controls; models stay in the order they are met."""
    results = [group for group in groups if group[-1] == traced.RESULT]
    models = list(dict.fromkeys(group[0] for group in results))
    return sorted(results, key=lambda group: (models.index(group[0]), group))


def fit_shares(effects: Mapping[GroupKey, GroupEffects]) -> Iterator[dict[str, Any]]:
    """Every part and role at layers chosen by cross-fitting, with its share of the total effect.

    `layer` is read on the first half of the facts and was chosen on the second, `other_layer` the
    other way round. Rows of placebos (`control`) are read in the same cells. `beyond` is what a
    state gives back beyond the same token's embedding, where that was restored as well.
    """
    for group, panel in effects.items():
        if group[-1] in (traced.RESULT, traced.ONE_TOKEN):
            for part, role in dict.fromkeys((cell[0], cell[3]) for cell in panel.cells):
                if part not in (TOTAL, traced.ASKED, traced.FLOW, EMBED):
                    yield from _fit_role(effects, group, part, role)


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
    row = where | by_fact.estimate_values(own, totals) | dict.fromkeys(_BEYOND)
    if part == "resid" and role not in (WHOLE_SUBJECT, WHOLE_ANSWER):
        words = panel.take(dict.fromkeys(chosen, (EMBED, 0, -1, role)))
        beyond = {fact: own[fact] - word for fact, word in words.items()}
        estimate = by_fact.estimate_values(beyond, totals)
        row |= {f"beyond_{name}": value for name, value in estimate.items()}
    yield row
    # 3. The placebos in the same cells.
    for control in PLACEBOS if group[-1] == traced.RESULT else ():
        at = PLACEBO if control == OTHER_TOKEN else role
        if placebo := effects.get((*group[:-1], control)):
            values = placebo.take({fact: (*cell[:3], at) for fact, cell in chosen.items()})
            if estimate := by_fact.estimate_values(values, totals):
                yield row | dict.fromkeys(_BEYOND) | {"control": control} | estimate


def add_outcomes(averages: Rows, shares: Rows) -> dict[str, Rows]:
    """Both tables with their outcomes, and beside each share that of the highest placebo.

    A total effect is held against 0, what a role gives back also against every placebo that was
    measured in the same cells.
    """
    is_total = {"part": TOTAL, "control": traced.RESULT}.items()
    totals = [add_outcome(row) if is_total <= row.items() else row for row in averages]
    held: list[tidy.Record] = []
    for rows in tidy.group_by(shares, *GROUP[:-1], "part", "role").values():
        placebos = [row for row in rows if row["control"] in PLACEBOS]
        highest = max(placebos, key=lambda row: row["share"], default=dict.fromkeys(SHARE))
        ends = [tidy.to_interval(row) for row in placebos]
        for row in rows:
            more = dict.fromkeys(HIGHEST)
            if row["control"] == traced.RESULT:
                more = dict(zip(HIGHEST, map(highest.get, SHARE), strict=True))
                is_clear = is_above_placebos(tidy.to_interval(row), ends, row["facts"])
                outcome = "above" if is_clear else "unsettled"
                more |= {"outcome": outcome if row["facts"] >= ENOUGH else "too few"}
            held.append({**row, **more})
    return {"averages": totals, "shares": held}


def compare_bands(
    effects: Mapping[GroupKey, GroupEffects], margin: float, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """Shares of two groups compared, role by role and by band of layers: is there a difference, and
    is it within the margin?

    Compared are two models asked alike, and one model asked the same of facts trained this way and
    the other way; a group from which hiding the subject takes nothing for certain has no shares.
    `p_holm` is that of a permutation test, corrected for all comparisons of a pair of groups;
    `p_equivalent` that of two one-sided tests.
    """
    totals = {group: by_fact.estimate_values(each.read(_TOTAL)) for group, each in effects.items()}
    losing = [group for group in _list_results(effects) if totals[group].get("low", 0.0) > 0]
    bands = {group: _list_bands(effects[group], len(BANDS)) for group in losing}
    for where, one, other in by_fact.pair_groups(losing, GROUP):
        ways = {labels.name_split(group[2]).partition(",")[0] for group in (one, other)}
        if one[0] == other[0] and len(ways) > 1:
            continue
        for key, gap in by_fact.compare_sides(bands[one], bands[other], seed).items():
            alike = measure_equivalence(bands[one][key], bands[other][key], margin)
            assert alike is not None, "a band has no two facts a side"
            names = ("p_equivalent", "smallest_margin", "power")
            test = where | dict(zip(_BAND, key, strict=True)) | {"band": BANDS[key[2]]} | gap
            test |= {name: getattr(alike, name) for name in names} | {"margin": margin}
            test |= {"is_alike": alike.p_equivalent <= ALPHA}
            yield test | {"outcome": name_likeness(test)}


def average_bands(effects: Mapping[GroupKey, GroupEffects], most: int) -> Iterator[dict[str, Any]]:
    """Mean shares with intervals, by group, role and layer; of more than `most` layers by as many
    bands of them."""
    for group in effects:
        if group[-1] == traced.RESULT:
            for key, shares in _list_bands(effects[group], most).items():
                where = dict(zip((*GROUP, *_BAND), (*group, *key), strict=True))
                yield where | by_fact.estimate_values(shares)


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
            if role not in traced.PLACEBO_ROLES and len(means) >= 2:
                bands[part, role, band, first, end - 1] = means
    return bands

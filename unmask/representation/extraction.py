"""Which facts are looked into, and the keys and values of many of them at one layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from unmask.base.errors import UserError
from unmask.data.corpus import Corpus
from unmask.data.facts import Fact
from unmask.data.sources import OWN
from unmask.net.model import Model
from unmask.representation.keys import find_keys, read_bare
from unmask.representation.prompts import lay_out_case
from unmask.representation.settings import Extraction
from unmask.representation.values import find_values

VECTORS = ("k_star", "k_mapped", "v0", "delta", "k_bare", "k_bare_mapped", "v0_bare")
"""`bare`: of the prompt without masks after it."""
GROUPS: dict[str, tuple[str, ...]] = {
    "p2d": ("p2d_same", "p2d_reverse"),
    "d2p": ("d2p_same", "d2p_reverse"),
    "both": ("both_p2d", "both_d2p"),
}
"""Facts by the direction they were trained in, and the splits that ask them both ways."""
_OF_VALUES = ("p_before", "p_after", "nll_before", "nll", "kl", "distance", "relative_distance")
_OF_VALUES += ("updates", "stopped", "diverged")


@dataclass(frozen=True)
class ChosenFact:
    """A fact that is looked into, with its group and its split."""

    group: str
    split: str
    fact: Fact

    @property
    def way(self) -> tuple[str, str]:
        """The fact and the direction it is asked in, in whatever phrasing."""
        return self.fact.fact_id, self.fact.direction

    @property
    def columns(self) -> dict[str, Any]:
        """The columns that say which question a row is about."""
        names = ("direction", "trained", "phrasing", "subject", "object", "prompt")
        return {
            "group": self.group,
            "split": self.split,
            "fact": self.fact.fact_id,
            **{name: getattr(self.fact, name) for name in names},
        }


def choose_facts(
    corpus: Corpus, groups: Sequence[str], directions: Sequence[str], number: int, phrasing: int = 0
) -> list[ChosenFact]:
    """The first `number` facts of each group, in one phrasing for each direction.

    What one phrasing adds to every vector is the same for all facts, and falls out with the mean.
    Groups that the corpus lacks are left out; one's own facts are one group, `own`.
    """
    prompts = _list_prompts(corpus, groups)
    phrasings: dict[tuple[str, str, str], list[ChosenFact]] = {}
    names: dict[str, list[str]] = {}
    for each in prompts:
        phrasings.setdefault((each.group, *each.way), []).append(each)
        first = names.setdefault(each.group, [])
        if len(first) < number and each.fact.fact_id not in first:
            first.append(each.fact.fact_id)
    chosen = []
    for (group, fact_id, direction), same in phrasings.items():
        if direction in directions and fact_id in names[group]:
            if not 0 <= phrasing < len(same):
                raise UserError(
                    f"phrasing {phrasing} was asked for, but {fact_id} has {len(same)}: "
                    f"expected 0 to {len(same) - 1}."
                )
            chosen.append(same[phrasing])
    if not chosen:
        known = dict.fromkeys(each.fact.direction for each in prompts)
        raise UserError(
            f"no fact is asked in the direction {' or '.join(directions)}: expected "
            f"{' or '.join(known)}, as the data have it."
        )
    return chosen


def gather_phrasings(corpus: Corpus, chosen: Sequence[ChosenFact]) -> dict[str, list[Fact]]:
    """By group, every phrasing of the facts chosen, in the directions chosen."""
    ways = {each.way for each in chosen}
    phrasings: dict[str, list[Fact]] = {each.group: [] for each in chosen}
    for each in _list_prompts(corpus, list(phrasings)):
        if each.way in ways:
            phrasings[each.group].append(each.fact)
    return phrasings


def _list_prompts(corpus: Corpus, groups: Sequence[str]) -> list[ChosenFact]:
    """Every prompt of the groups."""
    return [
        ChosenFact(group, split, fact)
        for group, splits in find_groups(corpus, groups).items()
        for split in splits
        for fact in corpus[split]
    ]


def find_groups(corpus: Corpus, groups: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The splits of each group that the corpus has."""
    if OWN in corpus.splits:
        return {OWN: (OWN,)}
    there = {
        group: GROUPS[group]
        for group in groups
        if all(corpus.splits.get(split) for split in GROUPS[group])
    }
    if not there:
        raise UserError(
            f"{corpus.source} has no facts of the groups {', '.join(groups) or 'named'}: expected "
            f"some of {', '.join(GROUPS)}, with a split for each direction."
        )
    return there


def extract(
    model: Model,
    chosen: Sequence[ChosenFact],
    layer: int,
    prefixes: Sequence[str],
    settings: Extraction,
) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """A row for each fact, and its vectors by name; row i of each belongs to row i."""
    cases = [lay_out_case(model, each.fact, prefixes, settings) for each in chosen]
    values = find_values(model, cases, layer, settings)
    keys = find_keys(model, cases, layer)
    bare = zip(*read_bare(model, cases, layer), strict=True)
    rows = [
        each.columns
        | {"layer": layer}
        | {name: getattr(value, name) for name in _OF_VALUES}
        | {"losses": list(value.losses)}
        for each, value in zip(chosen, values, strict=True)
    ]
    vectors = (
        [key.k_star for key in keys],
        [key.mapped for key in keys],
        [value.v0 for value in values],
        [value.delta for value in values],
        *bare,
    )
    return rows, {
        name: torch.stack(list(each)).float().numpy()
        for name, each in zip(VECTORS, vectors, strict=True)
    }

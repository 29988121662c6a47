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
from unmask.representation.keys import find_keys
from unmask.representation.settings import Extraction
from unmask.representation.states import lay_out_case
from unmask.representation.values import find_values

VECTORS = ("k_star", "k_mapped", "v0", "delta")
GROUPS: dict[str, tuple[str, ...]] = {
    "p2d": ("p2d_same", "p2d_reverse"),
    "d2p": ("d2p_same", "d2p_reverse"),
    "both": ("both_p2d", "both_d2p"),
}
"""Facts by the direction they were trained in, and the splits that ask them both ways."""


@dataclass(frozen=True)
class Asked:
    """A fact that is looked into, with its group and its split."""

    group: str
    split: str
    fact: Fact


def choose_facts(
    corpus: Corpus,
    groups: Sequence[str],
    directions: Sequence[str],
    number: int,
    phrasing: int = 0,
) -> list[Asked]:
    """The first `number` facts of each group, in one phrasing for each direction.

    What one phrasing adds to every vector is the same for all facts, and falls out with the mean.
    Groups that the corpus lacks are left out; one's own facts are one group, `own`.
    """
    splits_of = find_groups(corpus, groups)
    chosen = []
    for group, splits in splits_of.items():
        phrasings: dict[tuple[str, str], list[Asked]] = {}
        for split in splits:
            for fact in corpus[split]:
                asked = phrasings.setdefault((fact.fact_id, fact.direction), [])
                asked.append(Asked(group, split, fact))
        names = list(dict.fromkeys(fact_id for fact_id, _ in phrasings))[:number]
        for (fact_id, direction), asked in phrasings.items():
            if fact_id in names and direction in directions:
                if not 0 <= phrasing < len(asked):
                    raise UserError(
                        f"phrasing {phrasing} was asked for, but {fact_id} has {len(asked)}: "
                        f"expected 0 to {len(asked) - 1}."
                    )
                chosen.append(asked[phrasing])
    if not chosen:
        facts = [
            fact for splits in splits_of.values() for split in splits for fact in corpus[split]
        ]
        known = " or ".join(dict.fromkeys(fact.direction for fact in facts))
        raise UserError(
            f"no fact is asked in the direction {' or '.join(directions)}: expected {known}, as "
            "the data have it."
        )
    return chosen


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


def gather_phrasings(corpus: Corpus, asked: Sequence[Asked]) -> dict[str, list[Fact]]:
    """By group, every phrasing of the facts asked, in the directions asked."""
    ways = {(each.fact.fact_id, each.fact.direction) for each in asked}
    splits_of = find_groups(corpus, list(dict.fromkeys(each.group for each in asked)))
    return {
        group: [
            fact
            for split in splits
            for fact in corpus[split]
            if (fact.fact_id, fact.direction) in ways
        ]
        for group, splits in splits_of.items()
    }


def extract(
    model: Model,
    asked: Sequence[Asked],
    layer: int,
    prefixes: Sequence[str],
    settings: Extraction,
) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """A row for each fact, and its vectors by name; row i of each belongs to row i."""
    cases = [lay_out_case(model, each.fact, prefixes, settings) for each in asked]
    values = find_values(model, cases, layer, settings, prefixes)
    keys = find_keys(model, cases, layer, prefixes)
    rows = [
        describe_question(each)
        | {
            "layer": layer,
            "p_before": value.p_before,
            "p_after": value.p_after,
            "nll_before": value.nll_before,
            "nll": value.nll,
            "kl": value.kl,
            "distance": value.distance,
            "relative_distance": value.relative_distance,
            "updates": value.updates,
            "stopped": value.stopped,
            "diverged": value.diverged,
            "losses": list(value.losses),
        }
        for each, value in zip(asked, values, strict=True)
    ]
    vectors = {
        "k_star": [key.k_star for key in keys],
        "k_mapped": [key.mapped for key in keys],
        "v0": [value.v0 for value in values],
        "delta": [value.delta for value in values],
    }
    return rows, {name: torch.stack(each).float().numpy() for name, each in vectors.items()}


def describe_question(asked: Asked) -> dict[str, Any]:
    """The columns that say which question a row is about."""
    fact = asked.fact
    return {
        "group": asked.group,
        "split": asked.split,
        "fact": fact.fact_id,
        "direction": fact.direction,
        "trained": fact.trained,
        "phrasing": fact.phrasing,
        "subject": fact.subject,
        "object": fact.object,
        "prompt": fact.prompt,
    }

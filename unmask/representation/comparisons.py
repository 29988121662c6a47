"""Does the key of a concept in one direction resemble its value in the other?

Asked with a name given (p2d), the key is the name's and the value says its description; with the
description given (d2p) it is the other way round. So a name has a key in p2d and a value in
d2p, and a description a key in d2p and a value in p2d. Facts whose search diverged are left out of
every comparison, and counted. A value that does not restore its answer is none in ROME's sense: v*,
delta and the v0 beside them are compared on the facts whose value does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
from jaxtyping import Float
from threadpoolctl import threadpool_limits

from unmask.evaluation.statistics import holm
from unmask.representation.likeness import (
    LIKENESSES,
    NEEDED_FACTS,
    OVERLAP,
    Other,
    Side,
    prepare_directions,
)
from unmask.representation.nulls import PERMUTATIONS, assess, assess_layers, assess_overlap

CONCEPTS = {"name": ("p2d", "d2p"), "description": ("d2p", "p2d")}
"""The direction in which a concept is given, and the one in which it is asked for."""


@dataclass(frozen=True)
class SidePair:
    """Two sides, each a vector and a direction; `plain_left` is for likenesses of any width."""

    name: str
    left: tuple[str, str]
    right: tuple[str, str]
    plain_left: tuple[str, str] | None = None
    is_control: bool = False


def _compare_concept(concept: str) -> list[SidePair]:
    given, wanted = CONCEPTS[concept]
    key, mapped = ("k_star", given), ("k_mapped", given)
    return [
        SidePair(f"{concept}: key and value", mapped, ("v_star", wanted), key),
        SidePair(f"{concept}: key and v0", mapped, ("v0", wanted), key, is_control=True),
        SidePair(f"{concept}: key and delta", mapped, ("delta", wanted), key),
    ]


def _compare_bare(concept: str) -> SidePair:
    given, wanted = CONCEPTS[concept]
    mapped, key = ("k_bare_mapped", given), ("k_bare", given)
    return SidePair(f"{concept}: key and v0, no masks", mapped, ("v0_bare", wanted), key)


COMPARISONS: tuple[SidePair, ...] = (
    *_compare_concept("name"),
    *_compare_concept("description"),
    SidePair("key and key", ("k_star", "p2d"), ("k_star", "d2p")),
    SidePair("value and value", ("v_star", "p2d"), ("v_star", "d2p")),
    _compare_bare("name"),
    _compare_bare("description"),
    SidePair("key and key, no masks", ("k_bare", "p2d"), ("k_bare", "d2p")),
)
"""v0 is what the MLP gives before any search: what it shares with the key already is no finding
about values. Delta is what the search added. Without masks to look at, neither side can hold what
is predicted there."""
SEARCHED = ("v_star", "delta", "v0")
"""SidePair that are compared on the facts whose value restores the answer."""


@dataclass(frozen=True)
class Pairs:
    """The facts of one group at one layer that were asked in both directions."""

    rows: dict[str, dict[str, int]]
    """For each fact, in sorted order, the number of its row in either direction."""
    diverged: int
    """Facts left out because a search diverged."""
    restored: dict[str, list[bool]]
    """By direction, for each fact: whether the value found there restores the answer."""


def pair_facts(rows: Mapping[int, Mapping[str, Any]], least: float = 0.0) -> Pairs:
    """Which rows, by number, belong together; those of diverged searches are left out.

    A value restores the answer if it takes away at least this share of its cost, or leaves each
    token more likely than not.
    """
    at: dict[str, dict[str, int]] = {}
    for number, row in rows.items():
        at.setdefault(row["fact"], {})[row["direction"]] = number
    paired = {fact: numbers for fact, numbers in sorted(at.items()) if len(numbers) == 2}
    sound = {
        fact: numbers
        for fact, numbers in paired.items()
        if not any(rows[number]["diverged"] for number in numbers.values())
    }

    def restores(row: Mapping[str, Any]) -> bool:
        return row["nll"] <= max((1 - least) * row["nll_before"], log(2))

    restored = {
        way: [restores(rows[numbers[way]]) for numbers in sound.values()] for way in ("p2d", "d2p")
    }
    return Pairs(sound, len(paired) - len(sound), restored)


Vectors = Mapping[tuple[str, str], Side]
"""By name and direction, facts in one order."""


@dataclass(frozen=True)
class Compared:
    """The two sides of a comparison at one place, and the facts they are compared on."""

    comparison: SidePair
    facts: list[str]
    left: Side
    right: Side
    plain: Other
    """The left side for likenesses of any width."""
    restored: int | None
    """Facts whose value restores the answer, for sides that were searched for; where they are too
    few to compare, all facts are compared."""


def list_compared(vectors: Vectors, pairs: Pairs) -> Iterator[Compared]:
    """Every comparison that the vectors have both sides of."""
    facts = list(pairs.rows)
    for comparison in COMPARISONS:
        sides = (comparison.left, comparison.right, comparison.plain_left or comparison.left)
        if not all(side in vectors for side in sides):
            continue
        searched = [way for name, way in sides[:2] if name in SEARCHED]
        kept = np.all([pairs.restored[way] for way in searched], axis=0) if searched else None
        restored = None if kept is None else int(kept.sum())
        if kept is None or kept.sum() < NEEDED_FACTS:
            kept = np.ones(len(facts), bool)
        left, right, plain = (vectors[side][kept] for side in sides)
        named = [fact for fact, keep in zip(facts, kept, strict=True) if keep]
        yield Compared(comparison, named, left, right, plain, restored)


# Matrices of some thirty rows: threads would spend their time waiting for each other.
@threadpool_limits.wrap(limits=1, user_api="blas")
def assess_compared(
    each: Compared, permutations: int = PERMUTATIONS, seed: int = 0
) -> list[dict[str, Any]]:
    """A row for each likeness of a comparison, with its interval by fact and its null.

    `p_holm` is corrected for the likenesses of one comparison; `overlap`, which knows no pairs, is
    a test of its own.
    """
    left, right = each.left, each.right
    assessed = {
        name: assess(
            likeness, left if likeness.one_space else each.plain, right, permutations, seed
        )
        for name, likeness in LIKENESSES.items()
    }
    tested = [name for name, result in assessed.items() if result.is_measured]
    corrected = holm([assessed[name].p for name in tested])
    p_holm = dict(zip(tested, corrected, strict=True))
    assessed[OVERLAP] = assess_overlap(left, right, permutations, seed)
    rows = []
    for name, result in assessed.items():
        details = {key: getattr(result.score, key) for key in ("matched", "unmatched", "train")}
        rows.append(
            {
                "comparison": each.comparison.name,
                "control": each.comparison.is_control,
                "measure": name,
                "facts": len(each.facts),
                "restored": each.restored,
                "value": result.value.mean,
                "low": result.value.low,
                "high": result.value.high,
                "null_mean": float(result.null.mean()),
                "null_low": result.null_low,
                "null_high": result.null_high,
                "p": result.p,
                "p_holm": p_holm.get(name, result.p),
                **{key: None if x is None else float(x) for key, x in details.items()},
                "null": result.null.tolist(),
                "per_fact": result.per_fact.tolist(),
                "fact_ids": each.facts,
            }
        )
    return rows


@threadpool_limits.wrap(limits=1, user_api="blas")
def assess_families(
    layers: Sequence[Sequence[Compared]], permutations: int, seed: int = 0
) -> dict[tuple[str, str, int], tuple[float, float]]:
    """By comparison, measure and number of the layer: p corrected for layers, and for the family.

    A family is a question: a key beside its value, say, of names and of descriptions. The largest
    value over layers is compared with that of shuffled pairs, and the concepts are corrected
    (Holm).
    """
    corrected: dict[tuple[str, str, int], tuple[float, float]] = {}
    by_question: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    for each in layers[0]:
        name = each.comparison.name
        own = [one for layer in layers for one in layer if one.comparison.name == name]
        sides = [(one.facts, one.left, one.right) for one in own]
        if each.left.shape[1] == each.right.shape[1]:
            for measure, p in assess_layers(sides, permutations, seed).items():
                question = name.partition(": ")[2] or name
                by_question.setdefault((question, measure), {})[name] = p
    for (_, measure), concepts in by_question.items():
        best = holm([float(p.min()) for p in concepts.values()])
        for (name, p), least in zip(concepts.items(), best, strict=True):
            for i, value in enumerate(p.tolist()):
                corrected[name, measure, i] = value, max(value, least)
    return corrected


def map_similarity(vectors: Vectors, concept: str) -> Float[np.ndarray, "N N"]:
    """The cosine of every fact's key (row) with every fact's value (column), means taken off."""
    given, wanted = CONCEPTS[concept]
    keys, values = prepare_directions(vectors["k_mapped", given], vectors["v_star", wanted])
    return keys @ values.T

"""Does the key of a concept in one direction resemble its value in the other?

Asked with a name given (p2d), the name is looked up and its description is the answer; asked with
the description given (d2p), it is the other way round. So a name has a key in p2d and a value in
d2p, and a description a key in d2p and a value in p2d. Facts whose search diverged are left out of
every comparison, and counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from threadpoolctl import threadpool_limits

from unmask.evaluation.statistics import holm
from unmask.representation.likeness import LIKENESSES, OVERLAP, Side, prepare_directions
from unmask.representation.nulls import PERMUTATIONS, assess, assess_overlap

CONCEPTS = {"name": ("p2d", "d2p"), "description": ("d2p", "p2d")}
"""The direction in which a concept is given, and the one in which it is asked for."""


@dataclass(frozen=True)
class Comparison:
    """Two sides, each a vector and a direction; `plain_left` is for likenesses of any width."""

    name: str
    left: tuple[str, str]
    right: tuple[str, str]
    plain_left: tuple[str, str] | None = None
    is_control: bool = False


def _compare_concept(concept: str) -> list[Comparison]:
    given, wanted = CONCEPTS[concept]
    key, mapped = ("k_star", given), ("k_mapped", given)
    return [
        Comparison(f"{concept}: key and value", mapped, ("v_star", wanted), key),
        Comparison(f"{concept}: key and v0", mapped, ("v0", wanted), key, is_control=True),
        Comparison(f"{concept}: key and delta", mapped, ("delta", wanted), key),
    ]


COMPARISONS: tuple[Comparison, ...] = (
    *_compare_concept("name"),
    *_compare_concept("description"),
    Comparison("key and key", ("k_star", "p2d"), ("k_star", "d2p")),
    Comparison("value and value", ("v_star", "p2d"), ("v_star", "d2p")),
)
"""v0 is what the MLP gives before any search: what it shares with the key already is no finding
about values. Delta is what the search added."""


@dataclass(frozen=True)
class Pairs:
    """The facts of one group at one layer that were asked in both directions."""

    rows: dict[str, dict[str, int]]
    """For each fact, in sorted order, the number of its row in either direction."""
    diverged: int
    """Facts left out because a search diverged."""


def pair_facts(rows: Mapping[int, Mapping[str, Any]]) -> Pairs:
    """Which rows, by number, belong together; those of diverged searches are left out."""
    at: dict[str, dict[str, int]] = {}
    for number, row in rows.items():
        at.setdefault(row["fact"], {})[row["direction"]] = number
    paired = {fact: numbers for fact, numbers in sorted(at.items()) if len(numbers) == 2}
    sound = {
        fact: numbers
        for fact, numbers in paired.items()
        if not any(rows[number]["diverged"] for number in numbers.values())
    }
    return Pairs(sound, len(paired) - len(sound))


Vectors = Mapping[tuple[str, str], Side]
"""By name and direction, facts in one order."""


# Matrices of some thirty rows: threads would spend their time waiting for each other.
@threadpool_limits.wrap(limits=1, user_api="blas")
def assess_comparisons(
    vectors: Vectors, permutations: int = PERMUTATIONS, seed: int = 0
) -> list[dict[str, Any]]:
    """A row for each comparison and likeness, with its interval by fact and its null.

    `p_holm` is corrected for the likenesses of one comparison; `overlap`, which knows no pairs, is
    a test of its own.
    """
    rows = []
    for comparison in COMPARISONS:
        left, right = vectors[comparison.left], vectors[comparison.right]
        plain = vectors[comparison.plain_left or comparison.left]
        assessed = {
            name: assess(likeness, left if likeness.one_space else plain, right, permutations, seed)
            for name, likeness in LIKENESSES.items()
        }
        tested = [name for name, each in assessed.items() if each.is_measured]
        corrected = holm([assessed[name].p for name in tested])
        p_holm = dict(zip(tested, corrected, strict=True))
        assessed[OVERLAP] = assess_overlap(left, right, permutations, seed)
        for name, each in assessed.items():
            details = {key: getattr(each.score, key) for key in ("matched", "unmatched", "train")}
            rows.append(
                {
                    "comparison": comparison.name,
                    "control": comparison.is_control,
                    "measure": name,
                    "value": each.value.mean,
                    "low": each.value.low,
                    "high": each.value.high,
                    "null_mean": float(each.null.mean()),
                    "null_low": each.null_low,
                    "null_high": each.null_high,
                    "p": each.p,
                    "p_holm": p_holm.get(name, each.p),
                    **{key: None if x is None else float(x) for key, x in details.items()},
                    "null": each.null.tolist(),
                    "per_fact": each.per_fact.tolist(),
                }
            )
    return rows


def map_similarity(vectors: Vectors, concept: str) -> Float[np.ndarray, "N N"]:
    """The cosine of every fact's key (row) with every fact's value (column), means taken off."""
    given, wanted = CONCEPTS[concept]
    keys, values = prepare_directions(vectors["k_mapped", given], vectors["v_star", wanted])
    return keys @ values.T

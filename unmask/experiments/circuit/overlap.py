"""What the circuits of two groups of facts share, beside chance and beside halves of a group."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Float

from unmask.base.seeds import derive_seed
from unmask.blocks import tidy
from unmask.evaluation.statistics import ALPHA, ENOUGH, permutation_p
from unmask.measures.measure import Rows

DRAWS = 999
STRONGEST = 0.1
"""Share of nodes that two circuits are compared by."""
NodeEffects = dict[tuple[Any, ...], float]


def compare_circuits(nodes: Rows, seed: int) -> Iterator[dict[str, Any]]:
    """Pairs of groups at the same step: of one model, or of two models asked alike.

    By chance: heads and MLPs of one of them change places within their role and part, so that what
    roles are worth stays.
    """
    for stage, own in tidy.group_by(nodes, "stage").items():
        groups = tidy.group_by(own, "model", "split")
        for one, other in combinations(groups, 2):
            if (one[0] == other[0]) == (one[1] == other[1]):
                continue
            sides = [groups[one], groups[other]]
            facts = min(len(tidy.distinct(side, "fact")) for side in sides)
            ours, theirs = map(average_nodes, sides)
            keys = sorted(set(ours) & set(theirs), key=str)
            values = [np.array([abs(side[key]) for key in keys]) for side in (ours, theirs)]
            stream = np.random.default_rng(derive_seed(seed, "overlap", stage, *one, *other))
            shared = share_strongest(*values)
            blocks = _list_blocks(keys)
            null = np.array(
                [share_strongest(values[0], _shuffle(values[1], blocks, stream))
                 for _ in range(DRAWS)]
            )  # fmt: skip
            p = permutation_p(null, shared)
            outcome = "too few" if facts < ENOUGH else "above" if p <= ALPHA else "unsettled"
            halves = [each for each in map(_share_halves, sides) if each is not None]
            yield {
                "model": one[0], "split": one[1], "other_model": other[0], "other_split": other[1],
                "stage": stage, "shared": shared, "null": float(null.mean()), "p": p,
                "correlation": float(np.corrcoef(np.stack(values))[0, 1]), "facts": facts,
                "ceiling": float(np.mean(halves)) if halves else None, "outcome": outcome,
                "is_further": outcome != "above",
            }  # fmt: skip


def average_nodes(rows: Rows) -> NodeEffects:
    """Each node's mean effect over facts."""
    groups = tidy.group_by(rows, "layer", "part", "head", "role")
    return {key: sum(row["effect"] for row in own) / len(own) for key, own in groups.items()}


def share_strongest(one: Float[np.ndarray, "N"], other: Float[np.ndarray, "N"]) -> float:
    """The share of the strongest tenth of one that are among that of the other."""
    most = max(1, round(STRONGEST * len(one)))
    tops = [set(np.argsort(-values, kind="stable")[:most]) for values in (one, other)]
    return len(tops[0] & tops[1]) / most


def _list_blocks(keys: Sequence[tuple[Any, ...]]) -> list[list[int]]:
    """The numbers of the nodes of each part and role."""
    blocks: dict[Any, list[int]] = {}
    for number, (_, part, _, role) in enumerate(keys):
        blocks.setdefault((part, role), []).append(number)
    return list(blocks.values())


def _shuffle(
    values: Float[np.ndarray, "N"], blocks: Sequence[Sequence[int]], stream: np.random.Generator
) -> Float[np.ndarray, "N"]:
    shuffled = values.copy()
    for block in blocks:
        shuffled[block] = values[stream.permutation(block)]
    return shuffled


def _share_halves(rows: Rows) -> float | None:
    """What the circuits of two halves of a group's facts share."""
    facts = tidy.distinct(rows, "fact")
    if len(facts) < 2:
        return None
    first = set(facts[::2])
    halves = [average_nodes([row for row in rows if (row["fact"] in first) == is_first])
              for is_first in (True, False)]  # fmt: skip
    keys = sorted(set(halves[0]) & set(halves[1]), key=str)
    return share_strongest(*(np.array([abs(half[key]) for key in keys]) for half in halves))

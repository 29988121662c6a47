"""PlaceScores of methods against the truth: areas, hits, and what is called clear by a threshold.

What counts as clear is chosen on hand-written networks of other mechanisms, by the best F1 there,
among the parts that are scored: of a trained network the stream alone.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from unmask.blocks.tidy import Record, group_by
from unmask.evaluation.detection import find_area
from unmask.experiments.bench.task import EDGES
from unmask.measures.measure import Rows

PLACE = ("network", "step", "part", "layer", "position", "is_read")
"""Columns that name a state or an edge."""


def join_truth(scores: Rows, truth: Rows) -> list[dict[str, Any]]:
    """Scores beside what is true of their place; places of which nothing is known are left out."""
    known = {tuple(row[name] for name in PLACE): row for row in truth}
    joined = []
    for row in scores:
        place = tuple(row[name] for name in PLACE)
        if place in known:
            joined.append(
                {**known[place], **row, "scored": EDGES if row["part"] == EDGES else "states"}
            )
    return joined


def score_networks(scores: Rows, truth: Rows, runs: Rows) -> Iterator[dict[str, Any]]:
    """A row for each method and network: how its scores stand to the truth, and what they cost."""
    costs = {(row["network"], row["method"]): row for row in runs}
    for (method, scored), rows in group_by(join_truth(scores, truth), "method", "scored").items():
        by_network = group_by(rows, "network")
        parts = {name: frozenset(row["part"] for row in own) for name, own in by_network.items()}
        sides = {kept: {name: _to_arrays([row for row in own if row["part"] in kept])
                        for name, own in by_network.items()}
                 for kept in set(parts.values())}  # fmt: skip
        for name, own in by_network.items():
            alike = sides[parts[name]]
            values, matters = alike[name]
            others = [
                alike[other] for other, theirs in by_network.items() if is_other(theirs[0], own[0])
            ]
            limit = choose_threshold(others)
            is_clear = values > limit
            hits, count = int((is_clear & matters).sum()), int(is_clear.sum())
            cost = costs[name, method]
            enough = [row["is_enough"] for row in own]
            stream = _to_arrays([row for row in own if row["part"] == "resid"])
            yield {
                "model": method, "scored": scored, "fact": name, "seed": 0,
                **{key: own[0][key] for key in ("mechanism", "reads", "stores", "weights")},
                "auroc": find_area(values, matters), "stream": find_area(*stream),
                "enough": None if scored == EDGES else find_area(values, np.array(enough, bool)),
                "precision": find_precision(values, matters),
                "top": find_top(values, matters),
                "false": None if not count or not others else 1 - hits / count,
                "kept": None if not others else hits / int(matters.sum()),
                "threshold": None if not others else limit,
                "held_out": cost.get("held_out"),
                "passes": cost["passes"], "seconds": cost["seconds"],
            }  # fmt: skip


def list_false(scores: Rows, truth: Rows, scored: Rows) -> list[dict[str, Any]]:
    """For each method, mechanism, kind and role of positions: places that do not matter, and how
    many of them are called clear."""
    limits = {(row["fact"], row["model"], row["scored"]): row["threshold"] for row in scored}
    counted = []
    joined = [row for row in join_truth(scores, truth) if not row["matters"]]
    keys = ("method", "scored", "weights", "mechanism", "reads", "role")
    for key, rows in group_by(joined, *keys).items():
        known = [
            row for row in rows if limits[row["network"], row["method"], row["scored"]] is not None
        ]
        clear = [
            row
            for row in known
            if row["score"] > limits[row["network"], row["method"], row["scored"]]
        ]
        counted.append(
            dict(zip(keys, key, strict=True)) | {"places": len(known), "clear": len(clear)}
        )
    return counted


def judge_sharing(runs: Rows) -> Iterator[dict[str, Any]]:
    """A row for each method and network: whether what it says that both directions share tells one
    store from two, by the threshold that does so best in networks of other mechanisms."""
    known = [row for row in runs if row["stores"] is not None and row["shared"] is not None]
    for method, rows in group_by(known, "method").items():
        for row in rows:
            others = [each for each in rows if is_other(each, row)]
            values = np.array([each["shared"] for each in others])
            is_one = np.array([each["stores"] == "one" for each in others])
            if not others or is_one.all() or not is_one.any():
                continue
            limit = choose_gap(values, is_one)
            yield {
                "model": method, "fact": row["network"], "seed": 0, "mechanism": row["mechanism"],
                "weights": row["weights"],
                "stores": row["stores"], "shared": row["shared"],
                "right": float((row["shared"] > limit) == (row["stores"] == "one")),
            }  # fmt: skip


def is_other(theirs: Record, own: Record) -> bool:
    """Whether a threshold for one network may come from another: hand-written, and of another
    mechanism."""
    return theirs["mechanism"] != own["mechanism"] and theirs["weights"] == "hand-written"


def choose_threshold(
    sides: Sequence[tuple[Float[np.ndarray, "N"], Bool[np.ndarray, "N"]]],
) -> float:
    """The score above which F1 is best, over all places of some networks."""
    if not sides:
        return np.inf
    values, matters = (np.concatenate(each) for each in zip(*sides, strict=True))
    order = np.argsort(-values, kind="stable")
    values, hits = values[order], np.cumsum(matters[order])
    f1 = 2 * hits / (np.arange(1, len(values) + 1) + matters.sum())
    is_end = np.append(values[1:] < values[:-1], True)  # ties are clear together or not at all
    best = int(np.argmax(np.where(is_end, f1, -1.0)))
    below = values[best + 1] if best + 1 < len(values) else values[best] - 1.0
    return float((values[best] + below) / 2)


def choose_gap(values: Float[np.ndarray, "N"], is_one: Bool[np.ndarray, "N"]) -> float:
    """The middle of the gap between values that tells the two sides apart most often.

    Both sides count alike, however many there are.
    """
    weights = np.where(is_one, 0.5 / is_one.sum(), 0.5 / (~is_one).sum())
    edges = np.unique(values)
    limits = [edges[0] - 1.0, *((edges[1:] + edges[:-1]) / 2), edges[-1] + 1.0]
    rights = [float((weights * ((values > limit) == is_one)).sum()) for limit in limits]
    most = [
        limit for limit, right in zip(limits, rights, strict=True) if right > max(rights) - 1e-9
    ]
    return float(most[len(most) // 2])


def find_precision(values: Float[np.ndarray, "N"], is_true: Bool[np.ndarray, "N"]) -> float:
    """Average precision; what ties is found together."""
    true, total, area = 0, 0, 0.0
    order = np.argsort(-values, kind="stable")
    for _, tied in groupby(order, key=lambda i: values[i]):
        own = list(tied)
        hits = int(is_true[own].sum())
        true, total = true + hits, total + len(own)
        area += hits * true / total
    return area / int(is_true.sum())


def find_top(values: Float[np.ndarray, "N"], is_true: Bool[np.ndarray, "N"]) -> float:
    """The share of true places among as many of the strongest; of ties, what is expected."""
    most = int(is_true.sum())
    limit = np.sort(values)[-most]
    above, tied = values > limit, values == limit
    left = most - int(above.sum())
    return float((is_true[above].sum() + left * is_true[tied].mean()) / most)


def _to_arrays(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """PlaceScores and truths; scores to six digits, so that rounding breaks no tie."""
    values = np.array([row["score"] for row in rows], float)
    size = np.abs(values).max(initial=0.0) or 1.0
    return np.round(values / size, 6) * size, np.array([row["matters"] for row in rows], bool)

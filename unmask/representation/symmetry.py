"""Does the key of a concept in one direction resemble its value in the other?

Asked with a name given (p2d), the name is looked up and its description answered; asked with the
description given (d2p), it is the other way round. So a name has a key in p2d and a value in d2p,
and a description a key in d2p and a value in p2d. Facts whose search diverged are left out of every
measure, and counted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from unmask.base.errors import UserError
from unmask.base.progress import track
from unmask.evaluation.statistics import Clusters, Interval, estimate_difference, holm
from unmask.representation.measures import (
    MEASURES,
    NEEDED_FACTS,
    Cosine,
    Procrustes,
)
from unmask.representation.nulls import PERMUTATIONS, Assessed, assess, assess_overlap

SCHEMA = "symmetry/1"
ASKED = "key and value"
"""How the names of the comparisons end that the study asks about."""
OVERLAP = "overlap"
"""The measure of shared directions, whose null is random directions."""


@dataclass(frozen=True)
class Comparison:
    """Two sides: which vector of which direction; `plain` is what widths that may differ take."""

    name: str
    left: tuple[str, str]
    right: tuple[str, str]
    plain_left: tuple[str, str] | None = None
    is_control: bool = False


def _compare_concept(concept: str, given: str, asked: str) -> list[Comparison]:
    key, mapped = ("k_star", given), ("k_mapped", given)
    return [
        Comparison(f"{concept}: {ASKED}", mapped, ("v_star", asked), key),
        Comparison(f"{concept}: key and v0", mapped, ("v0", asked), key, is_control=True),
        Comparison(f"{concept}: key and delta", mapped, ("delta", asked), key),
    ]


COMPARISONS: tuple[Comparison, ...] = (
    *_compare_concept("name", "p2d", "d2p"),
    *_compare_concept("description", "d2p", "p2d"),
    Comparison("key and key", ("k_star", "p2d"), ("k_star", "d2p")),
    Comparison("value and value", ("v_star", "p2d"), ("v_star", "d2p")),
)
"""With v0 in place of the value stands what the network answers there before any search: what it
already shares with the key is no finding about values."""


@dataclass(frozen=True)
class Line:
    """One measure of one comparison: at one layer, of one group of facts, of one model."""

    model: str
    kind: str
    group: str
    layer: int
    comparison: str
    is_control: bool
    measure: str
    facts: tuple[str, ...]
    diverged: int
    """Facts left out because their search diverged."""
    found: Assessed
    p_holm: float
    """Corrected; `overlap` asks another question and is a test of its own."""
    matched: float | None = None
    unmatched: float | None = None
    train: float | None = None
    """Procrustes on the facts it was fitted to."""

    @property
    def is_tested(self) -> bool:
        """Whether it could tell true pairs from shuffled ones."""
        return self.measure != OVERLAP and self.found.is_measured

    def to_row(self) -> dict[str, Any]:
        """A row of the table; the null itself is in it for the figures."""
        value = self.found.value
        return {
            "model": self.model,
            "kind": self.kind,
            "group": self.group,
            "layer": self.layer,
            "comparison": self.comparison,
            "control": self.is_control,
            "measure": self.measure,
            "facts": len(self.facts),
            "diverged": self.diverged,
            "value": value.mean,
            "low": value.low,
            "high": value.high,
            "null_mean": self.found.null_mean,
            "null_low": self.found.null_low,
            "null_high": self.found.null_high,
            "p": self.found.p,
            "p_holm": self.p_holm,
            "matched": self.matched,
            "unmatched": self.unmatched,
            "train": self.train,
            "null": self.found.null.tolist(),
        }


@dataclass(frozen=True)
class Difference:
    """How much more alike the sides are in one model than in another, on the same facts."""

    one: str
    other: str
    group: str
    layers: tuple[int, int]
    """One's and the other's."""
    comparison: str
    measure: str
    facts: int
    value: Interval

    @property
    def place(self) -> str:
        """The layers that are compared, in words."""
        return ", ".join(str(layer) for layer in dict.fromkeys(self.layers))


@dataclass(frozen=True)
class Vectors:
    """The vectors of one model, group and layer: paired facts on both directions."""

    facts: tuple[str, ...]
    diverged: int
    sides: dict[tuple[str, str], np.ndarray]
    """By name and direction, facts in one order."""


def pair_vectors(
    rows: Sequence[Mapping[str, Any]], tensors: Mapping[str, np.ndarray], group: str, layer: int
) -> Vectors:
    """What is known of the facts that were asked in both directions at one layer."""
    tensors = {**tensors, "v_star": tensors["v0"] + tensors["delta"]}
    at: dict[str, dict[str, int]] = {}
    for i, row in enumerate(rows):
        if (row["group"], row["layer"]) == (group, layer):
            at.setdefault(row["fact"], {})[row["direction"]] = i
    paired = {fact: found for fact, found in sorted(at.items()) if len(found) == 2}
    sound = {
        fact: found
        for fact, found in paired.items()
        if not any(rows[i]["diverged"] for i in found.values())
    }
    if len(sound) < NEEDED_FACTS:
        left_out = len(paired) - len(sound)
        why = f"; {left_out} diverged" if left_out else ""
        raise UserError(
            f"group {group} has {len(sound)} facts with keys and values in both directions at "
            f"layer {layer}{why}: symmetry needs at least {NEEDED_FACTS}; extract more by `unmask "
            "represent --facts --directions both`, or search more gently by --lr."
        )
    sides = {
        (name, way): tensors[name][[found[way] for found in sound.values()]].astype(np.float64)
        for name in tensors
        for way in ("p2d", "d2p")
    }
    return Vectors(tuple(sound), len(paired) - len(sound), sides)


# Matrices of some thirty rows: threads would spend their time waiting for each other.
@threadpool_limits.wrap(limits=1, user_api="blas")
def measure_symmetry(
    model: str,
    kind: str,
    rows: Sequence[Mapping[str, Any]],
    tensors: Mapping[str, np.ndarray],
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> list[Line]:
    """Every measure of every comparison, group and layer of one model.

    `p_holm` is corrected for the measures of one comparison, in one group at one layer; `overlap`,
    which knows no pairs, is not among them.
    """
    places = dict.fromkeys((row["group"], row["layer"]) for row in rows)
    lines = []
    paired = [(at, pair_vectors(rows, tensors, *at)) for at in places]
    jobs = [(*each, comparison) for each in paired for comparison in COMPARISONS]
    for (group, layer), vectors, comparison in track(jobs, model, len(jobs)):
        measured = list(_measure(vectors, comparison, permutations, seed))
        corrected = _correct({name: found for name, found, _ in measured})
        for measure, found, more in measured:
            lines.append(
                Line(
                    model=model,
                    kind=kind,
                    group=group,
                    layer=layer,
                    comparison=comparison.name,
                    is_control=comparison.is_control,
                    measure=measure,
                    facts=vectors.facts,
                    diverged=vectors.diverged,
                    found=found,
                    p_holm=corrected[measure],
                    **more,
                )
            )
    return lines


def _correct(measured: Mapping[str, Assessed]) -> dict[str, float]:
    """p by measure, by Holm's correction over those that were tested for pairs."""
    p = {name: found.p for name, found in measured.items()}
    tested = [name for name in p if name != OVERLAP and measured[name].is_measured]
    return p | dict(zip(tested, holm([p[name] for name in tested]), strict=True))


def _measure(
    vectors: Vectors, comparison: Comparison, permutations: int, seed: int
) -> Iterator[tuple[str, Assessed, dict[str, float]]]:
    left, right = vectors.sides[comparison.left], vectors.sides[comparison.right]
    plain = vectors.sides[comparison.plain_left or comparison.left]
    for name, measure in MEASURES.items():
        one = left if measure.one_space else plain
        assessed = assess(measure, one, right, permutations, seed)
        found, more = assessed.found, {}
        if isinstance(found, Cosine):
            more = {"matched": float(found.matched), "unmatched": float(found.unmatched)}
        if isinstance(found, Procrustes):
            more = {"train": float(found.train)}
        yield name, assessed, more
    yield OVERLAP, assess_overlap(left, right, permutations, seed), {}


def compare_models(lines: Sequence[Line]) -> list[Difference]:
    """Pairs of models on the facts both have, where they were looked into at the same layers.

    Models looked into at one layer each are compared there, whichever layers those are.
    """
    found: dict[tuple, dict[str, Line]] = {}
    layers: dict[str, list[int]] = {}
    for line in lines:
        if line.layer not in layers.setdefault(line.model, []):
            layers[line.model].append(line.layer)
    alone = all(len(each) == 1 for each in layers.values())
    for line in lines:
        key = (line.group, None if alone else line.layer, line.comparison, line.measure)
        found.setdefault(key, {})[line.model] = line
    differences = []
    for (group, _, comparison, measure), by_model in found.items():
        is_share = measure in MEASURES and MEASURES[measure].is_share
        for one, other in combinations(by_model.values(), 2):
            shared = [fact for fact in one.facts if fact in other.facts]
            measured = one.found.is_measured and other.found.is_measured
            if len(shared) < NEEDED_FACTS or not measured:
                continue
            sides = [
                np.array([line.found.per_fact[line.facts.index(fact)] for fact in shared])[None]
                for line in (one, other)
            ]
            ours, theirs = (Clusters(side, np.ones_like(side)) for side in sides)
            differences.append(
                Difference(
                    one=one.model,
                    other=other.model,
                    group=group,
                    layers=(one.layer, other.layer),
                    comparison=comparison,
                    measure=measure,
                    facts=len(shared),
                    value=estimate_difference(ours, theirs, is_share),
                )
            )
    return differences

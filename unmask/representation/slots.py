"""Are the two directions of a fact one entry or two? States at the slot where the answer is read.

Coda-Forno, Wang and Chaudhry 2026 (arXiv 2604.04943) compare what the MLPs hold (the input of the
down projection) where the answer is predicted, once asked forwards, once in reverse. If a fact were
one entry, its two states would be nearer than those of two facts, and a linear probe on their
difference would tell such pairs from unrelated ones. They found neither, and concluded that
reversal is learned as a second entry. Here are the same two measures, with two departures:
distances are averaged over phrasings, and probes are tested on facts that they were not fitted on.

A linear probe on differences is blind to what is asked: where unrelated pairs are the same states
paired otherwise, the differences of both classes have one mean, whatever the states hold. What
tells them is how long the differences are, direction by direction. So probes on squared differences
stand beside them.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from unmask.base.errors import UserError
from unmask.data.facts import Fact
from unmask.net.model import Model
from unmask.representation.patched import choose_canvas, lay_out_prompt, read_spans
from unmask.representation.prompts import pad_canvas

FOLDS = 5
CONTRASTS = ("unrelated", "phrasing")
"""Pairs from which probes tell the two directions of a fact apart."""
FEATURES = ("difference", "squared")
"""What probes see of two states: their difference, or its squares."""


def collect_slots(
    model: Model, facts: Sequence[Fact], length: int | None = None
) -> Float[np.ndarray, "facts layers F"]:
    """The input of each layer's down projection where the answer's first token is predicted."""
    prompts = [lay_out_prompt(model, fact, [fact]) for fact in facts]
    canvas = choose_canvas(model, prompts, length)
    reads = [model.row_of(len(prompt.tokens)) for prompt in prompts]
    rows = [
        (pad_canvas(model, prompt.tokens, canvas), (at, at + 1))
        for prompt, at in zip(prompts, reads, strict=True)
    ]
    sites = [f"layers.{layer}.mlp_key" for layer in range(model.net.config.layers)]
    states = read_spans(model, rows, sites)
    return torch.stack([each[:, 0].float().cpu() for each in states]).numpy()


def compare_slots(
    states: Float[np.ndarray, "facts layers F"], facts: Sequence[Fact]
) -> Iterator[dict[str, Any]]:
    """Cosine distances for each layer, means over phrasings.

    `across`: every fact asked forwards beside every fact (`other`) in reverse, itself among them.
    `phrasing`: one fact in one direction and two phrasings. `relation`: two facts in one direction
    and one phrasing, averaged over the others.
    """
    people, ways = _index(facts)
    numbers = [fact.phrasing for fact in facts]
    same_phrasing = np.equal.outer(numbers, numbers)
    for layer in range(states.shape[1]):
        # 1. Cosine distances of all prompts N of a layer [N, N].
        unit = states[:, layer] / np.linalg.norm(states[:, layer], axis=-1, keepdims=True)
        distance = 1 - (unit @ unit.T).astype(np.float64)
        for i, fact in enumerate(people):
            # 2. Which prompts ask of this fact, one way and the other [N]; across are the blocks
            #    between this fact's and every fact's.
            forward, backward = ways["p2d"] == i, ways["d2p"] == i
            for j, other in enumerate(people):
                block = distance[np.ix_(forward, ways["d2p"] == j)]
                yield _row(layer, "across", fact, other, block.mean())
            # 3. Within a direction, the same fact in another phrasing.
            near = [distance[np.ix_(side, side)][~same_phrasing[np.ix_(side, side)]]
                    for side in (forward, backward)]  # fmt: skip
            if all(map(len, near)):
                mean = np.mean([distances.mean() for distances in near])
                yield _row(layer, "phrasing", fact, fact, mean)
            # 4. Within a direction, another fact in the same phrasing.
            far = []
            for way, side in (("p2d", forward), ("d2p", backward)):
                strangers = (ways[way] >= 0) & ~side
                far.append(distance[side][:, strangers][same_phrasing[side][:, strangers]])
            if all(map(len, far)):
                mean = np.mean([distances.mean() for distances in far])
                yield _row(layer, "relation", fact, None, mean)


def probe_differences(
    states: Float[np.ndarray, "facts layers F"], facts: Sequence[Fact]
) -> Iterator[dict[str, Any]]:
    """How often a logistic probe on the difference of two states knows whether they are one fact's
    two directions: a row for each layer, contrast, feature and fact, which no probe was fitted on.

    The contrast is another fact in reverse (`unrelated`), or the same fact in the same direction in
    another phrasing (`phrasing`). Both classes are equally large.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    # 1. Folds of facts; pairs of states as (fact, one, two, whether they are its two directions).
    people, ways = _index(facts)
    folds = np.arange(len(people)) % min(FOLDS, len(people) // 2)
    pairs: dict[str, list[tuple[int, int, int, int]]] = {name: [] for name in CONTRASTS}
    for i in range(len(people)):
        forward, backward = (np.flatnonzero(ways[way] == i) for way in ("p2d", "d2p"))
        # Of the unrelated pairs both facts are of one fold, so that neither is fitted on.
        near = np.flatnonzero((folds == folds[i]) & (np.arange(len(people)) != i))
        other = near[(near > i).argmax()] if (near > i).any() else near[0]
        stranger = np.flatnonzero(ways["d2p"] == other)
        for k, (one, two) in enumerate(zip(forward, backward, strict=False)):
            pairs["unrelated"] += [(i, one, two, 1), (i, one, stranger[k % len(stranger)], 0)]
            if len(forward) > 1:
                pairs["phrasing"] += [(i, one, two, 1), (i, one, forward[k - 1], 0)]
    for contrast, members in pairs.items():
        if not members:
            continue
        # 2. What the probe sees of N pairs [N, F]: differences, or their squares.
        owner, one, two, label = np.array(members).T
        for layer, feature in product(range(states.shape[1]), FEATURES):
            gaps = states[one, layer].astype(np.float64) - states[two, layer]
            gaps = gaps**2 if feature == "squared" else gaps
            for fold in np.unique(folds):
                # 3. Fitted on all folds but one, asked of that one, fact by fact.
                out = folds[owner] == fold
                probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
                hits = probe.fit(gaps[~out], label[~out]).predict(gaps[out]) == label[out]
                for i in np.unique(owner[out]):
                    right = float(hits[owner[out] == i].mean())
                    which = {"layer": layer, "contrast": contrast, "feature": feature}
                    yield which | {"fact": people[i], "right": right}


def _index(facts: Sequence[Fact]) -> tuple[list[str], dict[str, np.ndarray]]:
    """People that are asked both ways, and by direction, for each prompt, whose it is (or -1)."""
    ids = {way: {f.fact_id for f in facts if f.direction == way} for way in ("p2d", "d2p")}
    people = sorted(ids["p2d"] & ids["d2p"])
    if len(people) < 4:
        raise UserError(
            f"{len(people)} facts are asked in both directions: expected at least 4 to compare "
            "pairs of them; ask more facts, both ways."
        )
    at = {fact: i for i, fact in enumerate(people)}
    return people, {
        way: np.array([at.get(f.fact_id, -1) if f.direction == way else -1 for f in facts])
        for way in ("p2d", "d2p")
    }


def _row(layer: int, pair: str, fact: str, other: str | None, distance: float) -> dict[str, Any]:
    return {"layer": layer, "pair": pair, "fact": fact, "other": other, "distance": float(distance)}

"""Which features fire for a fact in both directions, and what recall loses without them.

A prompt's features are the largest that each takes over the prompt and the answer's first mask,
before anything of the answer is written. A fact's own are those that its prompts have above the
mean of all facts in that direction and phrasing: what a way of asking brings to all is no clue.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.seeds import torch_stream
from unmask.data.facts import Fact
from unmask.dictionaries.dictionary import Dictionary
from unmask.net.model import Model
from unmask.representation.patched import (
    StateChange,
    choose_canvas,
    lay_out_prompt,
    read_spans,
    score_each_patched,
)
from unmask.representation.prompts import pad_canvas

FLOOR = 1e-9


def collect_features(
    model: Model, dictionary: Dictionary, site: str, facts: Sequence[Fact], length: int | None
) -> Float[Tensor, "P F"]:
    """What each prompt's features are at most, over its tokens and where its answer begins."""
    prompts = [lay_out_prompt(model, fact, [fact]) for fact in facts]
    canvas = choose_canvas(model, prompts, length)
    rows = [
        (pad_canvas(model, each.tokens, canvas), (0, len(each.tokens) + (canvas is not None)))
        for each in prompts
    ]
    states = read_spans(model, rows, [site])
    return torch.stack([dictionary.encode(x[0]).amax(0) for x in states])


def centre_features(
    features: Float[Tensor, "P F"], facts: Sequence[Fact]
) -> dict[tuple[str, str], Float[Tensor, "F"]]:
    """By fact and direction, the mean over its prompts of features less their phrasing's mean."""
    ways = [(fact.direction, fact.phrasing) for fact in facts]
    centred = features.clone()
    for way in set(ways):
        same = [i for i, each in enumerate(ways) if each == way]
        centred[same] -= features[same].mean(0)
    owners: dict[tuple[str, str], list[int]] = {}
    for i, fact in enumerate(facts):
        owners.setdefault((fact.fact_id, fact.direction), []).append(i)
    return {who: centred[prompts].mean(0) for who, prompts in owners.items()}


def compare_features_of_facts(
    own: Mapping[tuple[str, str], Float[Tensor, "F"]], number: int
) -> Iterator[dict[str, Any]]:
    """A row for every two facts, one in each direction: how alike their features are.

    The cosine of both, and how many of the features that stand out most, so many of each, agree.
    """
    one_way, other_way = sorted({direction for _, direction in own})
    people = sorted({fact for fact, _ in own})
    for fact in people:
        for other in people:
            if (fact, one_way) in own and (other, other_way) in own:
                a, b = own[fact, one_way], own[other, other_way]
                shared = set(_choose(a, number)) & set(_choose(b, number))
                cosine = float(a @ b / (a.norm() * b.norm()).clamp_min(FLOOR))
                yield {"fact": fact, "other": other, "cosine": cosine, "shared": len(shared)}


def _choose(features: Float[Tensor, "F"], number: int) -> list[int]:
    """The features that stand out most."""
    best = features.topk(min(number, len(features)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [feature for feature, value in pairs if value > 0]


def ablate_features(
    model: Model,
    dictionary: Dictionary,
    layer: int,
    facts: Sequence[Fact],
    questions: Sequence[Fact],
    number: int,
    draws: int,
    length: int | None = None,
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """Answers of the `questions`, with what a fact's own features add taken out everywhere.

    The features are chosen on the prompts `facts` alone, asked as trained. Beside them, `draws`
    times each: another fact's features, and random directions of the dictionary of the same length
    at every position.
    """
    site = f"layers.{layer}.resid_out"
    features = collect_features(model, dictionary, site, facts, length)
    own = centre_features(features, facts)
    chosen = {fact: _choose(x, number) for (fact, _), x in own.items()}
    questions = [fact for fact in questions if fact.fact_id in chosen]
    prompts = [lay_out_prompt(model, fact, [fact]) for fact in questions]
    alive = torch.nonzero(features.amax(0))[:, 0].tolist()
    variants: list[tuple[str, Mapping[int, StateChange]]] = [("none", {})]
    ids = [fact.fact_id for fact in questions]
    remove = partial(_take_out, dictionary)
    variants.append(("own", {layer: partial(remove, _mark(dictionary, ids, chosen))}))
    for draw in range(draws):
        order = _derange(sorted(chosen), seed, draw)
        others = {fact: chosen[other] for fact, other in order.items()}
        variants.append(("other", {layer: partial(remove, _mark(dictionary, ids, others))}))
        turned = _draw_directions(dictionary, alive, len(questions), number, (seed, draw))
        marks = _mark(dictionary, ids, chosen)
        variants.append(("random", {layer: partial(remove, marks, turned=turned)}))
    scored = score_each_patched(model, prompts, [changes for _, changes in variants], length)
    for (name, _), answers in zip(variants, scored, strict=True):
        for fact, (score,) in zip(questions, answers, strict=True):
            yield fact.columns | {"ablated": name, "logp": score.logp, "said": score.is_said}


def _mark(
    dictionary: Dictionary, ids: Sequence[str], chosen: Mapping[str, Sequence[int]]
) -> Float[Tensor, "P F"]:
    """1 at the features that are taken out of each prompt's states."""
    marks = torch.zeros(len(ids), dictionary.size, device=dictionary.b_enc.device)
    for row, fact in enumerate(ids):
        marks[row, list(chosen[fact])] = 1.0
    return marks


def _take_out(
    dictionary: Dictionary,
    marks: Float[Tensor, "P F"],
    x: Float[Tensor, "R L D"],
    owners: Int[Tensor, "R"],
    turned: Float[Tensor, "P D"] | None = None,
) -> Float[Tensor, "R L D"]:
    """States without what the marked features add; or with as much taken out along `turned`."""
    removed = (dictionary.encode(x) * marks[owners][:, None]) @ dictionary.w_dec  # [R, L, D]
    if turned is not None:
        removed = removed.norm(dim=-1, keepdim=True) * turned[owners][:, None]
    return x - removed.to(x.dtype)


def _draw_directions(
    dictionary: Dictionary, alive: Sequence[int], prompts: int, number: int, names: tuple[int, int]
) -> Float[Tensor, "P D"]:
    """For each prompt the direction of the sum of some features that fire for other facts."""
    stream = torch_stream(names[0], "random features", names[1])
    picks = [torch.randperm(len(alive), generator=stream)[:number] for _ in range(prompts)]
    sums = torch.stack([dictionary.w_dec[[alive[i] for i in pick]].sum(0) for pick in picks])
    return sums / sums.norm(dim=-1, keepdim=True).clamp_min(FLOOR)


def _derange(facts: Sequence[str], seed: int, draw: int) -> dict[str, str]:
    """Another fact for each, all of them once."""
    order = np.random.default_rng((seed, draw)).permutation(len(facts))
    shifted = np.roll(order, 1)
    return {facts[i]: facts[j] for i, j in zip(order, shifted, strict=True)}

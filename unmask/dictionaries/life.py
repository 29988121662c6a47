"""When features fire while texts are written, where, and what their directions say."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.dictionaries.activations import ActivationStream
from unmask.dictionaries.dictionary import Dictionary
from unmask.net.model import Model
from unmask.sampling.trajectory import show_token

AROUND = 4
"""Tokens to each side of a context."""


def follow_features(
    dictionary: Dictionary, stream: ActivationStream
) -> tuple[list[dict[str, Any]], Float[Tensor, "F"]]:
    """For each feature that fires and each step, how often it does; and the sums of all it gave.

    A row counts the positions that are masked and those that are written, and how many of each the
    feature fires at.
    """
    fired: dict[tuple[int, bool], Tensor] = {}
    counts: dict[tuple[int, bool], int] = {}
    total = torch.zeros(dictionary.size, device=dictionary.b_enc.device)
    for batch in stream:
        features = dictionary.encode(batch.x)
        total += features.sum(0)
        for step in batch.step.unique().tolist():
            for is_masked in (True, False):
                at = (batch.step == step) & (batch.is_masked == is_masked)
                key = (step, is_masked)
                fired[key] = fired.get(key, 0) + (features[at] > 0).sum(0)
                counts[key] = counts.get(key, 0) + int(at.sum())
    steps = sorted({step for step, _ in fired})
    rows = [
        {
            "feature": feature,
            "step": step,
            "masked": counts[step, True],
            "written": counts[step, False],
            "fires_masked": int(fired[step, True][feature]),
            "fires_written": int(fired[step, False][feature]),
        }
        for feature in torch.nonzero(total)[:, 0].tolist()
        for step in steps
    ]
    return rows, total


def describe_features(
    model: Model,
    dictionary: Dictionary,
    stream: ActivationStream,
    features: Sequence[int],
    number: int = 5,
) -> Iterator[dict[str, Any]]:
    """For each feature where it fires most, and the tokens that its direction is read as.

    A direction is read through the head as the stream after the last layer is; a context is a
    written text of the stream, the token between brackets.
    """
    batches = list(stream)
    text = torch.cat([batch.text for batch in batches])
    position = torch.cat([batch.position for batch in batches])
    written = torch.cat([batch.written for batch in batches])
    strength = torch.cat([dictionary.encode(batch.x)[:, list(features)] for batch in batches])
    for column, feature in enumerate(features):
        best = strength[:, column].topk(min(number, len(strength)))
        shown = [
            _show(model, text, position, written, place)
            for place, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            if value > 0
        ]
        (tokens,) = read_directions(model, dictionary, [feature], number)
        yield {
            "feature": feature,
            "says": [show_token(token, model.tokenizer) for token in tokens],
            "contexts": list(dict.fromkeys(shown)),
        }


def read_directions(
    model: Model, dictionary: Dictionary, features: Sequence[int], number: int
) -> list[list[int]]:
    """The likeliest tokens where each feature's direction is read as the stream after the last
    layer."""
    directions = dictionary.w_dec[list(features)].to(model.net.embedding.weight.dtype)
    logits = model.net.unembed(directions[None].to(model.device))[0]
    return logits.topk(number).indices.tolist()


def _show(model: Model, text: Tensor, position: Tensor, written: Tensor, place: int) -> str:
    """The tokens around a position, itself between brackets."""
    same = text == text[place]
    tokens = dict(zip(position[same].tolist(), written[same].tolist(), strict=True))
    at = int(position[place])
    pieces = {
        here: show_token(tokens[here], model.tokenizer)
        for here in range(at - AROUND, at + AROUND + 1)
        if here in tokens
    }
    return "".join(f"[{piece}]" if here == at else piece for here, piece in pieces.items()).strip()

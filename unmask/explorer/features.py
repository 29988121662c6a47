"""Features of a written canvas: those of a position over the steps, and texts written with one of
them added."""

from contextlib import nullcontext
from typing import Any

import torch

from unmask.base.errors import UserError
from unmask.dictionaries.dictionary import Dictionary
from unmask.dictionaries.life import read_directions
from unmask.dictionaries.steering import steer
from unmask.explorer import views
from unmask.explorer.requests import FeaturesRequest, WriteRequest
from unmask.explorer.session import Explorer, TokenTexts
from unmask.explorer.worker import Emit
from unmask.net.model import Model
from unmask.sampling.canvas import encode_pattern

STATES = 64
"""States of one pass."""
WORDS = 5
"""Tokens that a direction is read as."""


@torch.inference_mode()
def find_features(
    model: Model, dictionary: Dictionary, request: FeaturesRequest, emit: Emit
) -> list[dict[str, Any]]:
    """The features that fire most at a position, each with its value in every state.

    States are run as they stand: nothing is added to them. `says` are the tokens that a feature's
    direction is read as by the head.
    """
    names, values = TokenTexts(model), []
    for first in range(0, len(request.states), STATES):
        rows = [encode_pattern(model, tokens) for tokens in request.states[first : first + STATES]]
        xt = torch.tensor(rows, device=model.device)
        with model.net.capture(dictionary.site) as kept:
            model.logits(xt, None, None, model.find_time(xt))
        values.append(dictionary.encode(kept[dictionary.site][:, request.position]))
        emit("progress", {})
    strength = torch.cat(values)  # [states, F]
    best = strength.amax(0).topk(min(request.top, dictionary.size))
    fired = [i for i, most in zip(best.indices.tolist(), best.values.tolist(), strict=True) if most]
    tokens = read_directions(model, dictionary, fired, WORDS)
    return [
        {"feature": i, "says": [names[token] for token in says], "values": strength[:, i].tolist()}
        for i, says in zip(fired, tokens, strict=True)
    ]


def show_features(explorer: Explorer, request: FeaturesRequest, emit: Emit) -> list[dict[str, Any]]:
    """The features of a position, from the dictionary that is open."""
    dictionary = explorer.pick_features(request.model)
    return find_features(explorer.pick(request.model), dictionary, request, emit)


def list_steering(model: Model, dictionary: Dictionary, request: WriteRequest) -> dict[str, Any]:
    """What `unmask.steer` is given beside model, site and direction."""
    added = request.steering
    if added.feature is None or added.feature >= dictionary.size:
        raise UserError(
            f"feature {added.feature} was asked for, expected 0 to {dictionary.size - 1}."
        )
    draw = views.plan_draw(model, request.canvas, request.settings)
    steps = views.count_steps(model, draw, views.lay_out(model, draw)[0])
    return {"strength": added.strength, "steps": steps, "schedule": added.schedule}


def write_steered(explorer: Explorer, request: WriteRequest, emit: Emit) -> None:
    """Write a canvas, with a feature added where one is asked for."""
    model, feature = explorer.pick(request.model), request.steering.feature
    steering = nullcontext()
    if feature is not None:
        dictionary = explorer.pick_features(request.model)
        given = list_steering(model, dictionary, request)
        direction = dictionary.w_dec[feature]
        steering = steer(model, dictionary.site, direction, **given)
    with steering:
        views.write(model, request, emit)

"""What the states of a written canvas show beyond their likeliest tokens, by the functions of
`unmask transparency`: the length that each expects, and what is smeared where."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.base.errors import UserError
from unmask.evaluation.smearing import (
    SequenceSmear,
    TokenSmear,
    expect_length,
    find_sequence_smear,
    find_token_smear,
    predict_state,
)
from unmask.explorer.requests import StatesRequest
from unmask.explorer.session import TokenTexts
from unmask.explorer.worker import Emit
from unmask.net.model import Model
from unmask.sampling.canvas import encode_pattern

STATES = 2
"""States of one pass; a reader who leaves ends the work after these."""
LEAST_SHOWN = 0.01
"""Less than so much at a place is not sent."""


@torch.inference_mode()
def find_smearing(model: Model, request: StatesRequest, emit: Emit) -> list[dict[str, Any]]:
    """For each state the expected length, and the token and the rival text that are smeared.

    Predictions are those without guidance. End tokens and masks count as nobody's smear.
    """
    if not model.paradigm.fills_masks:
        raise UserError(f"the model {model.name} fills no masks: smearing is read where some are.")
    names = TokenTexts(model)
    end = None if model.tokenizer is None else model.tokenizer.end_id
    known = model.net.config.logit_rows
    ignored = [each for each in (end, model.mask_id) if each is not None and each < known]
    states: list[dict[str, Any]] = []
    for first in range(0, len(request.states), STATES):
        rows = [encode_pattern(model, tokens) for tokens in request.states[first : first + STATES]]
        xt = torch.tensor(rows, device=model.device)
        p = predict_state(model, xt)
        emit("progress", {})
        token = find_token_smear(model, xt, p, ignored)
        emit("progress", {})
        sequence = find_sequence_smear(model, xt, p)
        expected = None if end is None else expect_length(p, end).tolist()
        for row in range(len(xt)):
            event = {"state": first + row, "expected": None if expected is None else expected[row]}
            event["token"] = describe_token(names, token, row)
            event["sequence"] = describe_sequence(names, sequence, row)
            emit("state", event)
            states.append(event)
    emit("end", {})
    return states


def describe_token(names: TokenTexts, smear: TokenSmear, row: int) -> dict[str, Any]:
    """A state's smeared token as the page gets it."""
    return {
        "amount": float(smear.amount[row]),
        "text": names[int(smear.token[row])],
        "home": int(smear.home[row]),
        "lost": _list_places(smear.lost[row]),
    }


def describe_sequence(names: TokenTexts, smear: SequenceSmear, row: int) -> dict[str, Any]:
    """A state's rival texts as the page gets them."""
    return {
        "amount": float(smear.amount[row]),
        "place": int(smear.place[row]),
        "texts": [names[token] for token in smear.tokens[row].tolist()],
        "apart": _list_places(smear.apart[row]),
    }


def _list_places(values: Float[Tensor, "L"]) -> dict[int, float]:
    """Values by their place, where there are any to be seen."""
    return {at: value for at, value in enumerate(values.tolist()) if value >= LEAST_SHOWN}

"""What a state of a canvas shows beyond its likeliest tokens: the length that it expects, and
tokens and rival texts that are sure to come but not yet where.

Smearing is told from places that merely look alike one by one: a token is written where it is
likeliest, and what goes away elsewhere was it, spread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.evaluation.chain import log_softmax
from unmask.net.model import Model

CANDIDATES = 2
"""Tokens, or places, that are tried in a state."""
WINDOW = 8
"""Places to either side that a token may be spread over."""
NEIGHBOURS = 3
"""Other places in which a rival text differs: it is a sequence, not a token."""


@dataclass(frozen=True)
class TokenSmear:
    """In each of B states the token that is smeared most, and where."""

    amount: Float[Tensor, "B"]
    """How much of its probability lies elsewhere though it comes only once, at most 1."""
    token: Int[Tensor, "B"]
    home: Int[Tensor, "B"]
    """Where it is likeliest."""
    lost: Float[Tensor, "B L"]
    """How far its probability falls at each open place near by once it is written at home."""


@dataclass(frozen=True)
class SequenceSmear:
    """In each of B states the place whose two tokens stand for two texts, and how far those are
    apart."""

    amount: Float[Tensor, "B"]
    """How likely the rival text is and how much it differs, at most 1."""
    place: Int[Tensor, "B"]
    """Where the model hesitates most."""
    tokens: Int[Tensor, "B 2"]
    """Between what."""
    apart: Float[Tensor, "B L"]
    """Total variation of predictions at other open places when either token is written."""


Smear = TypeVar("Smear", TokenSmear, SequenceSmear)


def doubt_length(p: Float[Tensor, "B L V"], end: int) -> Float[Tensor, "B"]:
    """How far off a text's median length is on average, as a share of half the canvas: 0 is sure.

    The sum over places of the lesser of p(end) and 1 − p(end).
    """
    ended = p[..., end]
    return 2 * torch.minimum(ended, 1 - ended).sum(-1) / p.shape[1]


@torch.inference_mode()
def predict_state(model: Model, xt: Int[Tensor, "B L"]) -> Float[Tensor, "B L V"]:
    """p of every token at every place; written ones are sure."""
    logp = log_softmax(model, model.logits(xt, None, None, model.find_time(xt)))
    is_open = (xt == model.require_mask())[..., None]
    known = xt.clamp(max=logp.shape[-1] - 1)[..., None]
    sure = torch.zeros_like(logp).scatter(-1, known, 1.0)
    return torch.where(is_open, logp.exp(), sure)


def expect_length(p: Float[Tensor, "B L V"], end: int) -> Float[Tensor, "B"]:
    """The expected number of places before the text's end: the sum of 1 − p(end).

    Of texts whose end tokens fill the canvas, as in Engels et al. 2026 (arXiv 2606.20560).
    """
    return (1 - p[..., end]).sum(-1)


def find_token_smear(
    model: Model, xt: Int[Tensor, "B L"], p: Float[Tensor, "B L V"], ignored: Sequence[int] = ()
) -> TokenSmear:
    """How much of a token's probability lies at neighbouring places though it comes only once.

    The token is written where it is likeliest; what its probability at open places near by loses by
    that is smear, at most 1. Of the tokens with most probability elsewhere the largest counts.
    """
    own = _keep_open(p, xt == model.require_mask())
    own[..., list(ignored)] = 0.0
    elsewhere = own.sum(1) - own.amax(1)  # [B, V]
    rows = torch.arange(len(xt), device=xt.device)
    tried = []
    for token in elsewhere.topk(min(CANDIDATES, elsewhere.shape[-1])).indices.T:
        mass = own[rows, :, token]  # [B, L]
        home = mass.argmax(1)
        changed = _write(model, xt, home, token)
        now = _keep_open(predict_state(model, changed), changed == model.require_mask())
        lost = (mass - now[rows, :, token]) * _find_near(home, xt.shape[1])
        lost = lost * (mass.amax(1) > 0)[:, None]
        tried.append(TokenSmear(lost.sum(1).clamp(0, 1), token, home, lost))
    return _choose_most(tried)


def find_sequence_smear(
    model: Model, xt: Int[Tensor, "B L"], p: Float[Tensor, "B L V"]
) -> SequenceSmear:
    """How likely a rival of the likeliest text is, one that differs in several places at once.

    At a place that hesitates between two tokens, twice the lesser probability, times how far the
    predictions of other places are apart when either is written: the mean total variation of the
    three that differ most.
    """
    open_ = xt == model.require_mask()
    own = _keep_open(p, open_)
    two = own.topk(2, -1)
    rows = torch.arange(len(xt), device=xt.device)
    tried = []
    for place in two.values[..., 1].topk(min(CANDIDATES, xt.shape[1])).indices.T:
        tokens = two.indices[rows, place]  # [B, 2]
        first, second = (
            predict_state(model, _write(model, xt, place, tokens[:, rank])) for rank in (0, 1)
        )
        apart = (first - second).abs().sum(-1) / 2  # [B, L]
        apart = apart.masked_fill(~open_, 0.0).scatter(1, place[:, None], 0.0)
        most = apart.topk(min(NEIGHBOURS, xt.shape[1])).values.mean(-1)
        amount = (2 * two.values[rows, place, 1] * most).clamp(0, 1)
        tried.append(SequenceSmear(amount, place, tokens, apart))
    return _choose_most(tried)


def _choose_most(tried: Sequence[Smear]) -> Smear:
    """In each state the candidate of the largest amount."""
    best = torch.stack([each.amount for each in tried]).argmax(0)
    rows = torch.arange(len(best), device=best.device)
    columns = (
        torch.stack([getattr(each, name.name) for each in tried]) for name in fields(tried[0])
    )
    return type(tried[0])(*(column[best, rows] for column in columns))


def _write(
    model: Model, xt: Int[Tensor, "B L"], place: Int[Tensor, "B"], token: Int[Tensor, "B"]
) -> Int[Tensor, "B L"]:
    """The canvases with a token written in each, where that place is open."""
    written = xt.scatter(1, place[:, None], token[:, None])
    return torch.where(xt == model.require_mask(), written, xt)


def _keep_open(p: Float[Tensor, "B L V"], open_: Bool[Tensor, "B L"]) -> Float[Tensor, "B L V"]:
    return p * open_[..., None]


def _find_near(home: Int[Tensor, "B"], length: int) -> Bool[Tensor, "B L"]:
    """The places near each row's own, that one apart."""
    far = (torch.arange(length, device=home.device) - home[:, None]).abs()
    return (far > 0) & (far <= WINDOW)

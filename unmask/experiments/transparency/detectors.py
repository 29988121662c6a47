"""Phenomena of a canvas, measured at its states and texts, each a number from 0 to 1.

Early length and smearing are read at a state. Smearing is told from places that merely look alike
one by one: a token is written where it is likeliest, and what goes away elsewhere was it, spread.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.evaluation.chain import log_softmax
from unmask.net.model import Model
from unmask.sampling.texts import sample
from unmask.sampling.trajectory import Trajectory

CANDIDATES = 2
"""Tokens, or places, that are tried in a state."""
WINDOW = 8
"""Places to either side that a token may be spread over."""
NEIGHBOURS = 3
"""Other places in which a rival text differs: it is a sequence, not a token."""


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
) -> Float[Tensor, "B"]:
    """How much of a token's probability lies at neighbouring places though it comes only once.

    The token is written where it is likeliest; what its probability at open places near by loses by
    that is smear, at most 1. Of the tokens with most probability elsewhere the largest counts.
    """
    own = _keep_open(p, xt == model.require_mask())
    own[..., list(ignored)] = 0.0
    elsewhere = own.sum(1) - own.amax(1)  # [B, V]
    best = torch.zeros(len(xt), dtype=p.dtype, device=p.device)
    rows = torch.arange(len(xt), device=xt.device)
    for token in elsewhere.topk(min(CANDIDATES, elsewhere.shape[-1])).indices.T:
        mass = own[rows, :, token]  # [B, L]
        home = mass.argmax(1)
        changed = _write(model, xt, home, token)
        now = _keep_open(predict_state(model, changed), changed == model.require_mask())
        lost = (mass - now[rows, :, token]) * _find_near(home, xt.shape[1])
        best = torch.maximum(best, lost.sum(1) * (mass.amax(1) > 0))
    return best.clamp(0, 1)


def find_sequence_smear(
    model: Model, xt: Int[Tensor, "B L"], p: Float[Tensor, "B L V"]
) -> Float[Tensor, "B"]:
    """How likely a rival of the likeliest text is, one that differs in several places at once.

    At a place that hesitates between two tokens, twice the lesser probability, times how far the
    predictions of other places are apart when either is written: the mean total variation of the
    three that differ most.
    """
    open_ = xt == model.require_mask()
    own = _keep_open(p, open_)
    two = own.topk(2, -1)
    best = torch.zeros(len(xt), dtype=p.dtype, device=p.device)
    rows = torch.arange(len(xt), device=xt.device)
    for place in two.values[..., 1].topk(min(CANDIDATES, xt.shape[1])).indices.T:
        sides = []
        for rank in (0, 1):
            token = two.indices[rows, place, rank]
            sides.append(predict_state(model, _write(model, xt, place, token)))
        apart = (sides[0] - sides[1]).abs().sum(-1) / 2  # [B, L]
        apart = apart.masked_fill(~open_, 0.0).scatter(1, place[:, None], 0.0)
        most = apart.topk(min(NEIGHBOURS, xt.shape[1])).values.mean(-1)
        best = torch.maximum(best, 2 * two.values[rows, place, 1] * most)
    return best.clamp(0, 1)


def find_revised(drawn: Trajectory, ignored: Sequence[int] = ()) -> list[float]:
    """The share of each text's written places that held another token before.

    Under noise that draws tokens anew (uniform, hybrid) most of what a state holds was never
    written. There a token counts as held where the model was surer of it than not as it came or
    stayed: sample with guesses=1.
    """
    assert drawn.states is not None, "sample with keep_states=True"
    free = drawn.committed_at > 0
    states, final = drawn.states[1:, :, : drawn.tokens.shape[1]], drawn.tokens
    other = states != final
    for token in (drawn.mask_id, *ignored):
        if token is not None:
            other = other & (states != token)
    if drawn.guess_ids is not None and drawn.guess_p is not None:
        other = other & (states == drawn.guess_ids[..., 0]) & (drawn.guess_p[..., 0] > 0.5)
    revised = (other.any(0) & free).sum(-1).double()
    return (revised / free.sum(-1).clamp(min=1)).tolist()


def find_needed(
    model: Model, prompts: Sequence[Any], drawn: Trajectory, **sampling: Any
) -> list[float]:
    """How much of each text hangs on tokens that were written on the way and are not in it.

    Such a token is knocked out: the text is written again with that token forbidden. Counted is the
    share of places, those that it stood at apart, which then hold another token; of several tokens
    the one on which most hangs. `sampling` is that by which the texts were drawn, without chance.
    """
    assert drawn.states is not None, "sample with keep_states=True"
    # 1. By token, the rows that wrote and lost it, with the places where it stood [L].
    absent: dict[int, dict[int, Tensor]] = defaultdict(dict)
    for row, final in enumerate(drawn.tokens):
        kept = {*final.tolist(), drawn.mask_id}
        states = drawn.states[1:, row]
        for token in {*states.flatten().tolist()} - kept:
            absent[token][row] = (states == token).any(0)
    # 2. Each token's rows are written again without it.
    needed = [0.0] * len(drawn.tokens)
    for token, places in absent.items():
        rows = list(places)
        again = sample(model, [prompts[row] for row in rows], forbid=[token], **sampling)
        for row, tokens in zip(rows, again.tokens, strict=True):
            counted = (drawn.committed_at[row] > 0) & ~places[row]
            changed = (tokens != drawn.tokens[row]) & counted
            needed[row] = max(needed[row], float(changed.sum() / counted.sum().clamp(min=1)))
    return needed


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

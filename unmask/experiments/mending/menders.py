"""Errors planted into texts, and the ways in which models of each kind correct a finished text."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.seeds import derive_seed
from unmask.base.streams import RowStreams
from unmask.net.batches import count_row_bytes, fit_rows
from unmask.net.model import Model
from unmask.net.paradigm import Paradigm
from unmask.noise.schedules import find_time
from unmask.sampling.token_sampler import invert


@dataclass(frozen=True)
class Planted:
    """Texts with errors, and where these are."""

    clean: Int[Tensor, "B L"]
    tokens: Int[Tensor, "B L"]
    wrong: Bool[Tensor, "B L"]


def plant_errors(
    clean: Int[Tensor, "B L"], share: float, vocab: int, mask: int | None = None, *, seed: int = 0
) -> Planted:
    """Replace exactly that share of each row's tokens by others, drawn evenly; the first stays.

    One error at least, and one right token beside the first. The mask, one of the `vocab` tokens
    where there is one, is never drawn.
    """
    streams = RowStreams.make(derive_seed(seed, "errors"), len(clean), clean.device)
    number = min(max(1, round(share * (clean.shape[1] - 1))), clean.shape[1] - 2)
    draws = streams.uniform(clean.shape[1])
    draws[:, 0] = torch.inf
    wrong = draws.argsort(-1).argsort(-1) < number
    has_mask = mask is not None and mask < vocab
    gap, number = (mask, vocab - 1) if has_mask else (vocab, vocab)
    plain = clean - (clean > gap).long()  # numbered without the mask
    others = (plain + 1 + streams.below(number - 1, clean.shape[1])) % number
    others += (others >= gap).long()
    return Planted(clean, torch.where(wrong, others, clean), wrong)


Mender = Callable[[Model, Int[Tensor, "B L"], int, float, RowStreams], Int[Tensor, "B L"]]
"""(model, texts, network calls, share of errors, streams) to texts."""


def remask_evenly(
    model: Model, tokens: Tensor, calls: int, share: float, streams: RowStreams
) -> Tensor:
    """Each call hides one of `calls` even parts of the text, drawn at random, and fills it anew."""
    part = (streams.at("part").uniform(tokens.shape[1]).argsort(-1).argsort(-1) * calls).div(
        tokens.shape[1], rounding_mode="floor"
    )
    for call in range(calls):
        tokens = _refill(model, tokens, (part == call) & _all_but_first(tokens), streams.at(call))
    return tokens


def remask_unlikely(
    model: Model, tokens: Tensor, calls: int, share: float, streams: RowStreams
) -> Tensor:
    """Every second call looks at the whole text, the next fills what it found least likely anew.

    All rounds together fill twice as many tokens as there are errors, rounded up in each round: of
    many calls more, one token a round at least. Of an odd number of calls the last is not used.
    """
    number = max(1, math.ceil(2 * share * tokens.shape[1] / max(calls // 2, 1)))
    for call in range(max(calls // 2, 1)):
        logp = _predict(model, tokens).gather(-1, tokens[..., None])[..., 0]
        logp = torch.where(_all_but_first(tokens), logp, torch.inf)
        hidden = (logp.argsort(-1).argsort(-1) < number) & _all_but_first(tokens)
        tokens = _refill(model, tokens, hidden, streams.at(call))
    return tokens


def walk_again(
    model: Model, tokens: Tensor, calls: int, share: float, streams: RowStreams
) -> Tensor:
    """The text taken for a noised one, at the time when that share of tokens is noise, and stepped
    back to time 0 through the posteriors of the model's own process."""
    process = model.make_process()
    start = float(find_time(process.schedule, torch.tensor([share], dtype=torch.float64))[0])
    times = torch.linspace(start, 0.0, calls + 1, dtype=torch.float64, device=tokens.device)
    first = tokens[:, :1]
    for step, (t, s) in enumerate(pairwise(times)):
        at, to = (time.expand(len(tokens), 1) for time in (t, s))
        network_time = at[:, 0] if model.net.config.time else None
        logits = model.logits(tokens, t=network_time).double()
        back = process.posterior(logits, tokens, at, to)
        drawn = invert(back, streams.at(step).uniform(tokens.shape[1]))
        tokens = torch.cat((first, drawn[:, 1:]), 1)
    return tokens


MENDERS: Mapping[str, Mender] = {
    "remask evenly": remask_evenly,
    "remask unlikely": remask_unlikely,
    "walk again": walk_again,
}


def list_menders(paradigm: Paradigm) -> list[str]:
    """The ways in which models of a kind can correct a finished text."""
    if paradigm.fills_masks:
        return ["remask evenly", "remask unlikely"]
    return ["walk again"] if paradigm.sampler == "ancestral" else []


@torch.no_grad()
def mend(
    model: Model, planted: Planted, way: str, calls: int, share: float, seed: int = 0
) -> Iterator[dict[str, float]]:
    """Each text's shares of errors that were changed and that were mended, and of right tokens
    that were changed. The first token does not count: no way of mending may change it."""
    rows, length = planted.tokens.shape
    batch = fit_rows(model, count_row_bytes(model, length, length))
    streams = RowStreams.make(derive_seed(seed, "mend", way), rows, planted.tokens.device)
    for at in torch.arange(rows, device=planted.tokens.device).split(batch):
        given = planted.tokens[at]
        ended = MENDERS[way](model, given, calls, share, streams.pick(at))
        wrong, clean = planted.wrong[at], planted.clean[at]
        sound = ~wrong & _all_but_first(given)
        changed = ended != given
        pairs = (changed, wrong), (ended == clean, wrong), (changed, sound)
        shares = [((values & where).sum(-1) / where.sum(-1)).tolist() for values, where in pairs]
        for changes, mends, damage in zip(*shares, strict=True):
            row = {"found": changes, "mended": mends, "damaged": damage}
            yield row | {"selective": changes - damage}


def _all_but_first(tokens: Tensor) -> Tensor:
    return torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens) > 0


def _predict(model: Model, tokens: Tensor) -> Float[Tensor, "B L V"]:
    t = model.find_time(tokens)
    if t is not None:
        t = t.clamp(1e-3, 1 - 1e-3)  # whole texts and bare masks are rare in training
    return model.make_process().predict(model.logits(tokens, t=t).double())


def _refill(model: Model, tokens: Tensor, hidden: Tensor, streams: RowStreams) -> Tensor:
    """Hidden tokens drawn anew in one call, given all others."""
    assert model.mask_id is not None
    logp = _predict(model, torch.where(hidden, model.mask_id, tokens))
    drawn = invert(logp, streams.uniform(tokens.shape[1]))
    return torch.where(hidden, drawn, tokens)

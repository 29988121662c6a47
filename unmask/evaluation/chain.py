"""Joint log-probabilities by the chain rule: one token after the other, for both kinds of model.

A masked model is asked once for every token, with those written before it shown and the rest of the
canvas masked; a causal model is asked once for all of them. The models are taken as they are:
guidance plays no part.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.evaluation.questions import require_tokenizer
from unmask.net.batches import count_row_bytes, fit_rows, map_batches
from unmask.net.model import Model


@dataclass(frozen=True)
class Chain:
    """A text, and the order in which some of its tokens are written; the others are given."""

    tokens: list[int]
    order: list[int]


@torch.inference_mode()
def score_chains(
    model: Model, chains: Sequence[Chain], length: int, items: Sequence[int] | None = None
) -> list[list[float]]:
    """log p of each token of each chain under a masked model, in the order of writing.

    Every text stands at the start of a canvas of `length`; masks fill it up. `items` are what the
    chains are about, which is announced to patches (`Taps.in_rows`); by default themselves.
    """
    # 1. All texts [C, L], and when each token is written [C, L]: -1 given, L never.
    about = range(len(chains)) if items is None else items
    mask_id, device = model.require_mask(), model.device
    tokens = torch.full((len(chains), length), mask_id)
    rank = torch.full((len(chains), length), length)
    for i, chain in enumerate(chains):
        tokens[i, : len(chain.tokens)] = torch.tensor(chain.tokens)
        rank[i, : len(chain.tokens)] = -1
        rank[i, chain.order] = torch.arange(len(chain.order))
    tokens, rank = tokens.to(device), rank.to(device)
    # 2. A query for each token of each chain: all are known beforehand, and run as batches.
    queries = [(i, k, at) for i, chain in enumerate(chains) for k, at in enumerate(chain.order)]

    def score(batch: Sequence[tuple[int, int, int]]) -> list[float]:
        # 3. In its state [B, L] all that is written at its step or later is masked; it is read at
        #    its own position [B, V].
        row, step, at = torch.tensor(batch, device=device).T
        xt = torch.where(rank[row] >= step[:, None], mask_id, tokens[row])
        with model.net.taps.in_rows([about[i] for i, _, _ in batch]):
            logits = model.logits(xt, None, at[:, None], model.find_time(xt))[:, 0]
        return log_softmax(model, logits).gather(-1, tokens[row, at][:, None])[:, 0].tolist()

    terms: list[list[float]] = [[] for _ in chains]
    for batch, scores in map_batches(
        queries, fit_rows(model, count_row_bytes(model, length, 1)), score
    ):
        for (i, _, _), logp in zip(batch, scores, strict=True):
            terms[i].append(logp)
    return terms


@dataclass(frozen=True)
class Continuations:
    """What a causal model says after a prompt."""

    entropy: float
    """The entropy of the first token, in nats."""
    terms: list[list[float]]
    """log p of each token of each answer, all before it given."""


@torch.inference_mode()
def score_continuations(
    model: Model, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[Sequence[int]]]
) -> list[Continuations]:
    """log p of several answers after each prompt under a causal model; a prompt runs only once."""
    scored: dict[int, Continuations] = {}
    by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for size, group in groupby(by_length, key=lambda i: len(prompts[i])):
        rows = list(group)
        longest = max(len(answer) for i in rows for answer in answers[i])
        each = count_row_bytes(model, size + longest, longest)
        most = max(len(answers[i]) for i in rows)

        def score(batch: Sequence[int]) -> list[Continuations]:
            own = [prompts[i] for i in batch], [answers[i] for i in batch]
            return list(_score_group(model, batch, *own))

        for batch, scores in map_batches(rows, max(1, fit_rows(model, each) // most), score):
            scored |= zip(batch, scores, strict=True)
    return [scored[i] for i in range(len(prompts))]


def _score_group(
    model: Model,
    numbers: Sequence[int],
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[Sequence[int]]],
) -> Iterator[Continuations]:
    """The scored answers of prompts of one length, which have these numbers."""
    # 1. P prompts of one length, N answers filled up to one length [N, A], and whose they are [N].
    device, past = model.device, len(prompts[0])
    flat = [answer for those in answers for answer in those]
    owners = [i for i, those in enumerate(answers) for _ in those]
    owner = torch.tensor(owners, device=device)
    counts = torch.tensor([len(answer) for answer in flat], device=device)
    longest = max(len(answer) for answer in flat)
    padded = torch.tensor([[*row, *[0] * (longest - len(row))] for row in flat], device=device)
    given = torch.tensor([list(prompt) for prompt in prompts], device=device)
    last = torch.tensor([past - 1], device=device)
    # 2. log p after each prompt [P, V], and of every answer's tokens [N, A].
    taps = model.net.taps
    usual = cache(lambda: _score_with_cache(model, given, last, owner, padded, counts))
    read_at = torch.arange(past - 1, past + longest - 1, device=device)

    # Patches and captures see whole texts: every answer is run with its prompt before it.
    def read_first() -> Float[Tensor, "P V"]:
        return log_softmax(model, model.net(given, None, last)[:, 0])

    def read_answers() -> Float[Tensor, "N A"]:
        logits = model.net(torch.cat((given[owner], padded[:, :-1]), 1), None, read_at)
        return log_softmax(model, logits).gather(-1, padded[..., None])[..., 0]

    with taps.in_rows(numbers):
        first = taps.run_watched(read_first, lambda: usual()[0])
    with taps.in_rows([numbers[i] for i in owners]):
        logp = taps.run_watched(read_answers, lambda: usual()[1])
    # 3. Each prompt's answers again, without what filled them up.
    rows, entropies = logp.tolist(), entropy(first).tolist()
    begin = 0
    for i, those in enumerate(answers):
        terms = [row[: len(answer)] for row, answer in zip(rows[begin:], those, strict=False)]
        yield Continuations(entropies[i], terms)
        begin += len(those)


def _score_with_cache(
    model: Model,
    given: Int[Tensor, "P L"],
    last: Int[Tensor, "1"],
    owner: Int[Tensor, "N"],
    padded: Int[Tensor, "N A"],
    counts: Int[Tensor, "N"],
) -> tuple[Float[Tensor, "P V"], Float[Tensor, "N A"]]:
    """log p of every first token, and of each answer's own tokens; each prompt runs only once."""
    past, longest = given.shape[1], padded.shape[1]
    shared = model.net.new_cache(len(given), past)
    first = log_softmax(model, model.net(given, None, last, shared)[:, 0])
    logp = torch.zeros(padded.shape, dtype=first.dtype, device=given.device)
    logp[:, 0] = first[owner, padded[:, 0]]
    if longest > 1:
        cache = model.net.new_cache(len(padded), past + longest - 1)
        cache.keys[:, :, :, :past] = shared.keys[:, owner]
        cache.values[:, :, :, :past] = shared.values[:, owner]
        cache.length = past
        is_scored = torch.arange(1, longest, device=given.device) < counts[:, None]
        logits = model.net(padded[:, :-1], None, is_scored, cache)
        later = log_softmax(model, logits).gather(-1, padded[:, 1:][is_scored][:, None])[:, 0]
        logp[:, 1:].masked_scatter_(is_scored, later)
    return first, logp


def score_alone(model: Model, chains: Sequence[Chain], length: int) -> list[list[float]]:
    """log p of each token of each chain, in the order of writing, without any prompt.

    A masked model keeps the text as it stands, on a canvas of `length`; a causal model reads it in
    the order of writing, after what a document comes after.
    """
    if model.paradigm.sees_later:
        return score_chains(model, chains, length)
    texts = [[[chain.tokens[i] for i in chain.order]] for chain in chains]
    start = require_tokenizer(model).opening
    return [each.terms[0] for each in score_continuations(model, [start] * len(chains), texts)]


def log_softmax(model: Model, logits: Float[Tensor, "*N V"]) -> Float[Tensor, "*N V"]:
    """log p in float64; the mask has probability 0."""
    # A copy whatever the dtype: a capture may hold the network's own tensor.
    logits = logits.to(torch.float64, copy=True)
    if model.mask_id is not None and model.mask_id < logits.shape[-1]:
        logits[..., model.mask_id] = -torch.inf
    return logits.log_softmax(-1)


def entropy(logp: Float[Tensor, "*N V"]) -> Float[Tensor, "*N"]:
    """In nats."""
    return -torch.where(logp == -torch.inf, 0.0, logp.exp() * logp).sum(-1)

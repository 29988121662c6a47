"""How likely a text is: estimates of the bound, the chain rule in any order, and their errors.

(a) Bernoulli: each unknown token is masked with probability t, t stratified; (b) exact-k: exactly k
of n are masked, k stratified over 1 … n, the cross-entropy counted n/k times: the same expectation
with a smaller spread; (c) chain rule in an order: exact for the model that decodes in that order, a
different quantity, whose mean over all orders is the bound.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partialmethod
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.config import LARGEST, check_arguments
from unmask.base.errors import UserError, suggest
from unmask.base.progress import track_inside
from unmask.base.seeds import derive_seed
from unmask.base.streams import RowStreams
from unmask.data.tokenizer import Added
from unmask.net.batches import count_row_bytes, fit_rows
from unmask.net.model import Model
from unmask.noise.guidance import mix
from unmask.noise.masked import Masked
from unmask.noise.process import check_clean_tokens
from unmask.noise.schedules import Schedule, check_closed

Logits = Callable[[Tensor, Tensor], Tensor]
"""x_t [B, L] and which n of its positions are read [B, L] to logits [n, V]."""
Method = Literal["exact_k", "bernoulli", "chain"]
TextOrIds = str | Sequence[int] | Tensor
"""A text, or its token ids."""


@dataclass(frozen=True)
class Estimate:
    """-log p of a text in nats, with its standard error (0 where it is exact)."""

    nll: float
    error: float
    tokens: int
    """Tokens that were asked for."""

    @property
    def perplexity(self) -> float:
        return exponentiate(self.nll / self.tokens)

    def bits_per_character(self, text: str) -> float:
        return self.nll / math.log(2) / len(text)

    def __add__(self, other: "Estimate") -> "Estimate":
        """The estimate of two texts together; if their seeds differ, else their errors add up."""
        error = math.hypot(self.error, other.error)
        return Estimate(self.nll + other.nll, error, self.tokens + other.tokens)


def exponentiate(nats: float) -> float:
    """e to that power, infinite where that is too much for a number."""
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf


class Scorer:
    """Scores texts under a masked diffusion model, in batches of at most `batch` rows."""

    def __init__(
        self,
        logits: Logits,
        process: Masked,
        guidance: float = 0.0,
        batch: int = 64,
        kept: int = 0,
    ):
        check_closed(process.schedule)
        self.logits, self.process = logits, process
        self.guidance, self.batch = guidance, batch
        self.kept = kept
        """A text's first tokens that guidance does not hide."""

    def _estimate(
        self,
        method: Method,
        x0: Int[Tensor, "L"],
        given: Bool[Tensor, "L"] | None = None,
        strata: int = 16,
        repeats: int = 8,
        seed: int = 0,
    ) -> Estimate:
        """The bound by one of the two ways of masking, its times or numbers in even strata."""
        unknown = self._find_unknown(x0, given)
        hidden, weight = draw_masks(method, unknown, strata, repeats, seed, self.process.schedule)
        costs = -weight * self._score(x0, hidden, hidden, unknown)
        return combine_repeats(costs, repeats, int(unknown.sum()))

    bernoulli = partialmethod(_estimate, "bernoulli")
    """The bound by masking each unknown token with probability p_t.

    -log p <= E_t[w_t sum over masked i of -log p(x_i | x_t)], w_t the schedule's weight, which is
    1 / t for a linear one (Sahoo et al. 2024, arXiv 2406.07524).
    """
    exact_k = partialmethod(_estimate, "exact_k")
    """The bound by masking exactly k of the n unknown tokens.

    Under the bound above every k is equally likely, and the sum over masked tokens counts n / k
    times: -log p <= E_k[n / k sum over masked i of -log p(x_i | x_k)], k uniform in 1 … n (Nie et
    al. 2025, arXiv 2502.09992). How many are masked is then no longer left to chance.
    """

    def chain(
        self,
        x0: Int[Tensor, "L"],
        given: Bool[Tensor, "L"] | None = None,
        order: Sequence[int] | None = None,
    ) -> Estimate:
        """-log p of writing the unknown tokens one at a time in an order (left to right).

        log p = sum over i of log p(x at order i | given, x at orders before i): exact, and another
        number for another order, since a network's conditionals need not belong to one joint.
        """
        unknown = self._find_unknown(x0, given)
        positions = unknown.nonzero()[:, 0]
        order = positions.tolist() if order is None else list(order)
        if sorted(order) != positions.tolist():
            raise UserError(
                f"the order {order} is not an order of the unknown positions {positions.tolist()}."
            )
        # 1. When each position is written [L]; -1: it is given, before all steps.
        steps = torch.tensor(order, device=x0.device)
        rows = torch.arange(len(order), device=x0.device)
        rank = torch.full_like(x0, -1)
        rank[steps] = rows
        # 2. A row for each step [n, L]: what is written at it or later is hidden. All rows are
        #    known beforehand, so that they run as batches, not one after the other.
        hidden = rank >= rows[:, None]
        # 3. Of each row only the token that its step writes counts.
        logp = self._score(x0, hidden, rank == rows[:, None], unknown)
        return Estimate(-float(logp.sum()), 0.0, len(order))

    def _find_unknown(self, x0: Tensor, given: Tensor | None) -> Bool[Tensor, "L"]:
        check_clean_tokens(x0, self.process.num_states, self.process.mask_id)
        unknown = torch.ones_like(x0, dtype=torch.bool) if given is None else ~given
        if not unknown.any():
            raise UserError("all tokens are given: nothing is left whose likelihood is asked.")
        if self.guidance and not (~unknown)[self.kept :].any():
            raise UserError("guidance needs a prompt: give some tokens, or use guidance 0.")
        return unknown

    @torch.no_grad()
    def _score(
        self, x0: Tensor, hidden: Tensor, read: Tensor, unknown: Tensor
    ) -> Float[Tensor, "R"]:
        """log p of the true tokens where each row is read, summed: rows hide some of the tokens.

        Logits take V numbers a position: they are computed where they are read, nowhere else.
        """
        sums = []
        for rows, at in zip(hidden.split(self.batch), read.split(self.batch), strict=True):
            xt = torch.where(rows, self.process.mask_id, x0)  # [b, L]
            logits = self.logits(xt, at).double()  # [n, V]: in float32 long sums would drift
            if self.guidance:
                # The second pass hides what was given and shows what was written so far.
                shown = unknown | (torch.arange(len(unknown), device=xt.device) < self.kept)
                without = torch.where(shown, xt, self.process.mask_id)
                logits = mix(logits, self.logits(without, at).double(), self.guidance)
            logp = self.process.predict(logits).gather(-1, x0.expand_as(at)[at][:, None])
            sums.append(logp.new_zeros(at.shape).masked_scatter_(at, logp).sum(-1))
        return torch.cat(sums)


def draw_masks(
    method: Method,
    unknown: Bool[Tensor, "L"],
    strata: int,
    repeats: int,
    seed: int,
    schedule: Schedule,
) -> tuple[Bool[Tensor, "R L"], Float[Tensor, "R"]]:
    """What R = strata x repeats rows hide, and how often the cost of what a row hides counts."""
    # 1. A number in (0, 1) for each row: one in each stratum, for each repeat.
    share, streams = stratify(strata, repeats, seed, unknown.device)
    draws = streams.uniform(len(unknown))
    if method == "bernoulli":
        # 2. It is the row's time: each unknown token is hidden for itself [R, L].
        return (draws < schedule.noised(share)[:, None]) & unknown, schedule.weight(share)
    # 2. It says how many are hidden, evenly spread over 1 … n: those with the smallest draws,
    #    rank of each draw < k [R, L]. A row's cost counts as if all n were asked for.
    n = int(unknown.sum())
    k = 1 + (share * n).long().clamp(max=n - 1)
    ranks = draws.masked_fill(~unknown, torch.inf).argsort(-1).argsort(-1)
    return ranks < k[:, None], n / k.double()


def combine_repeats(costs: Float[Tensor, "R"], repeats: int, tokens: int) -> Estimate:
    """Mean over independent stratified batches, and the spread of their means as its error.

    Rows of one repeat are not independent (each has another stratum), their means are.
    """
    if repeats < 2:
        raise UserError(f"{repeats} repeat(s) give no standard error: use at least 2.")
    means = costs.double().view(repeats, -1).mean(-1)
    return Estimate(float(means.mean()), float(means.std() / math.sqrt(repeats)), tokens)


@torch.no_grad()
def score_causal(
    logits: Callable[[Tensor], Tensor],
    x0: Int[Tensor, "L"],
    given: Bool[Tensor, "L"] | None = None,
) -> Estimate:
    """-log p under an autoregressive model, whose row i predicts position i + 1: exact.

    The first token has nothing before it and must be given.
    """
    given = torch.arange(len(x0), device=x0.device) < 1 if given is None else given
    if not bool(given[0]):
        raise UserError("an autoregressive model cannot score a text's first token: give it.")
    # One pass gives all conditionals: row i sees the tokens up to i and predicts the one after it.
    logp = logits(x0[None])[0, :-1].double().log_softmax(-1)  # [L - 1, V]
    nll = -logp.gather(-1, x0[1:, None])[:, 0]
    return Estimate(float(nll[~given[1:]].sum()), 0.0, int((~given).sum()))


def score_rolling(
    score: Callable[[Tensor, Tensor, int], Estimate],
    x0: Int[Tensor, "N"],
    context: int,
    stride: int,
    seed: int = 0,
) -> Estimate:
    """-log p of a text longer than the context, in windows that move on by `stride` tokens.

    Every token counts once, given the tokens of its window that were counted before; `score` takes
    a window, which of its tokens are given, and a seed, another one for each window, so that their
    errors are independent. The text's first token is taken as given.
    """
    total = Estimate(0.0, 0.0, 0)
    for start, done, stop in track_inside(list(list_windows(len(x0), context, stride))):
        given = torch.arange(start, stop, device=x0.device) < done
        total += score(x0[start:stop], given, derive_seed(seed, "window", start))
    return total


def list_windows(length: int, context: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Where each window of a text starts, where the tokens begin that it counts, where it stops."""
    if not 1 <= stride < context:
        raise UserError(
            f"a stride of {stride} does not fit a context of {context}: use 1 to {context - 1}."
        )
    done = 1
    while done < length:
        # The first window counts all it holds, later ones their last `stride` tokens: those have
        # context - stride tokens or more before them.
        stop = min(done + stride, length) if done > 1 else min(context, length)
        yield max(0, stop - context), done, stop
        done = stop


def stratify(
    strata: int, repeats: int, seed: int, device: torch.device
) -> tuple[Float[Tensor, "R"], RowStreams]:
    """Numbers in (0, 1), one in each stratum for each repeat, and the rows' streams after them."""
    if strata < 1 or repeats < 1:
        raise UserError(
            f"{strata} strata and {repeats} repeats were asked for: expected at least 1 of each."
        )
    streams = RowStreams.make(seed, strata * repeats, device)
    stratum = torch.arange(strata, device=device).repeat(repeats)
    return (stratum + streams.uniform(1)[:, 0]) / strata, streams


def make_scorer(model: Model, length: int, guidance: float = 0.0, kept: int = 0) -> Scorer:
    """A scorer of texts of that length under a masked model, in batches that fit its device."""
    mask_id, rows = model.mask_id, model.net.config.logit_rows
    assert mask_id is not None, "masked models have a mask"
    process = Masked(rows - (mask_id < rows), mask_id)
    passes = 2 if guidance else 1
    batch = fit_rows(model, count_row_bytes(model, length, length, passes))
    return Scorer(_condition_on_time(model), process, guidance, batch, kept)


def _condition_on_time(model: Model) -> Logits:
    """The model's logits; a network that takes the time gets the one when as many are masked."""
    return lambda tokens, at: model.logits(tokens, at=at, t=model.find_time(tokens))


@check_arguments(strata=(1, 1_000_000), repeats=(1, 1_000_000), seed=(0, LARGEST))
def likelihood(
    model: Model,
    text: TextOrIds,
    prompt: TextOrIds = "",
    method: Method = "exact_k",
    order: Sequence[int] | None = None,
    guidance: float = 0.0,
    strata: int = 16,
    repeats: int = 8,
    seed: int = 0,
) -> Estimate:
    """-log p(text | prompt) in nats, with its standard error.

    For a masked model an upper bound, estimated by masking the text at random, or the exact cost of
    writing it in one order; for a causal model exact. The prompt's tokens are never masked.

    Args:
        model: Masked or causal.
        text: A text or its L token ids.
        prompt: What stands before it, a text or token ids; a causal model needs at least a token.
            A text comes after the beginning of its tokenizer, token ids stand as they are.
        method: "exact_k" masks exactly k tokens at a time, "bernoulli" each with a probability:
            the same bound, the first with a smaller error. "chain" writes one token at a time and
            has no error. A causal model has one way, and does not read it.
        order: Of "chain": the positions of the text from 0 to L - 1 as they are written; by default
            from left to right.
        guidance: Strength of classifier-free guidance, 0 for none; it needs a prompt.
        strata: Numbers of masks, or times, that are evenly spread in one estimate.
        repeats: Independent estimates, whose spread is the error; at least 2.
        seed: Of the masks.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> cost = unmask.likelihood(model, " our old friend.", "We sat down beside", seed=1)
    >>> cost.nll > 0 and cost.error > 0, cost.tokens
    (True, 4)
    >>> unmask.likelihood(model, " our old friend.", "We sat down beside", "chain").error
    0.0
    """
    model.paradigm.require_scored(model.name, "likelihoods are computed")
    if method not in get_args(Method):
        raise UserError(f"the method {method!r} is unknown: {suggest(method, get_args(Method))}")
    ids = _read_ids(model, text, "nothing")
    is_bare = isinstance(prompt, str) and not prompt and not isinstance(text, str)
    before = [] if is_bare else _read_ids(model, prompt, "beginning")
    if not ids:
        raise UserError("the likelihood of an empty text was asked for: give at least a token.")
    if order is not None and method != "chain":
        raise UserError(f"an order was given with the method {method!r}: use method='chain'.")
    x0 = torch.tensor(before + ids, device=model.device)
    given = torch.arange(len(x0), device=model.device) < len(before)
    if not model.paradigm.sees_later:
        if order is not None or guidance:
            raise UserError(
                "an autoregressive model writes from left to right and has no unconditional pass: "
                "give neither order nor guidance."
            )
        return score_causal(model.logits, x0, given)
    scorer = make_scorer(model, len(x0), guidance, model.count_kept(before))
    if method == "chain":
        steps = None if order is None else [len(before) + position for position in order]
        return scorer.chain(x0, given, steps)
    estimate = scorer.exact_k if method == "exact_k" else scorer.bernoulli
    return estimate(x0, given, strata, repeats, seed)


def _read_ids(model: Model, text: TextOrIds, added: Added) -> list[int]:
    """The token ids of a text; ids that the network does not know raise."""
    if isinstance(text, str):
        if text and model.tokenizer is None:
            raise UserError(f"the model {model.name} has no tokenizer: give texts as token ids.")
        return [] if model.tokenizer is None else model.tokenizer.encode(text, added=added).ids
    ids = [int(token) for token in text]
    rows = model.net.config.logit_rows
    if unknown := [token for token in ids if not 0 <= token < rows]:
        raise UserError(f"token {unknown[0]} was given, but tokens run from 0 to {rows - 1}.")
    return ids

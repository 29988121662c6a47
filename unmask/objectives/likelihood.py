"""How likely a text is: estimates of the bound, the chain rule in any order, and their errors.

(a) Bernoulli: each unknown token is masked with probability t, t stratified; (b) exact-k: exactly k
of n are masked, k stratified over 1 … n, the cross-entropy counted n/k times: the same expectation
with a smaller spread; (c) chain rule in an order: exact for the model that decodes in that order, a
different quantity, whose mean over all orders is the bound.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.seeds import derive_seed
from unmask.base.streams import RowStreams
from unmask.noise.guidance import mix
from unmask.noise.masked import Masked
from unmask.noise.process import check_tokens
from unmask.noise.schedules import check_closed

Logits = Callable[[Tensor], Tensor]
"""x_t [B, L] to logits [B, L, V]."""


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
        """Of two texts together; estimated with different seeds, else their errors add up."""
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

    def __init__(self, logits: Logits, process: Masked, guidance: float = 0.0, batch: int = 64):
        check_closed(process.schedule)
        self.logits, self.process = logits, process
        self.guidance, self.batch = guidance, batch

    def bernoulli(
        self,
        x0: Int[Tensor, "L"],
        given: Bool[Tensor, "L"] | None = None,
        strata: int = 16,
        repeats: int = 8,
        seed: int = 0,
    ) -> Estimate:
        """The bound by masking each unknown token with probability p_t, t in even strata."""
        _check_draws(strata, repeats)
        unknown = self._find_unknown(x0, given)
        streams = RowStreams.make(seed, strata * repeats, x0.device)
        stratum = torch.arange(strata, device=x0.device).repeat(repeats)
        t = (stratum + streams.uniform(1)[:, 0]) / strata
        chance = self.process.schedule.noised(t)[:, None]
        hidden = (streams.uniform(len(x0)) < chance) & unknown
        weight = self.process.schedule.weight(t)
        return self._combine(weight * self._sum_hidden(x0, hidden, unknown), repeats, unknown)

    def exact_k(
        self,
        x0: Int[Tensor, "L"],
        given: Bool[Tensor, "L"] | None = None,
        strata: int = 16,
        repeats: int = 8,
        seed: int = 0,
    ) -> Estimate:
        """The bound by masking exactly k of the n unknown tokens, k in even strata of 1 … n."""
        _check_draws(strata, repeats)
        unknown = self._find_unknown(x0, given)
        n = int(unknown.sum())
        streams = RowStreams.make(seed, strata * repeats, x0.device)
        stratum = torch.arange(strata, device=x0.device).repeat(repeats)
        k = 1 + ((stratum + streams.uniform(1)[:, 0]) / strata * n).long().clamp(max=n - 1)
        # The k unknown tokens with the smallest draws are hidden.
        draws = streams.uniform(len(x0)).masked_fill(~unknown, torch.inf)
        hidden = draws.argsort(-1).argsort(-1) < k[:, None]
        return self._combine(
            n / k.double() * self._sum_hidden(x0, hidden, unknown), repeats, unknown
        )

    def chain(
        self,
        x0: Int[Tensor, "L"],
        given: Bool[Tensor, "L"] | None = None,
        order: Sequence[int] | None = None,
    ) -> Estimate:
        """-log p of writing the unknown tokens one at a time in an order (left to right)."""
        unknown = self._find_unknown(x0, given)
        positions = unknown.nonzero()[:, 0]
        order = positions.tolist() if order is None else list(order)
        if sorted(order) != positions.tolist():
            raise UserError(
                f"the order {order} is not an order of the unknown positions {positions.tolist()}."
            )
        steps = torch.tensor(order, device=x0.device)
        rank = torch.full_like(x0, -1)
        rank[steps] = torch.arange(len(order), device=x0.device)
        rows = torch.arange(len(order), device=x0.device)
        hidden = rank >= rows[:, None]
        logp = self._score(x0, hidden, unknown)
        return Estimate(-float(logp[rows, steps].sum()), 0.0, len(order))

    def _find_unknown(self, x0: Tensor, given: Tensor | None) -> Bool[Tensor, "L"]:
        check_tokens(x0, self.process.num_states, self.process.mask_id)
        unknown = torch.ones_like(x0, dtype=torch.bool) if given is None else ~given
        if not unknown.any():
            raise UserError("all tokens are given: nothing is left whose likelihood is asked.")
        if self.guidance and not (~unknown).any():
            raise UserError("guidance needs a prompt: give some tokens, or use guidance 0.")
        return unknown

    def _sum_hidden(self, x0: Tensor, hidden: Tensor, unknown: Tensor) -> Float[Tensor, "R"]:
        logp = self._score(x0, hidden, unknown)
        return -torch.where(hidden, logp, 0.0).sum(-1)

    @torch.no_grad()
    def _score(self, x0: Tensor, hidden: Tensor, unknown: Tensor) -> Float[Tensor, "R L"]:
        """log p of every true token in rows that hide some of them."""
        scores = []
        for rows in hidden.split(self.batch):
            xt = torch.where(rows, self.process.mask_id, x0)
            logits = self.logits(xt).double()
            if self.guidance:
                without = self.logits(torch.where(unknown, xt, self.process.mask_id)).double()
                logits = mix(logits, without, self.guidance)
            logp = self.process.predict(logits)
            scores.append(logp.gather(-1, x0.expand_as(rows)[..., None])[..., 0])
        return torch.cat(scores)

    def _combine(self, values: Float[Tensor, "R"], repeats: int, unknown: Tensor) -> Estimate:
        """Mean over independent stratified batches; rows of one batch share their strata."""
        if repeats < 2:
            raise UserError(f"{repeats} repeat(s) give no standard error: use at least 2.")
        means = values.double().view(repeats, -1).mean(-1)
        error = float(means.std() / math.sqrt(repeats))
        return Estimate(float(means.mean()), error, int(unknown.sum()))


@torch.no_grad()
def score_causal(
    logits: Logits, x0: Int[Tensor, "L"], given: Bool[Tensor, "L"] | None = None
) -> Estimate:
    """-log p under an autoregressive model, whose row i predicts position i + 1: exact.

    The first token has nothing before it and must be given.
    """
    given = torch.arange(len(x0), device=x0.device) < 1 if given is None else given
    if not bool(given[0]):
        raise UserError("an autoregressive model cannot score a text's first token: give it.")
    logp = logits(x0[None])[0, :-1].double().log_softmax(-1)
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
    if not 1 <= stride < context:
        raise UserError(
            f"a stride of {stride} does not fit a context of {context}: use 1 to {context - 1}."
        )
    total, done = Estimate(0.0, 0.0, 0), 1
    while done < len(x0):
        stop = min(done + stride, len(x0)) if done > 1 else min(context, len(x0))
        start = max(0, stop - context)
        window = x0[start:stop]
        given = torch.arange(start, stop, device=x0.device) < done
        estimate = score(window, given, derive_seed(seed, "window", start))
        total, done = total + estimate, stop
    return total


def _check_draws(strata: int, repeats: int) -> None:
    if strata < 1 or repeats < 1:
        raise UserError(
            f"{strata} strata and {repeats} repeats were asked for: expected at least 1 of each."
        )

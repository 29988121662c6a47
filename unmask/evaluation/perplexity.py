"""What documents cost: a bound for diffusion models, exact for causal ones, with its error.

A masked model also has an exact cost: that of writing the text from left to right, one token in a
call (`METHODS`).
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from unmask.base.errors import UserError, suggest
from unmask.base.progress import track
from unmask.base.seeds import derive_seed
from unmask.evaluation.chain import Chain, score_chains
from unmask.evaluation.questions import require_tokenizer
from unmask.net.model import Model
from unmask.net.paradigm import Paradigm
from unmask.noise.process import Process
from unmask.objectives.bounds import score_bound
from unmask.objectives.likelihood import (
    Estimate,
    list_windows,
    make_scorer,
    score_causal,
    score_rolling,
)

METHODS = ("bound", "chain")
"""How a diffusion model's cost is found: an upper bound on -log p by drawn noise; or the exact cost
of writing the text from left to right, one token at a time, which masked models alone have. Causal
models have one cost, and do not read it."""

_log = logging.getLogger("unmask")
TextScorer = Callable[[Tensor, Tensor, int], Estimate]
"""A window, which of its tokens are given, and a seed."""


def cut_documents(documents: Sequence[str], characters: int | None) -> list[str]:
    """The documents up to that many characters in all; empty ones are left out."""
    if characters is not None and characters < 1:
        raise UserError(f"a limit of {characters} characters was given: expected at least 1.")
    kept, left = [], characters
    for text in documents:
        text = text if left is None else text[:left]
        left = None if left is None else left - len(text)
        if text.strip():
            kept.append(text)
    if not kept:
        raise UserError("no text is left to score: give a file with text, or a larger limit.")
    return kept


def score_documents(
    model: Model,
    documents: Sequence[str],
    context: int | None = None,
    stride: int | None = None,
    repeats: int = 8,
    seed: int = 0,
    method: str = "bound",
    process: Process | None = None,
) -> Iterator[Estimate]:
    """What each document costs, after its beginning or else an end token, as packed text has it.

    A document longer than `context` (the model's by default) is read in windows that move on by
    `stride` tokens (half a window). `method` is one of `METHODS`. With `process` the bound is
    estimated by that noise on tokens, such as the model's own under another schedule.
    """
    check_method(model.paradigm, model.name, method)
    tokenizer = require_tokenizer(model)
    longest = model.net.config.context
    context = longest if context is None else context
    if not 2 <= context <= longest:
        raise UserError(
            f"windows of {context} tokens were asked for: expected 2 to {longest}, the model's "
            "context."
        )
    stride = max(1, context // 2) if stride is None else stride
    encoded = [
        [*tokenizer.opening, *ids, *tokenizer.ending]
        for ids in tokenizer.encode_documents(list(documents))
    ]
    score = _choose_score(model, context, repeats, process)
    nats, tokens = 0.0, 0
    for i, ids in enumerate(track(encoded, "documents", len(encoded))):
        if method == "chain" and model.paradigm.sees_later:
            cost = score_left_to_right(model, ids, context, stride)
        else:
            x0, own = torch.tensor(ids, device=model.device), derive_seed(seed, "document", i)
            cost = score_rolling(score, x0, context, stride, own)
        nats, tokens = nats + cost.nll, tokens + cost.tokens
        yield cost
    warn_of_guessing(model, nats, tokens)


def warn_of_guessing(model: Model, nats: float, tokens: int) -> None:
    """Say so where a text costs a model more than guessing evenly among all tokens would."""
    guess, cost = math.log(model.net.config.logit_rows), nats / max(1, tokens)
    if cost > guess:
        _log.warning(
            "%s finds this text stranger than chance: %.1f nats per token, where an even guess "
            "among its %s tokens costs %.1f. It has not learned such text; numbers on it compare "
            "guesses.",
            model.name,
            cost,
            f"{model.net.config.logit_rows:,}",
            guess,
        )


def check_method(paradigm: Paradigm, name: str, method: str) -> None:
    """Refuse a method that is unknown, or that a model of this kind does not have."""
    if method not in METHODS:
        raise UserError(f"the method {method!r} is unknown: {suggest(method, METHODS)}")
    if method == "chain":
        paradigm.require_scored(name, "the cost of writing from left to right is computed")


def score_left_to_right(model: Model, x0: Sequence[int], context: int, stride: int) -> Estimate:
    """-log p of writing a text from left to right under a masked model, in windows: exact.

    Each token is read from masks in its place and behind it, up to the end of its window, and the
    window's tokens before it. What is shown at each of them is known beforehand, so that tokens of
    all windows share batches; of each row the logits of one position are computed.
    """
    windows = list(list_windows(len(x0), context, stride))
    chains = [Chain(list(x0[a:b]), list(range(done - a, b - a))) for a, done, b in windows]
    # A text has one window, or windows that are as long as the context.
    length = max((len(chain.tokens) for chain in chains), default=1)
    terms = [logp for each in score_chains(model, chains, length) for logp in each]
    return Estimate(-math.fsum(terms), 0.0, len(terms))


def _choose_score(model: Model, context: int, repeats: int, process: Process | None) -> TextScorer:
    """How one window is scored, by the model's kind."""
    if not model.paradigm.sees_later:
        return lambda window, given, seed: score_causal(model.logits, window, given)
    if process is not None or not model.paradigm.is_scored:
        return score_bound(model, context, repeats=repeats, process=process)
    scorer = make_scorer(model, context)
    return lambda window, given, seed: scorer.exact_k(window, given, repeats=repeats, seed=seed)

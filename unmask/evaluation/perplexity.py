"""What documents cost a model: a bound for masked models, exact for causal ones, with its error."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.progress import track
from unmask.base.seeds import derive_seed
from unmask.evaluation.questions import require_tokenizer
from unmask.net.batches import count_row_bytes, fit_rows
from unmask.net.model import Model
from unmask.noise.masked import Masked
from unmask.noise.schedules import find_time
from unmask.objectives.likelihood import (
    Estimate,
    Logits,
    Scorer,
    score_causal,
    score_rolling,
)
from unmask.sampling.canvas import require_mask

Score = Callable[[Tensor, Tensor, int], Estimate]
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
) -> Iterator[Estimate]:
    """What each document costs, after an end token, as packed text has it.

    A document longer than `context` (the model's by default) is read in windows that move on by
    `stride` tokens (half a window).
    """
    tokenizer = require_tokenizer(model)
    longest = model.net.config.context
    context = longest if context is None else context
    if not 2 <= context <= longest:
        raise UserError(
            f"windows of {context} tokens were asked for: expected 2 to {longest}, the model's "
            "context."
        )
    stride = max(1, context // 2) if stride is None else stride
    score = _choose_score(model, context, repeats)
    encoded = tokenizer.encode_documents(list(documents))
    for i, ids in enumerate(track(encoded, "documents", len(encoded))):
        x0 = torch.tensor([tokenizer.end_id, *ids], device=model.device)
        yield score_rolling(score, x0, context, stride, derive_seed(seed, "document", i))


def _condition_on_time(model: Model) -> Logits:
    """The model's logits; a network that takes the time gets the one when as many are masked."""
    if not model.net.config.time:
        return model.logits
    mask_id, schedule = require_mask(model), model.make_process().schedule

    def ask(tokens: Tensor) -> Tensor:
        masked = (tokens == mask_id).double().mean(-1)
        return model.logits(tokens, t=find_time(schedule, masked))

    return ask


def _choose_score(model: Model, context: int, repeats: int) -> Score:
    """How one window is scored, by the model's kind."""
    model.paradigm.require_scored(model.name, "perplexity is measured")
    if not model.paradigm.sees_later:
        return lambda window, given, seed: score_causal(model.logits, window, given)
    mask_id, rows = require_mask(model), model.net.config.logit_rows
    batch = fit_rows(model, count_row_bytes(model, context, context))
    scorer = Scorer(
        _condition_on_time(model), Masked(rows - (mask_id < rows), mask_id), batch=batch
    )
    return lambda window, given, seed: scorer.exact_k(window, given, repeats=repeats, seed=seed)

"""What documents cost: a bound for diffusion models, exact for causal ones, with its error."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.progress import track
from unmask.base.seeds import derive_seed
from unmask.evaluation.questions import require_tokenizer
from unmask.net.model import Model
from unmask.objectives.bounds import score_bound
from unmask.objectives.likelihood import Estimate, make_scorer, score_causal, score_rolling

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


def _choose_score(model: Model, context: int, repeats: int) -> TextScorer:
    """How one window is scored, by the model's kind."""
    if not model.paradigm.sees_later:
        return lambda window, given, seed: score_causal(model.logits, window, given)
    if not model.paradigm.is_scored:
        return score_bound(model, context, repeats=repeats)
    scorer = make_scorer(model, context)
    return lambda window, given, seed: scorer.exact_k(window, given, repeats=repeats, seed=seed)

"""Perplexity of a file: the bound for masked models, exact for causal ones, with its error."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.progress import track
from unmask.base.seeds import derive_seed
from unmask.evaluation.batches import count_row_bytes, fit_rows
from unmask.evaluation.questions import require_tokenizer
from unmask.net.model import Model
from unmask.noise.masked import Masked
from unmask.noise.schedules import find_time
from unmask.objectives.likelihood import (
    Estimate,
    Logits,
    Scorer,
    exponentiate,
    score_causal,
    score_rolling,
)
from unmask.sampling.canvas import require_mask

Score = Callable[[Tensor, Tensor, int], Estimate]
"""A window, which of its tokens are given, and a seed."""


@dataclass(frozen=True)
class PerplexitySettings:
    """How a text longer than the context is cut, and how often its noise is drawn."""

    context: int | None = None
    """Tokens of a window; None: the model's."""
    stride: int | None = None
    """Tokens by which windows move on; None: half a window."""
    strata: int = 16
    repeats: int = 8
    seed: int = 0


@dataclass(frozen=True)
class Perplexity:
    """What a text costs a model; errors are standard errors, 0 where the likelihood is exact."""

    kind: str
    is_bound: bool
    """Whether the true likelihood may be higher: for masked models."""
    tokens: int
    characters: int
    bytes: int
    nll: float
    """Nats of the whole text."""
    error: float

    @property
    def per_token(self) -> float:
        return self.nll / self.tokens

    @property
    def perplexity(self) -> float:
        return exponentiate(self.per_token)

    @property
    def perplexity_error(self) -> float:
        return self.perplexity * self.error / self.tokens

    @property
    def bits_per_character(self) -> float:
        return self.nll / math.log(2) / self.characters

    @property
    def bits_per_byte(self) -> float:
        return self.nll / math.log(2) / self.bytes

    @property
    def bits_per_byte_error(self) -> float:
        return self.error / math.log(2) / self.bytes

    def derived(self) -> dict[str, float]:
        """What follows from the sums."""
        return {
            "per_token": self.per_token,
            "perplexity": self.perplexity,
            "perplexity_error": self.perplexity_error,
            "bits_per_character": self.bits_per_character,
            "bits_per_byte": self.bits_per_byte,
            "bits_per_byte_error": self.bits_per_byte_error,
        }


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


def measure_perplexity(
    model: Model, documents: Sequence[str], settings: PerplexitySettings
) -> Perplexity:
    """The perplexity of the documents, each behind an end token, as packed text has it."""
    tokenizer = require_tokenizer(model)
    own = model.net.config.context
    context = own if settings.context is None else settings.context
    if not 2 <= context <= own:
        raise UserError(
            f"windows of {context} tokens were asked for: expected 2 to {own}, the model's context."
        )
    stride = max(1, context // 2) if settings.stride is None else settings.stride
    total, score = Estimate(0.0, 0.0, 0), _choose_score(model, context, settings)
    encoded = tokenizer.encode_documents(list(documents))
    for i, ids in enumerate(track(encoded, "perplexity", len(encoded))):
        x0 = torch.tensor([tokenizer.end_id, *ids], device=model.device)
        seed = derive_seed(settings.seed, "document", i)
        total += score_rolling(score, x0, context, stride, seed)
    return Perplexity(
        kind=model.kind,
        is_bound=model.kind != "causal",
        tokens=total.tokens,
        characters=sum(map(len, documents)),
        bytes=sum(len(text.encode()) for text in documents),
        nll=total.nll,
        error=total.error,
    )


def _tell_time(model: Model) -> Logits:
    """The model's logits; a network that is told the time hears when as many are masked."""
    if not model.net.config.time:
        return model.logits
    mask_id, schedule = require_mask(model), model.make_process().schedule

    def ask(tokens: Tensor) -> Tensor:
        masked = (tokens == mask_id).double().mean(-1)
        return model.logits(tokens, t=find_time(schedule, masked))

    return ask


def _choose_score(model: Model, context: int, settings: PerplexitySettings) -> Score:
    """How one window is scored, by the model's kind."""
    if model.kind == "causal":
        return lambda window, given, seed: score_causal(model.logits, window, given)
    if model.kind != "masked":
        raise UserError(
            f"{model.name} is a {model.kind} model: perplexity is measured for masked and causal "
            "models."
        )
    mask_id, rows = require_mask(model), model.net.config.logit_rows
    batch = fit_rows(model, count_row_bytes(model, context, context))
    scorer = Scorer(_tell_time(model), Masked(rows - (mask_id < rows), mask_id), batch=batch)
    return lambda window, given, seed: scorer.exact_k(
        window, given, settings.strata, settings.repeats, seed
    )

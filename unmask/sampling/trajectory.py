"""Trajectories: a text being written, every state of it kept. Steps count from 1."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class Trajectory:
    """What a sampler returns: the end, and how it came about."""

    tokens: Int[Tensor, "B L"]
    """The last state."""
    committed_at: Int[Tensor, "B L"]
    """The step that wrote each token; 0 where it was given."""
    confidence: Float[Tensor, "B L"]
    """The probability a token had when it was written; 1 where it was given."""
    entropy: Float[Tensor, "B L"]
    """Of the prediction it was chosen from, in nats; 0 where it was given."""
    calls: int
    """Forward passes; a guided step is one of twice the rows."""
    texts: list[str] | None
    """The rows as text, each up to its end token; None without a tokenizer."""
    states: Int[Tensor, "S+1 B L"] | None = None
    """The canvas before step 1 and after every step; None unless asked for."""


def decode_rows(
    tokens: Int[Tensor, "B L"], real: Tensor | None, tokenizer: Tokenizer | None
) -> list[str] | None:
    """Each row's text."""
    if tokenizer is None:
        return None
    kept = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
    rows = zip(tokens.cpu(), kept.cpu(), strict=True)
    return [tokenizer.decode(row[keep].tolist()) for row, keep in rows]

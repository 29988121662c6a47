"""A corruption and a metric of traces: the subject's tokens in reverse, and bits."""

import math

from unmask.corruptions import Corrupted


def turn_around(model, tokens, positions):
    """Rows [S, L] with the subject hidden: here one, its tokens in reverse."""
    rows = tokens.clone()[None]
    rows[0, list(positions)] = tokens[list(positions)[::-1]]
    return Corrupted(rows)


def bits(logp, clean, corrupted, which):
    """A number for each cell [*cells] of log-probabilities [*cells, targets, positions]."""
    return logp[..., which, :].nansum(-1) / math.log(2)

"""What a trajectory says of its own text, at no further passes of the network."""

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.net.model import Model
from unmask.sampling.trajectory import BYTES_PER_GUESS, MOST_GUESS_BYTES, Trajectory

GUESSES = 2
"""Likeliest tokens that a trajectory must keep for its signals."""


def find_signals(drawn: Trajectory) -> list[dict[str, float | None]]:
    """Signals of doubt for each text, of its written tokens up to its first end.

    Entropy of the prediction that a token was taken from, and the lead (margin) of the likeliest
    token there, in the mean and at worst; how often the likeliest token of a position changed
    before it was written; and the share of pairs of tokens that were written from right to left,
    of those written in different steps (None where there are none).
    """
    assert drawn.guess_ids is not None and drawn.guess_p is not None, "sample with guesses=2"
    signals = []
    for row in range(len(drawn.tokens)):
        at = drawn.committed_at[row, : drawn.find_end(row)]
        places = (at > 0).nonzero()[:, 0]
        steps = at[places]
        if not len(places):
            signals.append(dict.fromkeys(SIGNALS))
            continue
        # 1. Predictions at the step that wrote each token [N, k]; the likeliest tokens [S, N].
        p = drawn.guess_p[steps - 1, row, places].double()
        margin, entropy = p[:, 0] - p[:, 1], drawn.entropy[row, places]
        likeliest = drawn.guess_ids[:, row, places, 0]
        changes = [_count_changes(ids[:step]) for ids, step in zip(likeliest.T, steps, strict=True)]
        signals.append(
            {
                "entropy": float(entropy.mean()),
                "entropy_most": float(entropy.max()),
                "margin": float(margin.mean()),
                "margin_least": float(margin.min()),
                "changes": sum(changes) / len(changes),
                "backwards": find_backwards(steps),
            }
        )
    return signals


SIGNALS = ("entropy", "entropy_most", "margin", "margin_least", "changes", "backwards")


def count_kept_rows(model: Model, length: int, steps: int) -> int:
    """Rows of a batch of which so much can be kept; at least one."""
    # A causal model takes as many steps as its context has positions.
    context = model.net.config.context
    kept = length * steps if model.paradigm.has_steps else context**2
    return max(1, MOST_GUESS_BYTES // (GUESSES * BYTES_PER_GUESS * kept))


def _count_changes(ids: Int[Tensor, "S"]) -> int:
    """How often the likeliest token of a position is another one than at the step before."""
    known = ids[ids >= 0]
    return int((known[1:] != known[:-1]).sum())


def find_backwards(steps: Int[Tensor, "N"]) -> float | None:
    """The share of pairs of positions that are written from right to left.

    0: in reading order, 1: from the end. Pairs of one step have no order; None without others.
    """
    later = torch.sign(steps[None] - steps[:, None]).triu(1)
    apart = int((later != 0).sum())
    return int((later < 0).sum()) / apart if apart else None

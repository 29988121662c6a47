"""A plan and a corrector: ever larger steps, and the token that was least certain drawn anew."""

import torch


def grow(state, streams):
    """How many masks [B] a step commits: in proportion to its number, in the last step the rest."""
    left = sum(range(state.step, state.steps + 1))
    return -(-state.num_open * state.step // left)


class RedrawLeast:
    """After each step the `count` written tokens of the least probability are drawn anew."""

    def __init__(self, count=1):
        self.count = int(count)

    def correct(self, text, streams):
        """Rewrites `text` in place; each draw sees all other tokens."""
        doubt = text.confidence.masked_fill(~text.written, torch.inf)
        ranks = doubt.argsort(dim=1, stable=True).argsort(dim=1)
        text.refill(ranks, self.count, streams)

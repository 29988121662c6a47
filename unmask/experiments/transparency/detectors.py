"""Phenomena of whole texts, each a number from 0 to 1: tokens that are taken back, and tokens that
are needed yet not shown. Those of single states are in `unmask/evaluation/smearing.py`."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from unmask.net.model import Model
from unmask.sampling.texts import sample
from unmask.sampling.trajectory import Trajectory


def find_revised(drawn: Trajectory, ignored: Sequence[int] = ()) -> list[float]:
    """The share of each text's written places that held another token before.

    Under noise that draws tokens anew (uniform, hybrid) most of what a state holds was never
    written. There a token counts as held where the model was surer of it than not as it came or
    stayed: sample with guesses=1.
    """
    assert drawn.states is not None, "sample with keep_states=True"
    free = drawn.committed_at > 0
    states, final = drawn.states[1:, :, : drawn.tokens.shape[1]], drawn.tokens
    other = states != final
    for token in (drawn.mask_id, *ignored):
        if token is not None:
            other = other & (states != token)
    if drawn.guess_ids is not None and drawn.guess_p is not None:
        other = other & (states == drawn.guess_ids[..., 0]) & (drawn.guess_p[..., 0] > 0.5)
    revised = (other.any(0) & free).sum(-1).double()
    return (revised / free.sum(-1).clamp(min=1)).tolist()


def find_needed(
    model: Model, prompts: Sequence[Any], drawn: Trajectory, **sampling: Any
) -> list[float]:
    """How much of each text hangs on tokens that were written on the way and are not in it.

    Such a token is knocked out: the text is written again with that token forbidden. Counted is the
    share of places, those that it stood at apart, which then hold another token; of several tokens
    the one on which most hangs. `sampling` is that by which the texts were drawn, without chance.
    """
    assert drawn.states is not None, "sample with keep_states=True"
    # 1. By token, the rows that wrote and lost it, with the places where it stood [L].
    absent: dict[int, dict[int, Tensor]] = defaultdict(dict)
    for row, final in enumerate(drawn.tokens):
        kept = {*final.tolist(), drawn.mask_id}
        states = drawn.states[1:, row]
        for token in {*states.flatten().tolist()} - kept:
            absent[token][row] = (states == token).any(0)
    # 2. Each token's rows are written again without it.
    needed = [0.0] * len(drawn.tokens)
    for token, places in absent.items():
        rows = list(places)
        again = sample(model, [prompts[row] for row in rows], forbid=[token], **sampling)
        for row, tokens in zip(rows, again.tokens, strict=True):
            counted = (drawn.committed_at[row] > 0) & ~places[row]
            changed = (tokens != drawn.tokens[row]) & counted
            needed[row] = max(needed[row], float(changed.sum() / counted.sum().clamp(min=1)))
    return needed

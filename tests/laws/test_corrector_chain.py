"""Correctors on a Markov chain, whose exact denoiser is known at any length by message passing.

A token is followed by itself or by the next one; any other pair is a slip of small chance. How many
pairs of a sample are slips says how far its law is from the chain's (the toy of Zhao et al. 2024).
"""

from itertools import product
from typing import Any

import torch

import unmask
from unmask.experiments.correctors.laws import ExactModel, MarkovChain

CHAIN, ROWS = MarkovChain(), 2000
DRAWN: dict[str, Any] = {"order": "random", "temperature": 1.0, "keep_states": False}


def test_marginals_are_those_of_all_texts():
    chain = MarkovChain(num_tokens=3, length=3, slip=0.2)
    texts = torch.tensor(list(product(range(3), repeat=3)))
    law = chain.moves[texts[:, 0], texts[:, 1]] * chain.moves[texts[:, 1], texts[:, 2]]
    for state in torch.tensor(list(product(range(4), repeat=3))):
        fits = ((state == 3) | (state == texts)).all(-1)
        for d in torch.where(state == 3)[0]:
            p = torch.bincount(texts[fits, d], law[fits], minlength=3)
            torch.testing.assert_close(chain.find_marginals(state[None])[0, d], p / p.sum())


def count_slips(**settings) -> tuple[float, int]:
    """The share of pairs that are slips, and the network calls."""
    model, length = ExactModel.make(CHAIN), CHAIN.length
    drawn = unmask.sample(model, [[]] * ROWS, length=length, **(DRAWN | settings))
    return CHAIN.count_slips(drawn.tokens), drawn.calls


def test_at_equal_calls():
    """16 calls: a corrector beats remasking here, and one token per step beats both."""
    one, _ = count_slips(steps=16, plan="linear")
    assert abs(one - CHAIN.slip) < 5 * (CHAIN.slip / (ROWS * (CHAIN.length - 1))) ** 0.5
    uniform, calls = count_slips(steps=4, plan="linear", corrector="uniform=3")
    remasked, same_calls = count_slips(steps=16, plan="ancestral", remask="conf")
    assert calls == same_calls == 16 and one < uniform < remasked

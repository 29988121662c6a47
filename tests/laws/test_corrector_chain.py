"""Correctors on a Markov chain, whose exact denoiser is known at any length by message passing.

A token is followed by itself or by the next one; any other pair is a slip of small chance. How many
pairs of a sample are slips says how far its law is from the chain's (the toy of Zhao et al. 2024).
"""

from typing import Any

import pytest
import torch
from torch import Tensor

import unmask
from tests.laws.enumeration import sample_by_oracle
from unmask.net.model import Model

V, LENGTH, ROWS, SLIP = 8, 16, 2000, 1e-3
STAY = 0.6
DRAWN: dict[str, Any] = {"order": "random", "temperature": 1.0, "keep_states": False}

MOVES = torch.full((V, V), SLIP / (V - 2), dtype=torch.float64)
for token in range(V):
    MOVES[token, token] = (1 - SLIP) * STAY
    MOVES[token, (token + 1) % V] = (1 - SLIP) * (1 - STAY)


def find_marginals(xt: Tensor) -> Tensor:
    """p(x_l | the written tokens) [B, L, V], masks being V: messages from both ends."""
    size = xt.shape[1]
    seen = torch.nn.functional.one_hot(xt.clamp(max=V - 1), V).double()
    seen = torch.where((xt == V)[..., None], 1.0, seen)
    left, right = [torch.full((len(xt), V), 1 / V).double()], [torch.ones(len(xt), V).double()]
    for i in range(size - 1):
        left.append(torch.nn.functional.normalize((left[-1] * seen[:, i]) @ MOVES, p=1, dim=-1))
    for i in range(size - 1, 0, -1):
        after = (right[0] * seen[:, i]) @ MOVES.T
        right.insert(0, torch.nn.functional.normalize(after, p=1, dim=-1))
    return torch.nn.functional.normalize(torch.stack(left, 1) * torch.stack(right, 1), p=1, dim=-1)


@pytest.fixture
def chain(monkeypatch) -> Model:
    return sample_by_oracle(monkeypatch, lambda xt: find_marginals(xt).log(), V, LENGTH)


def count_slips(model: Model, **settings) -> tuple[float, int]:
    """The share of pairs that are slips, and the network calls."""
    drawn = unmask.sample(model, [[]] * ROWS, length=LENGTH, **(DRAWN | settings))
    steps = (drawn.tokens[:, 1:] - drawn.tokens[:, :-1]) % V
    return float((steps > 1).double().mean()), drawn.calls


@pytest.mark.prove
def test_correctors_mend_what_parallel_steps_break(chain):
    """At the same steps, each kind; the more tokens, the better."""
    one, calls = count_slips(chain, steps=LENGTH, plan="linear")
    assert calls == LENGTH and abs(one - SLIP) < 5 * (SLIP / (ROWS * (LENGTH - 1))) ** 0.5
    plain, _ = count_slips(chain, steps=4, plan="linear")
    slips = {
        name: count_slips(chain, steps=4, plan="linear", corrector=name)[0]
        for name in ("uniform=1", "uniform=3", "margin=1", "gumbel=2,1", "accepted=1")
    }
    assert plain > 0.1 and all(share < plain for share in slips.values())
    assert slips["uniform=3"] < slips["uniform=1"] and slips["margin=1"] < slips["uniform=1"]


def test_at_equal_calls(chain):
    """16 calls: a corrector beats remasking here, and one token per step beats both."""
    one, _ = count_slips(chain, steps=16, plan="linear")
    uniform, calls = count_slips(chain, steps=4, plan="linear", corrector="uniform=3")
    remasked, same_calls = count_slips(chain, steps=16, plan="ancestral", remask="conf")
    assert calls == same_calls == 16 and one < uniform < remasked

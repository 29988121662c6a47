"""The exact cache of networks with block-causal attention: finished blocks are not run again."""

from typing import Any

import pytest
import torch

import unmask
from tests.conftest import lively
from tests.fixtures import load_peer
from unmask.net.model import Blueprint, Model

MASK = 511
PROMPTS = [[3, 4, 5], [6, 7, 8, 9, 10], [11]]


def make(shift: bool = False) -> Model:
    config = unmask.preset("tiny-blocks")
    return Model("m", lively(config).double(), Blueprint(config, "masked", MASK, shift))


class Counted:
    """Counts the positions that layers run."""

    def __init__(self, model: Model):
        self.positions, block = 0, model.net.block(0)
        block.register_forward_pre_hook(self.count)

    def count(self, _block: torch.nn.Module, given: tuple) -> None:
        self.positions += given[0].shape[0] * given[0].shape[1]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"guidance": 0.7},
        {"remask": "low=0.3", "temperature": 0.8, "seed": 2},
        {"block": 6, "order": "random", "seed": 1},
        {"plan": "threshold=0.01"},
        {"planted": {9: {5: 7}}, "length": [21, 18, 13]},
    ],
    ids=str,
)
@pytest.mark.parametrize("shift", [False, True])
def test_nothing_changes(settings, shift):
    """Rows of several lengths, whose blocks begin at different positions."""
    given = {"length": [21, 18, 9], "steps": 12} | settings
    plain = unmask.sample(make(shift), PROMPTS, **given)
    cached = unmask.sample(make(shift), PROMPTS, cache="exact", **given)
    assert torch.equal(plain.tokens, cached.tokens)
    torch.testing.assert_close(plain.confidence, cached.confidence, atol=1e-9, rtol=0)


def test_fewer_positions_are_run():
    model, other = make(), make()
    plain, cached = Counted(model), Counted(other)
    given: dict[str, Any] = {"length": 40, "steps": 40}
    unmask.sample(model, [[3]], **given)
    unmask.sample(other, [[3]], cache="exact", **given)
    # 40 passes of 40; one of 40, then 4 positions a pass and 4 more in the first pass of a block.
    assert plain.positions == 1600 and cached.positions == 40 + 39 * 4 + 9 * 4


@pytest.mark.parametrize("peer", ["sdar-tiny", "fast-dllm-v2-tiny", "llada2-tiny"])
@pytest.mark.parametrize("settings", [{}, {"block": 2}, {"plan": "threshold=0.02"}], ids=str)
def test_peers_with_and_without(peer, settings):
    """Networks of the peers, by settings of ours: row i or i + 1, dense or of experts."""
    mask = {"sdar-tiny": 317, "fast-dllm-v2-tiny": 314, "llada2-tiny": 252}[peer]
    model = load_peer(peer, mask=mask, block=4)
    given = {"length": 16, "steps": 24, "seed": 3, "temperature": 0.9} | settings
    plain = unmask.sample(model, [[5, 6, 7, 8, 9], [11, 12, 13, 14, 15]], **given)
    cached = unmask.sample(model, [[5, 6, 7, 8, 9], [11, 12, 13, 14, 15]], cache="exact", **given)
    assert torch.equal(plain.tokens, cached.tokens) and len(plain.tokens.unique()) > 12
    torch.testing.assert_close(plain.confidence, cached.confidence, atol=1e-4, rtol=0)


def test_patches_run_everything():
    """While something is attached nothing is kept."""
    model = make()
    with model.net.patch({"layers.1.mlp_out": lambda x: x / 2}):
        plain = unmask.sample(model, PROMPTS[:1], length=16, steps=8)
        cached = unmask.sample(model, PROMPTS[:1], length=16, steps=8, cache="exact")
    assert torch.equal(plain.tokens, cached.tokens)

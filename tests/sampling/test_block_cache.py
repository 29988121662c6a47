"""The exact cache of networks with block-causal attention: finished blocks are not run again."""

import pytest
import torch

import unmask
from tests.conftest import build
from tests.fixtures import load_peer
from unmask.net.model import Model

PROMPTS = [[3, 4, 5], [6, 7, 8, 9, 10], [11]]


def make(kind: str = "masked") -> Model:
    model = build("tiny-blocks", kind)
    model.net.double()
    return model


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
@pytest.mark.parametrize("kind", ["masked", "shifted"])
def test_nothing_changes(settings, kind):
    """Rows of several lengths, whose blocks begin at different positions."""
    check(make(kind), PROMPTS, 1e-9, {"length": [21, 18, 9], "steps": 12} | settings)


def check(model: Model, prompts: list[list[int]], close: float, settings: dict) -> None:
    plain, cached = (
        unmask.sample(model, prompts, cache=cache, **settings) for cache in ("none", "exact")
    )
    assert torch.equal(plain.tokens, cached.tokens)
    torch.testing.assert_close(plain.confidence, cached.confidence, atol=close, rtol=0)
    assert len(prompts) == 3 or len(plain.tokens.unique()) > 12


@pytest.mark.parametrize("cache", ["none", "exact"])
def test_fewer_positions_are_run(cache):
    model, counts = make(), []
    model.net.block(0).register_forward_pre_hook(lambda _, given: counts.append(given[0][..., 0]))
    unmask.sample(model, [[3]], length=40, steps=40, cache=cache)
    # 40 passes of 40; one of 40, then 4 positions a pass and 4 more in the first pass of a block.
    expected = {"none": 1600, "exact": 40 + 39 * 4 + 9 * 4}[cache]
    assert sum(x.numel() for x in counts) == expected


@pytest.mark.parametrize("peer", ["sdar-tiny", "fast-dllm-v2-tiny", "llada2-tiny"])
@pytest.mark.parametrize("settings", [{}, {"block": 2}, {"plan": "threshold=0.02"}], ids=str)
def test_peers_with_and_without(peer, settings):
    """Networks of the peers, by settings of ours: row i or i + 1, dense or of experts."""
    mask = {"sdar-tiny": 317, "fast-dllm-v2-tiny": 314, "llada2-tiny": 252}[peer]
    given = {"length": 16, "steps": 24, "seed": 3, "temperature": 0.9} | settings
    prompts = [[5, 6, 7, 8, 9], [11, 12, 13, 14, 15]]
    check(load_peer(peer, mask=mask, block=4), prompts, 1e-4, given)


def test_patches_run_everything():
    """While something is attached nothing is kept."""
    model = make()
    with model.net.patch({"layers.1.mlp_out": lambda x: x / 2}):
        plain = unmask.sample(model, PROMPTS[:1], length=16, steps=8)
        cached = unmask.sample(model, PROMPTS[:1], length=16, steps=8, cache="exact")
    assert torch.equal(plain.tokens, cached.tokens)

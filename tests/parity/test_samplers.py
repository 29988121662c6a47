"""Token for token what SMDM's and LLaDA's own samplers wrote, batched and alone."""

import re

import pytest
import torch

from tests.fixtures import load_expected, load_peer
from unmask.net.model import Model
from unmask.sampling.texts import sample


@pytest.fixture
def model() -> Model:
    return load_peer("smdm-tiny/mdm.safetensors")


@pytest.fixture
def prompts() -> list[list[int]]:
    return load_expected("smdm-tiny")["prompts"].tolist()


def test_smdm_greedy(model, prompts):
    expected = load_expected("smdm-tiny")
    names = [name for name in expected if name.startswith("greedy")]
    assert len(names) == 12
    for name in names:
        guidance, steps = re.findall(r"[\d.]+", name)
        settings = {"steps": int(steps), "guidance": float(guidance), "length": 40}
        found = sample(model, prompts, **settings)
        assert torch.equal(found.tokens, expected[name]), name
        assert found.calls == int(steps) and found.states.shape == (int(steps) + 1, 4, 40)
        alone = sample(model, prompts[2:3], **settings)
        assert torch.equal(alone.tokens, expected[name][2:3]), name


def test_llada(model, prompts):
    expected = load_expected("smdm-tiny", "expected_llada")
    assert len(expected) == 10
    for name, tokens in expected.items():
        response, steps, block, guidance = re.findall(r"[\d.]+", name)
        settings = {"steps": int(steps), "guidance": float(guidance), "block": int(block)}
        length = int(response) + len(prompts[0])
        found = sample(model, prompts, **settings, plan="llada", length=length)
        assert torch.equal(found.tokens, tokens), name
        alone = sample(model, prompts[1:2], **settings, plan="llada", length=length)
        assert torch.equal(alone.tokens, tokens[1:2]), name


@pytest.mark.parametrize("steps", [4, 2])
def test_sdar(steps):
    """Its sampler writes block after block, each from left to right in that number of steps."""
    model, expected = load_peer("sdar-tiny"), load_expected("sdar-tiny")
    settings = {"steps": 4 * steps, "plan": "llada", "order": "left", "length": 20}
    found = sample(model, expected["prompt"].tolist(), **settings)
    assert torch.equal(found.tokens, expected[f"sequential_greedy_steps{steps}"])


@pytest.mark.parametrize("cache", ["none", "exact"])
@pytest.mark.parametrize("threshold", ["0.05", "1.0"])
def test_fast_dllm(threshold, cache):
    """Sub-blocks of 4 by threshold; a block's first token comes from the finished one before it."""
    expected = load_expected("fast-dllm-v2-tiny")
    model = load_peer("fast-dllm-v2-tiny", mask=int(expected["mask_id"]))
    settings = {"plan": f"threshold={threshold}", "block": 4, "length": 25, "cache": cache}
    drawn = sample(model, expected["prompt"].tolist(), **settings)
    assert torch.equal(drawn.tokens, expected[f"greedy_threshold{threshold}"])


@pytest.mark.parametrize("plan", ["smdm", "llada", "linear", "cosine", "one"])
@pytest.mark.parametrize("guidance", [0.0, 0.8])
def test_mixed_lengths_in_one_batch(model, prompts, plan, guidance):
    """Prompts and canvases of different lengths: each row is what it is alone."""
    rows = [prompts[0][:3], prompts[1], prompts[2][:6], prompts[3][:1]]
    lengths = [14, 12, 17, 7]
    for order in ("confidence", "entropy", "margin", "left", "random"):
        settings = {"steps": 5, "plan": plan, "order": order, "guidance": guidance}
        settings |= {"temperature": 0.7 if order == "random" else 0.0, "seed": 3}
        if plan == "one":
            settings["steps"] = 17
        together = sample(model, rows, **settings, length=lengths)
        for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            alone = sample(model, [row], **settings, length=length)
            assert torch.equal(together.tokens[i, :length], alone.tokens[0]), (order, i)
            assert (alone.tokens != model.mask_id).all()

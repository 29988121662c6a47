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


@pytest.mark.parametrize("cache", ["none", "exact"])
@pytest.mark.parametrize("steps", [4, 2])
def test_sdar(steps, cache):
    """Its sampler writes block after block, each from left to right in that number of steps."""
    model, expected = load_peer("sdar-tiny"), load_expected("sdar-tiny")
    settings = {"steps": 4 * steps, "plan": "llada", "order": "left", "length": 20, "cache": cache}
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

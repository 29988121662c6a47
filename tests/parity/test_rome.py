"""ROME's own tracer on SMDM's network, and the engine on every dialect of checkpoint."""

import pytest
import torch
from transformers import AutoModelForCausalLM

import unmask
from tests.fixtures import load_expected, load_peer
from tests.parity.peers import fill
from tests.parity.test_transformers import PEERS
from tests.tracing.plain import trace_plainly
from unmask.tracing.corruption import measure_sigma


@pytest.mark.parametrize("case", [0, 1, 2])
def test_rome(case):
    model = load_peer("smdm-tiny/mdm.safetensors")
    cases = load_expected("smdm-tiny", "expected_rome")
    expected = {name[2:]: x for name, x in cases.items() if name.startswith(f"{case}_")}
    prompts = load_expected("smdm-tiny")["prompts"].tolist()
    sigma = measure_sigma(model, prompts)
    assert abs(sigma - float(expected["noise"])) < 1e-5
    tokens, span = expected["tokens"], tuple(expected["span"].tolist())
    answer = {len(tokens) - 1: int(expected["answer"])}
    noise = unmask.corruptions.Noise(sigma=float(expected["noise"]), stream="rome")
    states = unmask.trace_tokens(
        model, tokens, span, answer, parts=("resid", "mlp"), window=3, corruption=noise
    )
    attention = unmask.trace_tokens(
        model, tokens, span, answer, parts=("attn",), window=4, corruption=noise
    )
    assert abs(states.clean - float(expected["high"])) < 1e-5
    assert abs(states.corrupted - float(expected["low"])) < 1e-5
    for scores, name in (
        (states.scores["resid"], "states"),
        (states.scores["mlp"], "mlp_w3"),
        (attention.scores["attn"], "attn_w4"),
    ):
        torch.testing.assert_close(scores.float(), expected[name], atol=1e-5, rtol=0)


def check(model: unmask.Model, vocabulary: int) -> None:
    """The engine against the plain tracer, all parts, on one text."""
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, vocabulary, (8,), generator=generator).tolist()
    if model.kind == "causal":
        answer = {8: int(model.logits(torch.tensor([tokens]))[0, -1].argmax())}
    else:
        tokens[6] = tokens[7] = model.mask_id
        said = model.logits(torch.tensor([tokens]))[0, :, :vocabulary].argmax(-1)
        answer = {6: int(said[6]), 7: int(said[7])}
    noise = unmask.corruptions.Noise(samples=2)
    bad = noise.apply(model, torch.tensor(tokens), range(1, 3))
    found = unmask.trace_tokens(model, tokens, (1, 3), answer, window=2, corruption=noise)
    for part in ("resid", "mlp", "attn"):
        plain = trace_plainly(model, tokens, bad, answer, part, 1 if part == "resid" else 2)
        torch.testing.assert_close(found.values(part), plain, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "path", ["smdm-tiny/mdm.safetensors", "smdm-tiny/ar.safetensors", "llada-tiny", "dream-tiny"]
)
def test_dialects_of_the_peers(path):
    check(load_peer(path), 390)


@pytest.mark.parametrize("name", ["llama-wide-heads", "qwen2", "gpt2"])
def test_dialects_of_transformers(name, tmp_path):
    theirs = AutoModelForCausalLM.from_config(PEERS[name])
    fill(theirs)
    theirs.save_pretrained(tmp_path)
    check(unmask.load(tmp_path, device="cpu"), 300)

"""BERT made by `transformers`: same logits, same tensors, both ways; traced like any other."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM

import unmask
from tests.conftest import lively
from tests.representation.facts import make_fact
from tests.tracing.plain import trace_plainly
from unmask import UserError
from unmask.net.model import Blueprint, Model
from unmask.tracing.corruption import Noise
from unmask.tracing.paths import patch_paths
from unmask.tracing.tokens import trace_tokens

SHAPE: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 60,
    "num_hidden_layers": 4,
}
SHAPE |= {"num_attention_heads": 6, "max_position_embeddings": 64}
TOKENS = torch.randint(0, 300, (3, 40), generator=torch.Generator().manual_seed(5))


@pytest.fixture
def peer(tmp_path) -> tuple[torch.nn.Module, Path]:
    theirs = BertForMaskedLM(BertConfig(**SHAPE))
    theirs.eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(3)
    for parameter in theirs.parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(0.15 * drawn if parameter.ndim == 2 else 1 + 0.3 * drawn)
    theirs.save_pretrained(tmp_path / "theirs")
    return theirs, tmp_path / "theirs"


def compare(theirs: torch.nn.Module, folder: Path) -> None:
    ours = unmask.load(folder, device="cpu", mask=299)
    expected = theirs(TOKENS).logits
    assert expected.std() > 0.5 and ours.kind == "masked"
    torch.testing.assert_close(ours.logits(TOKENS), expected, atol=1e-5, rtol=1e-5)
    real = torch.arange(40) < torch.tensor([40, 23, 3])[:, None]
    padded = theirs(TOKENS, attention_mask=real.long()).logits
    found = ours.logits(TOKENS, real)[real]
    torch.testing.assert_close(found, padded[real], atol=1e-5, rtol=1e-5)


def test_logits_agree(peer):
    compare(*peer)


def test_round_trip_key_for_key(peer, tmp_path):
    _, folder = peer
    unmask.save(unmask.load(folder, device="cpu", mask=299), tmp_path / "back", "bert")
    before = load_file(folder / "model.safetensors")
    after = load_file(tmp_path / "back" / "model.safetensors")
    again = {
        "cls.predictions.decoder.weight",
        "cls.predictions.decoder.bias",
    }  # other names' tensors
    assert before.keys() - again == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in after)
    reloaded = BertForMaskedLM.from_pretrained(tmp_path / "back").eval()
    compare(reloaded.requires_grad_(False), folder)


def test_old_names(peer):
    """The first releases say gamma and beta, and hold what pre-training had besides."""
    theirs, folder = peer
    weights = load_file(folder / "model.safetensors")
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta"): each
        for name, each in weights.items()
    }
    renamed |= {"bert.pooler.dense.weight": torch.zeros(48, 48)}
    renamed |= {"cls.seq_relationship.bias": torch.zeros(2)}
    save_file(renamed, folder / "model.safetensors")
    compare(theirs, folder)


def test_refusals(peer):
    _, folder = peer
    with pytest.raises(UserError, match="load it with mask=ID"):
        unmask.load(folder, device="cpu")
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"position_embedding_type": "relative_key", "mask_token_id": 299}
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="'relative_key', but only 'absolute' is supported"):
        unmask.load(folder, device="cpu")


def test_tracing_is_the_plain_tracer():
    """Norms after the additions change what a layer computes, not how it is traced."""
    config = unmask.preset("tiny-post")
    model = Model("m", lively(config), Blueprint(config, "masked", 511))
    tokens, answer = [*range(5, 12), 511, 511], {7: 30, 8: 31}
    noise, parts = Noise(sigma=1.0, samples=2), ("resid", "mlp", "attn")
    bad = noise.apply(model, torch.tensor(tokens), range(1, 4))
    settings: dict[str, Any] = {"window": 2, "corruption": noise, "metric": "logp"}
    found = trace_tokens(model, tokens, (1, 4), answer, parts=parts, **settings)
    for part in parts:
        window = 1 if part == "resid" else 2
        expected = trace_plainly(model, tokens, bad, answer, part, window).log()
        assert expected.std() > 1e-4, "the cells should differ visibly"
        torch.testing.assert_close(found.values(part), expected, atol=2e-5, rtol=0)
    with pytest.raises(UserError, match="the block PostNormBlock does not add"):
        patch_paths(model, make_fact(0, "p2d"), ("subject", 1, "mlp"), ["final"])

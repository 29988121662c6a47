"""BERT made by `transformers`: same logits, same tensors, both ways."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM

import unmask
from tests.conftest import lively
from tests.parity.encoders import compare, fill
from tests.representation.facts import make_fact
from unmask import UserError
from unmask.net.model import Blueprint, Model
from unmask.tracing.paths import patch_paths

SHAPE: dict[str, Any] = {"vocab_size": 300, "hidden_size": 48, "intermediate_size": 60}
SHAPE |= {"num_hidden_layers": 4, "num_attention_heads": 6, "max_position_embeddings": 64}


@pytest.fixture
def peer(tmp_path) -> tuple[torch.nn.Module, Path]:
    theirs = BertForMaskedLM(BertConfig(**SHAPE))
    fill(theirs)
    theirs.save_pretrained(tmp_path / "theirs")
    return theirs, tmp_path / "theirs"


def test_logits_agree(peer):
    compare(*peer)


def test_round_trip_key_for_key(peer, tmp_path):
    _, folder = peer
    unmask.save(unmask.load(folder, device="cpu", mask=299), tmp_path / "back", "bert")
    before = load_file(folder / "model.safetensors")
    after = load_file(tmp_path / "back" / "model.safetensors")
    again = {f"cls.predictions.decoder.{part}" for part in ("weight", "bias")}  # of other names
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


def test_paths_are_refused():
    """Norms after the additions: what a part gives is not simply added to the stream."""
    config = unmask.preset("tiny-post")
    model = Model("m", lively(config), Blueprint(config, "masked", 511))
    with pytest.raises(UserError, match="the block PostNormBlock does not add"):
        patch_paths(model, make_fact(0, "p2d"), ("subject", 1, "mlp"), ["final"])

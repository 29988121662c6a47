"""Folders written for others: special ids go along, and a refusal says where the model fits."""

import json
from dataclasses import replace

import pytest
from transformers import AutoModelForCausalLM

import unmask
from tests.conftest import lively, make_model
from unmask import UserError
from unmask.data.chat import ChatTemplate
from unmask.net.model import Blueprint, Model

PRESETS = {
    "llama": "tiny", "qwen2": "tiny-grouped", "qwen3": "tiny-qwen3", "gpt2": "tiny-gpt2",
    "gpt_neox": "tiny-pythia", "llada": "tiny", "dream": "tiny-grouped",
}  # fmt: skip
"""A network that each dialect can say."""


def make_for(dialect: str) -> Model:
    model = make_model(PRESETS[dialect], causal=dialect not in ("llada", "dream"))
    return replace(model, blueprint=replace(model.blueprint, shift=dialect == "dream"))


@pytest.mark.parametrize("dialect", PRESETS)
def test_special_ids_go_along(tmp_path, dialect):
    model = make_for(dialect)
    assert model.tokenizer is not None
    unmask.save(model, tmp_path / "one", dialect)
    said = json.loads((tmp_path / "one" / "config.json").read_text())
    assert said["eos_token_id"] == model.tokenizer.end_id == 1
    assert said["pad_token_id"] == model.tokenizer.pad_id == 0
    assert "bos_token_id" not in said, "the tokenizer knows of none"
    again = unmask.load(tmp_path / "one", device="cpu")
    unmask.save(again, tmp_path / "two", dialect)
    assert said == json.loads((tmp_path / "two" / "config.json").read_text())


@pytest.mark.parametrize("dialect", ["llama", "qwen2", "gpt2"])
def test_transformers_stops_at_the_end_token(tmp_path, dialect):
    unmask.save(make_for(dialect), tmp_path / "out", dialect)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert theirs.config.eos_token_id == theirs.generation_config.eos_token_id == 1
    assert theirs.config.pad_token_id == 0


def test_start_token_of_a_chat_template(tmp_path):
    model = make_for("llama")
    assert model.tokenizer is not None
    model.tokenizer.chat = ChatTemplate("{{ bos_token }}", {"bos_token": "[PAD]"})
    unmask.save(model, tmp_path / "out", "llama")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["bos_token_id"] == 0


@pytest.mark.parametrize("dialect", ["llada", "dream"])
def test_a_causal_model_has_no_mask(tmp_path, dialect):
    with pytest.raises(UserError) as caught:
        unmask.save(make_model(causal=True), tmp_path / "out", dialect)
    assert f"a causal model has no mask token, and {dialect} models have one" in str(caught.value)
    assert str(caught.value).endswith("Choose one that fits: llama, unmask.")
    assert list(tmp_path.iterdir()) == []


def test_a_shape_that_cannot_be_read_back(tmp_path):
    config = unmask.preset("tiny", causal=True, width=60, heads=8, head_width=16, qkv_bias=True)
    with pytest.raises(UserError, match="dialect qwen2: 'width' 60 is not a multiple of 'heads' 8"):
        unmask.save(
            Model("x", lively(config), Blueprint(config, "causal")), tmp_path / "x", "qwen2"
        )

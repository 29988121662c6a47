"""ModernBERT made by `transformers`: same logits, same tensors, both ways; its windows and keys."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import ModernBertConfig, ModernBertForMaskedLM

import unmask
from tests.conftest import lively
from tests.parity.encoders import compare, fill
from unmask import UserError

SHAPE = {"vocab_size": 300, "hidden_size": 48, "intermediate_size": 60, "num_hidden_layers": 5}
SHAPE |= {"num_attention_heads": 6, "max_position_embeddings": 64, "local_attention": 8}
SHAPE |= {"pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2}
SHAPE |= {"bos_token_id": 1, "eos_token_id": 2}
BIASED = {"norm_bias": True, "mlp_bias": True, "attention_bias": True, "classifier_bias": True}


@pytest.fixture(params=[{}, BIASED, {"tie_word_embeddings": False, "decoder_bias": False}], ids=str)
def peer(request, tmp_path) -> tuple[torch.nn.Module, Path]:
    theirs = ModernBertForMaskedLM(ModernBertConfig(**SHAPE, **request.param))
    fill(theirs)
    theirs.save_pretrained(tmp_path / "theirs")
    return theirs, tmp_path / "theirs"


def test_logits_agree(peer):
    compare(*peer)


def test_round_trip_key_for_key(peer, tmp_path):
    theirs, folder = peer
    unmask.save(unmask.load(folder, device="cpu", mask=299), tmp_path / "back", "modernbert")
    before = load_file(folder / "model.safetensors")
    after = load_file(tmp_path / "back" / "model.safetensors")
    if theirs.config.tie_word_embeddings:
        before.pop("decoder.weight", None)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    again = ModernBertForMaskedLM.from_pretrained(tmp_path / "back", pad_token_id=0).eval()
    compare(again.requires_grad_(False), folder)


def test_old_keys(peer):
    """Settings of the first releases say the same in other words."""
    theirs, folder = peer
    change(folder, rope_parameters=None, layer_types=None)
    change(folder, global_rope_theta=160_000.0, local_rope_theta=10_000.0)
    compare(theirs, folder)
    change(folder, local_rope_theta=500.0)
    with pytest.raises(AssertionError, match="not close"):
        compare(theirs, folder)


def test_refusals(peer):
    _, folder = peer
    with pytest.raises(UserError, match="load it with mask=ID"):
        unmask.load(folder, device="cpu")
    change(folder, classifier_activation="relu", mask_token_id=299)
    with pytest.raises(UserError, match="'classifier_activation' is 'relu', but only 'gelu' is"):
        unmask.load(folder, device="cpu")
    change(folder, classifier_activation="gelu", layer_types=["full_attention"] * 5)
    with pytest.raises(UserError, match="'layer_types' are not full attention in every 3. layer"):
        unmask.load(folder, device="cpu")


def test_a_window_bounds_what_a_layer_sees():
    """In layers with a window a change reaches no further than that; the others see it all."""
    config = unmask.preset("tiny-bert", layers=3, window=2)
    net, generator = lively(config), torch.Generator().manual_seed(0)
    x = torch.randn(1, 11, 64, generator=generator)
    moved = x.clone()
    moved[0, 5] = torch.randn(64, generator=generator)
    near = torch.zeros(11, dtype=torch.bool)
    near[3:8] = True
    for layer in range(3):
        both = (net.run_layers(each, layer, layer + 1) for each in (x, moved))
        differs = torch.sub(*both)[0].abs().amax(-1) > 1e-7
        assert torch.equal(differs, near if layer else torch.ones_like(near))


def change(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))

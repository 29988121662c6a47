"""BERT and ModernBERT made by `transformers`: same logits, same tensors, both ways."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, BertConfig, ModernBertConfig, PretrainedConfig

import unmask
from tests.conftest import build, lively
from tests.parity.peers import check_round_trip, fill
from tests.representation.facts import make_fact
from unmask import UserError
from unmask.tracing.paths import patch_paths

TOKENS = torch.randint(0, 300, (3, 40), generator=torch.Generator().manual_seed(5))
SHAPE: dict[str, Any] = {"vocab_size": 300, "hidden_size": 48, "intermediate_size": 60}
SHAPE |= {"num_attention_heads": 6, "max_position_embeddings": 64}
MODERN = SHAPE | {"num_hidden_layers": 5, "local_attention": 8, "pad_token_id": 0}
MODERN |= {"cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}
BIASED = {"norm_bias": True, "mlp_bias": True, "attention_bias": True, "classifier_bias": True}
UNTIED = {"tie_word_embeddings": False, "decoder_bias": False}
PEERS: dict[str, tuple[PretrainedConfig, tuple[str, ...]]] = {
    "bert": (BertConfig(**SHAPE, num_hidden_layers=4), ("cls.predictions.decoder",)),
    "modernbert": (ModernBertConfig(**MODERN), ("decoder.weight",)),
    "modernbert-biased": (ModernBertConfig(**MODERN, **BIASED), ("decoder.weight",)),
    "modernbert-untied": (ModernBertConfig(**MODERN, **UNTIED), ()),
}
"""Settings, and tensors that stand under other names as well."""

Peer = tuple[torch.nn.Module, Path]


@pytest.fixture(params=PEERS)
def peer(request, tmp_path) -> Peer:
    theirs = AutoModelForMaskedLM.from_config(PEERS[request.param][0])
    fill(theirs)
    theirs.save_pretrained(tmp_path / request.param)
    return theirs, tmp_path / request.param


def only(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("peer", names, indirect=True)


def change(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def compare(theirs: torch.nn.Module, folder: Path) -> None:
    """Assert that the network in a folder has the peer's logits, of padded rows as well."""
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
    ours, dialect = unmask.load(folder, device="cpu", mask=299), folder.name.partition("-")[0]
    file, left_out = folder / "model.safetensors", PEERS[folder.name][1]
    check_round_trip(ours, file, tmp_path / "back", dialect, left_out)
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "back", pad_token_id=0).eval()
    compare(again.requires_grad_(False), folder)


@only("bert")
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


@only("modernbert", "modernbert-biased", "modernbert-untied")
def test_old_keys(peer):
    """Settings of the first releases say the same in other words."""
    theirs, folder = peer
    change(folder, rope_parameters=None, layer_types=None)
    change(folder, global_rope_theta=160_000.0, local_rope_theta=10_000.0)
    compare(theirs, folder)
    change(folder, local_rope_theta=500.0)
    with pytest.raises(AssertionError, match="not close"):
        compare(theirs, folder)


@pytest.mark.parametrize(
    ("peer", "changes", "said"),
    [
        ("bert", {}, "load it with mask=ID"),
        ("bert", {"position_embedding_type": "relative_key"}, "'relative_key', but only 'absolute"),
        ("modernbert", {}, "load it with mask=ID"),
        ("modernbert", {"classifier_activation": "relu"}, "'relu', but only 'gelu' is"),
        (
            "modernbert",
            {"layer_types": ["full_attention"] * 5},
            "'layer_types' are not full attention in every 3. layer",
        ),
    ],
    indirect=["peer"],
)
def test_refusals(peer, changes, said):
    _, folder = peer
    change(folder, **changes, **({"mask_token_id": 299} if changes else {}))
    with pytest.raises(UserError, match=said):
        unmask.load(folder, device="cpu")


def test_paths_are_refused():
    """Norms after the additions: what a part gives is not simply added to the stream."""
    with pytest.raises(UserError, match="the block PostNormBlock does not add"):
        patch_paths(build("tiny-post"), make_fact(0, "p2d"), ("subject", 1, "mlp"), ["final"])


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

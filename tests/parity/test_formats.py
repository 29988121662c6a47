"""Diffusion models in the layouts of causal ones: logits of the peers' own code, and refusals."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

import unmask
from tests.fixtures import FIXTURES, load_expected, load_peer
from tests.parity.peers import check_round_trip
from unmask import UserError
from unmask.net.dialects.dialect import Given
from unmask.net.known import KNOWN
from unmask.net.loading import inspect
from unmask.net.model import Model

CLOSE = {"atol": 1e-4, "rtol": 0.0}
PEERS = {
    "sdar-tiny": ("sdar", 317, False, 4),
    "a2d-qwen3-tiny": ("a2d", 295, False, None),
    "fast-dllm-v2-tiny": ("fast_dllm", 314, True, 8),
    "llada-moe-tiny": ("llada_moe", 253, False, None),
    "llada2-tiny": ("llada2_moe", 252, False, 8),
    "rnd1-tiny": ("rnd1", 249, True, None),
}
"""Dialect, mask id, shift and block; not all settings name their mask and block."""


def load(folder: str) -> Model:
    block = PEERS[folder][3] if folder == "llada2-tiny" else None
    return load_peer(folder, mask=PEERS[folder][1], block=block)


@pytest.mark.parametrize("folder", PEERS)
def test_logits(folder):
    model, expected = load(folder), load_expected(folder)
    _, mask, shift, block = PEERS[folder]
    assert (model.kind, model.mask_id) == ("masked", mask)
    assert (model.blueprint.shift, model.net.config.block) == (shift, block)
    torch.testing.assert_close(model.net(expected["tokens"]), expected["logits"], **CLOSE)


@pytest.mark.parametrize("folder", ["a2d-qwen3-tiny", "llada-moe-tiny"])
def test_padding(folder):
    """Padding at the end of a row changes nothing before it."""
    model, expected = load(folder), load_expected(folder)
    real = expected["padded_mask"].bool()
    logits = model.net(expected["padded_tokens"], real)
    torch.testing.assert_close(logits[real], expected["padded_logits"][real], **CLOSE)


@pytest.mark.parametrize("folder", ["sdar-tiny", "fast-dllm-v2-tiny"])
def test_last_block_behind_the_cache(folder):
    model, expected = load(folder), load_expected(folder)
    tokens, last = expected["tokens"], expected["last_block_logits"]
    done = tokens.shape[1] - last.shape[1]
    cache = model.net.new_cache(1, tokens.shape[1])
    model.net(tokens[:, :done], cache=cache)
    for _ in range(2):  # a block is run again and again while it is written
        cache.length = done
        torch.testing.assert_close(model.net(tokens[:, done:], cache=cache), last, **CLOSE)


@pytest.mark.parametrize("folder", PEERS)
def test_round_trip_key_for_key(folder, tmp_path):
    model, file = load(folder), FIXTURES / folder / "model.safetensors"
    tied = ("lm_head.weight",) if model.net.config.tied else ()
    check_round_trip(model, file, tmp_path / "back", PEERS[folder][0], tied)
    again = unmask.load(tmp_path / "back", device="cpu")  # the mask is in its settings now
    assert again.blueprint == model.blueprint


@pytest.fixture
def copy(tmp_path) -> Path:
    """A2D's folder, for tests to change."""
    return shutil.copytree(FIXTURES / "a2d-qwen3-tiny", tmp_path, dirs_exist_ok=True)


def change(folder: Path, file: str, **changes: object) -> None:
    path = folder / file
    known = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(known | changes))


def test_another_head_than_the_tied_one_is_not_dropped(copy):
    weights = load_file(copy / "model.safetensors")
    weights["lm_head.weight"][7, 3] += 0.5
    save_file(weights, copy / "model.safetensors")
    with pytest.raises(UserError, match="lm_head.weight holds another one"):
        unmask.load(copy, device="cpu", mask=295)
    change(copy, "config.json", tie_word_embeddings=False)
    model = unmask.load(copy, device="cpu", mask=295)
    assert torch.equal(model.net.head.weight, weights["lm_head.weight"])


def test_mask_of_the_tokenizer(copy):
    """Declared, or else the one added token that is called so; otherwise it has to be given."""
    with pytest.raises(UserError, match="its tokenizer names none: load it with mask=ID"):
        unmask.load(copy, device="cpu")
    added = {"290": {"content": "<|MASK|>"}, "291": {"content": "<end>"}}
    change(copy, "tokenizer_config.json", added_tokens_decoder=added)
    assert inspect(copy)[0].mask_id == 290
    change(copy, "added_tokens.json", **{"<|unmasked|>": 292})
    with pytest.raises(UserError, match="its tokenizer has 2 tokens called masks"):
        inspect(copy)
    change(copy, "tokenizer_config.json", mask_token="<|unmasked|>")
    assert inspect(copy)[0].mask_id == 292
    change(copy, "tokenizer_config.json", added_tokens_decoder=[1])
    with pytest.raises(UserError, match="table of added tokens is damaged"):
        inspect(copy)
    change(copy, "config.json", mask_token_id=289)
    assert inspect(copy)[0].mask_id == 289
    assert unmask.load(copy, device="cpu", mask=288, tokenizer=None).mask_id == 288


def test_settings_of_a_causal_model(copy):
    """What a plain Qwen3 config does not say is given; Efficient-DLM's says it in its own words."""
    change(copy, "config.json", model_type="qwen3")
    assert unmask.load(copy, device="cpu").kind == "causal"
    given = unmask.load(copy, device="cpu", kind="masked", mask=295, shift=True, block=4)
    assert (given.kind, given.mask_id, given.blueprint.shift) == ("masked", 295, True)
    assert given.net.config.block == 4 and not given.net.config.causal
    with pytest.raises(UserError, match="load it with mask=ID"):
        unmask.load(copy, device="cpu", kind="masked")
    with pytest.raises(UserError, match="'kind' is 'maskd', expected one of masked"):
        unmask.load(copy, device="cpu", kind="maskd")
    with pytest.raises(UserError, match="a causal network sees no later position"):
        unmask.load(copy, device="cpu", block=4)
    change(copy, "config.json", dlm_paradigm="bidirectional", mask_token_id=295)
    model, expected = unmask.load(copy, device="cpu"), load_expected("a2d-qwen3-tiny")
    torch.testing.assert_close(model.logits(expected["tokens"]), expected["logits"], **CLOSE)
    change(copy, "config.json", dlm_paradigm="other")
    with pytest.raises(UserError, match="'dlm_paradigm' is 'other', expected bidirectional"):
        unmask.load(copy, device="cpu")


def test_a_causal_model_with_a_mask_is_questioned(copy, caplog):
    """Open-dCoder is a diffusion model in Qwen2's settings; its name says so, a folder does not."""
    change(copy, "config.json", model_type="qwen3")
    assert unmask.load(copy, device="cpu").kind == "causal" and not caplog.messages
    change(copy, "added_tokens.json", **{"<|mask|>": 292})
    assert unmask.load(copy, device="cpu").kind == "causal"
    assert "has the settings of a causal model and a mask token (292)" in caplog.text
    assert "kind='masked'" in caplog.text
    given = Given(mask=7).complete(KNOWN["open-dcoder-0.5b"])
    assert given == Given("masked", 7, True) and Given().complete(KNOWN["gpt2"]) == Given()
    blueprint, _, _ = inspect(copy, given=given)
    assert (blueprint.kind, blueprint.mask_id, blueprint.shift) == ("masked", 7, True)


def make_llama(folder: Path, tied: bool = False) -> LlamaForCausalLM:
    """A tiny random Llama, written by `transformers`."""
    torch.manual_seed(4)
    shape: dict[str, Any] = {"vocab_size": 90, "hidden_size": 32, "intermediate_size": 48}
    shape |= {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    more = {"max_position_embeddings": 64, "initializer_range": 0.3}
    config = LlamaConfig(**shape, **more, tie_word_embeddings=tied)
    theirs = LlamaForCausalLM(config).eval().requires_grad_(False)
    theirs.save_pretrained(folder)
    return theirs


def run_llama(theirs: LlamaForCausalLM, tokens: torch.Tensor, sees: torch.Tensor) -> torch.Tensor:
    """Its logits where a position (first) sees another (second)."""
    bias = torch.zeros(sees.shape).masked_fill(~sees, torch.finfo(torch.float32).min)
    return theirs(tokens, attention_mask=bias[None, None].expand(len(tokens), 1, -1, -1)).logits


def test_illada(tmp_path):
    """A Llama that sees everything, known by its architecture; LayerNorms would be another one."""
    theirs = make_llama(tmp_path, tied=True)
    settings = {"model_type": "iLLaDA", "architectures": ["ILLaDAForCausalLM"]}
    change(tmp_path, "config.json", **settings, layer_norm_eps=None)
    model, tokens = unmask.load(tmp_path, device="cpu", mask=5), torch.arange(40).view(2, 20)
    assert (model.kind, model.mask_id, model.blueprint.shift) == ("masked", 5, False)
    expected = run_llama(theirs, tokens, torch.ones(20, 20, dtype=torch.bool))
    torch.testing.assert_close(model.logits(tokens), expected, atol=1e-5, rtol=1e-5)
    unmask.save(model, tmp_path / "back", "illada")
    assert unmask.load(tmp_path / "back", device="cpu").blueprint == model.blueprint
    change(tmp_path, "config.json", layer_norm_eps=1e-5)
    with pytest.raises(UserError, match="'layer_norm_eps' is 1e-05, but only null is supported"):
        unmask.load(tmp_path, device="cpu", mask=5)


def test_what_is_known_by_name(tmp_path):
    """Stable-DiffCoder has Llama's settings: its name says that it is masked, in blocks of 4."""
    theirs, tokens = make_llama(tmp_path), torch.arange(40).view(2, 20)
    given = Given().complete(KNOWN["stable-diffcoder-8b"])
    assert given == Given("masked", 5, False, 4) and inspect(tmp_path)[0].kind == "causal"
    model = unmask.load(tmp_path, device="cpu", **vars(given))
    block = torch.arange(20) // 4
    expected = run_llama(theirs, tokens, block <= block[:, None])
    torch.testing.assert_close(model.logits(tokens), expected, atol=1e-5, rtol=1e-5)
    assert Given().complete(KNOWN["open-dcoder-0.5b"]) == Given("masked", 151_665, True)
    assert Given().complete(KNOWN["qwen3-0.6b-bd3lm"]) == Given(block=32)


def test_llada2_sees_everything_without_blocks():
    """As its own code does where no mask is passed; its settings name no block, so 32 is usual."""
    expected = load_expected("llada2-tiny")
    model = load_peer("llada2-tiny", mask=252, block=0)
    torch.testing.assert_close(model.net(expected["tokens"]), expected["full_logits"], **CLOSE)
    assert load_peer("llada2-tiny", mask=252).net.config.block == 32


def test_mixtures_in_qwen3s_layout(tmp_path):
    """SDAR's mixture has RND1's tensors: the same network under other settings."""
    shutil.copytree(FIXTURES / "rnd1-tiny", tmp_path, dirs_exist_ok=True)
    change(tmp_path, "config.json", model_type="sdar_moe")
    model, tokens = unmask.load(tmp_path, device="cpu"), load_expected("rnd1-tiny")["tokens"]
    assert (model.net.config.block, model.blueprint.shift, model.mask_id) == (4, False, 249)
    same = load_peer("rnd1-tiny", block=4, shift=False)
    assert torch.equal(model.logits(tokens), same.logits(tokens))
    unmask.save(model, tmp_path / "back", "sdar_moe")
    assert unmask.load(tmp_path / "back", device="cpu").blueprint == model.blueprint


def test_experts_of_another_router_are_refused_by_name(tmp_path):
    """LLaDA-MoE's settings say llada, and have fields of their own."""
    shutil.copytree(FIXTURES / "llada-moe-tiny", tmp_path, dirs_exist_ok=True)
    change(tmp_path, "config.json", moe_router_score_function="sigmoid", clip_qkv=1.0)
    with pytest.raises(UserError, match=r"'sigmoid', but only 'softmax'|'clip_qkv' is 1.0"):
        unmask.load(tmp_path, device="cpu")
    change(tmp_path, "config.json", moe_router_score_function="softmax", clip_qkv=None)
    change(tmp_path, "config.json", moe_layer_freq=[1, 0, 1])
    with pytest.raises(UserError, match=r"'moe_layer_freq' is \[1, 0, 1\], expected zeros"):
        unmask.load(tmp_path, device="cpu")
    change(tmp_path, "config.json", moe_layer_freq=[0, 1, 1])
    with pytest.raises(UserError, match="missing .*layers.0.mlp.gate_proj.* too many"):
        unmask.load(tmp_path, device="cpu")


def test_what_an_adapted_layout_cannot_say(tmp_path):
    with pytest.raises(UserError, match=r"a sdar model has block-causal.*fits: a2d, unmask"):
        unmask.save(load("a2d-qwen3-tiny"), tmp_path / "out", "sdar")
    with pytest.raises(UserError, match="block 4 would become None"):
        unmask.save(load("sdar-tiny"), tmp_path / "out", "a2d")

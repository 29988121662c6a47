"""Networks made by `transformers`, Llama to GPT-NeoX: same logits, same tensors, both ways."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    Ministral3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

import unmask
from tests.conftest import build
from tests.parity.peers import check_round_trip, fill
from unmask.net.loading import inspect
from unmask.net.model import Model

SHAPE = {"vocab_size": 300, "hidden_size": 48, "intermediate_size": 120, "num_hidden_layers": 3}
SHAPE |= {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
BASE = {"rope_theta": 1e4, "factor": 4.0}
LLAMA3 = BASE | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16}
LINEAR = BASE | {"rope_type": "linear"}
YARN = BASE | {"rope_type": "yarn", "beta_fast": 8, "original_max_position_embeddings": 48}
SCALED = YARN | {"mscale": 1.0, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.1}
SCALED |= {"original_max_position_embeddings": 64, "rope_theta": 1e6}
EXPERTS = {"head_dim": 8, "num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": True}
EXPERTS |= {"moe_intermediate_size": 40}
GPT2 = {"vocab_size": 300, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 64}
GPT2 |= {"bos_token_id": 0, "eos_token_id": 0}
NEOX = SHAPE | {"num_attention_heads": 3, "eos_token_id": 0}
NEOX.pop("num_key_value_heads")
PLAIN_NEOX = {"use_parallel_residual": False, "hidden_act": "gelu_new", "attention_bias": False}

PEERS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SHAPE),
    "llama-biased": LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "llama-wide-heads": LlamaConfig(**SHAPE, head_dim=16),
    "llama-tied": LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SHAPE, **ROPE),
    "qwen2-tied": Qwen2Config(**SHAPE, **ROPE, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SHAPE, **ROPE, head_dim=16),
    "qwen3-biased": Qwen3Config(
        **SHAPE, **ROPE, head_dim=8, attention_bias=True, tie_word_embeddings=True
    ),
    "llama3": LlamaConfig(**SHAPE, rope_parameters=LLAMA3),
    "llama-linear": LlamaConfig(**SHAPE, rope_parameters=LINEAR),
    "qwen3-yarn": Qwen3Config(**SHAPE, head_dim=16, rope_parameters=YARN),
    "ministral3": Ministral3Config(**SHAPE, head_dim=16, rope_parameters=SCALED),
    "qwen3-moe": Qwen3MoeConfig(**SHAPE, **ROPE, **EXPERTS),
    "gpt2": GPT2Config(**GPT2),
    "gpt2-narrow": GPT2Config(**GPT2, n_inner=120),
    "gpt-neox": GPTNeoXConfig(**NEOX),
    "gpt-neox-sequential": GPTNeoXConfig(**NEOX, **PLAIN_NEOX),
}


@pytest.fixture(params=list(PEERS))
def peer(request, tmp_path) -> tuple[torch.nn.Module, Path]:
    """A random network of `transformers`, lively enough to show a wrong map, and its folder."""
    theirs = AutoModelForCausalLM.from_config(PEERS[request.param])
    fill(theirs)
    theirs.save_pretrained(tmp_path / "theirs")
    return theirs, tmp_path / "theirs"


def compare(theirs: torch.nn.Module, ours: Model) -> None:
    tokens = torch.randint(0, 300, (3, 64), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        expected = theirs(tokens).logits
        assert expected.std() > 0.5, "the logits should be lively enough to show a wrong tensor map"
        torch.testing.assert_close(ours.logits(tokens), expected, atol=1e-5, rtol=1e-5)


def test_logits_agree(peer):
    theirs, folder = peer
    ours = unmask.load(folder, device="cpu")
    assert ours.kind == "causal" and ours.mask_id is None and ours.tokenizer is None
    compare(theirs, ours)


def test_round_trip_key_for_key(peer, tmp_path):
    _, folder = peer
    ours, dialect = unmask.load(folder, device="cpu"), inspect(folder)[1].name
    check_round_trip(ours, folder / "model.safetensors", tmp_path / "back", dialect)
    # And what we wrote runs in transformers.
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "back", dtype=torch.float32)
    compare(again.eval(), ours)


def test_our_causal_network_runs_in_transformers(tmp_path):
    ours = build(kind="causal", vocab_size=300, kv_heads=2)
    unmask.save(ours, tmp_path / "llama", "llama")
    compare(AutoModelForCausalLM.from_pretrained(tmp_path / "llama").eval(), ours)


def test_decoding_agrees(peer):
    """Greedy decoding with the cache writes what `transformers` writes."""
    theirs, folder = peer
    prompts = torch.randint(0, 300, (3, 5), generator=torch.Generator().manual_seed(1))
    expected = theirs.generate(
        prompts, max_length=40, min_length=40, do_sample=False, pad_token_id=0, eos_token_id=None
    )
    found = unmask.sample(unmask.load(folder, device="cpu"), prompts.tolist(), length=40)
    assert torch.equal(found.tokens, expected)


def rename_gpt2(said: dict, weights: dict) -> dict:
    """Names without their first part, and stored attention masks among the weights."""
    short = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}
    return short | {"h.0.attn.bias": torch.ones(1, 1, 64, 64)}


def rename_pythia(said: dict, weights: dict) -> dict:
    """Rotary settings by their old names, and stored masks and frequencies among the weights."""
    del said["rope_parameters"], said["attention_bias"]
    said |= {"rotary_pct": 0.25, "rotary_emb_base": 10_000}
    stored = {"bias": torch.ones(1, 1, 64, 64), "rotary_emb.inv_freq": torch.ones(2)}
    return weights | {f"gpt_neox.layers.0.attention.{name}": x for name, x in stored.items()}


@pytest.mark.parametrize(
    ("name", "rename", "rotary"),
    [("gpt2", rename_gpt2, None), ("gpt-neox", rename_pythia, 4)],
)
def test_models_as_the_hub_has_them(name, rename, rotary, tmp_path):
    theirs = AutoModelForCausalLM.from_config(PEERS[name]).eval()
    theirs.save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    weights = rename(said, load_file(tmp_path / "model.safetensors"))
    (tmp_path / "config.json").write_text(json.dumps(said))
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    tokens, found = torch.arange(20)[None], unmask.load(tmp_path, device="cpu")
    assert rotary is None or found.net.config.rotary_dim == rotary
    expected = theirs(tokens).logits.detach()
    torch.testing.assert_close(found.logits(tokens), expected, atol=1e-5, rtol=1e-5)

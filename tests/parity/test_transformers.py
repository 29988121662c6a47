"""Logits equal those of `transformers` on tiny random networks of each block."""

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from unmask.net.config import NetConfig
from unmask.net.transformer import Transformer

SHAPE = {"vocab_size": 300, "hidden_size": 48, "intermediate_size": 120, "num_hidden_layers": 3}
SHAPE |= {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64}


def shake(theirs: torch.nn.Module) -> torch.nn.Module:
    """Weights large enough that a wrong wire shows, biases and norms included."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in theirs.parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.15 * drawn if parameter.ndim == 2 else 1 + 0.3 * drawn)
    return theirs.eval()


def copy_llama(theirs: dict, config: NetConfig) -> Transformer:
    ours = {
        "embedding.weight": theirs["model.embed_tokens.weight"],
        "norm.weight": theirs["model.norm.weight"],
    }
    ours["head.weight"] = theirs.get("lm_head.weight", theirs["model.embed_tokens.weight"])
    for i in range(config.layers):
        old, new = f"model.layers.{i}.", f"layers.{i}."
        for kind in ("weight", "bias") if config.qkv_bias else ("weight",):
            parts = [theirs[f"{old}self_attn.{part}_proj.{kind}"] for part in "qkv"]
            ours[f"{new}attn.qkv.{kind}"] = torch.cat(parts)
        ours[new + "attn.out.weight"] = theirs[old + "self_attn.o_proj.weight"]
        ours[new + "attn_norm.weight"] = theirs[old + "input_layernorm.weight"]
        ours[new + "mlp_norm.weight"] = theirs[old + "post_attention_layernorm.weight"]
        for part in ("gate", "up", "down"):
            ours[f"{new}mlp.{part}.weight"] = theirs[f"{old}mlp.{part}_proj.weight"]
    net = Transformer(config, seed=None)
    net.load_state_dict(ours)
    return net.eval()


def copy_gpt2(theirs: dict, config: NetConfig) -> Transformer:
    ours = {
        "embedding.weight": theirs["transformer.wte.weight"],
        "position.weight": theirs["transformer.wpe.weight"],
    }
    ours["head.weight"] = theirs["transformer.wte.weight"]
    names = {
        "attn.qkv": "attn.c_attn",
        "attn.out": "attn.c_proj",
        "mlp.up": "mlp.c_fc",
        "mlp.down": "mlp.c_proj",
    }
    names |= {"attn_norm": "ln_1", "mlp_norm": "ln_2"}
    for kind in ("weight", "bias"):
        ours[f"norm.{kind}"] = theirs[f"transformer.ln_f.{kind}"]
        for i in range(config.layers):
            for new, old in names.items():
                # GPT-2 stores its projections as [in, out].
                ours[f"layers.{i}.{new}.{kind}"] = theirs[f"transformer.h.{i}.{old}.{kind}"].t()
    net = Transformer(config, seed=None)
    net.load_state_dict(ours)
    return net.eval()


def our_config(**changes) -> NetConfig:
    shape = {
        "vocab_size": 300,
        "width": 48,
        "layers": 3,
        "heads": 6,
        "mlp_width": 120,
        "context": 64,
    }
    return NetConfig(**(shape | {"causal": True} | changes))


def llama() -> tuple[torch.nn.Module, Transformer]:
    theirs = shake(LlamaForCausalLM(LlamaConfig(**SHAPE, rms_norm_eps=1e-5)))
    return theirs, copy_llama(theirs.state_dict(), our_config(kv_heads=2))


def qwen2() -> tuple[torch.nn.Module, Transformer]:
    config = Qwen2Config(
        **SHAPE,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    theirs = shake(Qwen2ForCausalLM(config))
    ours = our_config(kv_heads=2, qkv_bias=True, tied=True, norm_eps=1e-6, rotary_base=1e6)
    return theirs, copy_llama(theirs.state_dict(), ours)


def gpt2() -> tuple[torch.nn.Module, Transformer]:
    config = GPT2Config(
        vocab_size=300,
        n_embd=48,
        n_layer=3,
        n_head=6,
        n_inner=120,
        n_positions=64,
        bos_token_id=0,
        eos_token_id=0,
    )
    theirs = shake(GPT2LMHeadModel(config))
    ours = our_config(
        norm="layer",
        positions="learned",
        mlp="gelu",
        tied=True,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
    )
    return theirs, copy_gpt2(theirs.state_dict(), ours)


@pytest.mark.parametrize("make", [llama, qwen2, gpt2])
@torch.inference_mode()
def test_logits_agree(make):
    theirs, ours = make()
    tokens = torch.randint(0, 300, (3, 64), generator=torch.Generator().manual_seed(5))
    expected = theirs(tokens).logits
    assert expected.std() > 0.5, "the logits should be lively enough to tell a wrong wire"
    torch.testing.assert_close(ours(tokens), expected, atol=1e-5, rtol=1e-5)

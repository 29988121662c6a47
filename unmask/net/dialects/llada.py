"""LLaDA: the Llama block, bidirectional, under names of its own."""

from functools import partial
from typing import Any

from unmask.net.dialects.dialect import Dialect, FieldTable, Source, build_config
from unmask.net.dialects.names import BlockNames, llama_map
from unmask.net.model import Blueprint

_NAMES = BlockNames(
    embedding="model.transformer.wte",
    block="model.transformer.blocks.{i}.",
    attn_norm="attn_norm",
    q="q_proj",
    k="k_proj",
    v="v_proj",
    out="attn_out",
    mlp_norm="ff_norm",
    gate="ff_proj",
    up="up_proj",
    down="ff_out",
    norm="model.transformer.ln_f",
    head="model.transformer.ff_out",
)

_TABLE = FieldTable(
    same={
        "vocab_size": "embedding_size",  # rows of embedding and head; may exceed `vocab_size`
        "width": "d_model",
        "layers": "n_layers",
        "heads": "n_heads",
        "kv_heads": "n_kv_heads",
        "mlp_width": "mlp_hidden_size",
        "context": "max_sequence_length",
        "norm_eps": "rms_norm_eps",
        "rotary_base": "rope_theta",
        "tied": "weight_tying",
        "qkv_bias": "include_qkv_bias",
    },
    fixed={
        "activation_type": "silu",
        "alibi": False,
        "attention_layer_norm": False,
        "block_type": "llama",
        "include_bias": False,
        "input_emb_norm": False,
        "layer_norm_type": "rms",
        "rope": True,
        "rope_full_precision": True,
        "scale_logits": False,
    },
    optional={"n_kv_heads": None, "weight_tying": False, "include_qkv_bias": False},
    needed=("mask_token_id",),
)


def _read(source: Source) -> Blueprint:
    config = dict(source.config)
    if config.get("embedding_size") is None:
        config["embedding_size"] = config.get("vocab_size")
    values = _TABLE.read(config, source.label)
    return Blueprint(build_config(values, source), "masked", source.config["mask_token_id"])


def _write(blueprint: Blueprint) -> dict[str, Any]:
    return {
        "architectures": ["LLaDAModelLM"],
        "model_type": "llada",
        **_TABLE.write(blueprint.config),
        "vocab_size": blueprint.config.vocab_size,
        "mask_token_id": blueprint.mask_id,
    }


DIALECT = Dialect(
    name="llada",
    about="LLaDA-8B and LLaDA-1.5: sees everything",
    # LLaDA-MoE calls itself llada, too (`unmask.net.dialects.experts`).
    recognise=lambda source: (
        source.config.get("model_type") == "llada" and source.config.get("num_experts") is None
    ),
    read=_read,
    map_tensors=partial(llama_map, names=_NAMES),
    write=_write,
    token_fields=("eos_token_id", "pad_token_id"),
    needs_mask=True,
)

"""Mixtures of experts: Qwen3-MoE in `transformers`, LLaDA-MoE and LLaDA2.

The routers differ in what scores are, how experts are chosen and how they are weighed; all of it is
settings (`unmask.net.mlp.Experts`).
"""

from dataclasses import replace
from functools import partial
from typing import Any

from unmask.base.config import SettingsError
from unmask.net.dialects import qwen3
from unmask.net.dialects.dialect import (
    TOKEN_FIELDS,
    Dialect,
    FieldTable,
    Source,
    build_config,
    find_mask,
)
from unmask.net.dialects.llama import ABSENT, SHAPES, read_rotary, write_rotary
from unmask.net.dialects.names import TRANSFORMERS, llama_map
from unmask.net.model import Blueprint

_EXPERTS = {
    "experts": "num_experts",
    "experts_per_token": "num_experts_per_tok",
    "expert_width": "moe_intermediate_size",
    "router_renorm": "norm_topk_prob",
}

_QWEN3_MOE = replace(
    qwen3.TABLE,
    same=dict(qwen3.TABLE.same) | _EXPERTS,
    fixed=dict(qwen3.TABLE.fixed) | {"decoder_sparse_step": 1, "mlp_only_layers": []},
    optional=dict(qwen3.TABLE.optional) | {"norm_topk_prob": False},
)


def _read_qwen3(source: Source) -> Blueprint:
    rotary = read_rotary(source.config, source.label)
    settings = dict(source.config)
    if settings.get("num_experts") is None:  # newer files have another name for it
        settings["num_experts"] = settings.get("num_local_experts")
    values = _QWEN3_MOE.read(settings, source.label)
    config = build_config(values, source, **rotary, qk_norm=True, causal=True)
    return Blueprint(config, "causal")


def _write_qwen3(blueprint: Blueprint) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        **_QWEN3_MOE.write(blueprint.config),
        "num_local_experts": blueprint.config.experts,
        **write_rotary(blueprint.config),
    }


QWEN3_MOE = replace(
    qwen3.DIALECT,
    name="qwen3_moe",
    about=(
        "Qwen3's mixtures of experts: softmax over all experts, the chosen ones renormalised if it "
        "says so"
    ),
    recognise=lambda source: source.config.get("model_type") == "qwen3_moe",
    read=_read_qwen3,
    write=_write_qwen3,
)

_LLADA_MOE = FieldTable(
    same=SHAPES
    | _EXPERTS
    | {
        "mlp_width": "dense_intermediate_size",
        "expert_width": "expert_intermediate_size",
        "shared_width": "shared_expert_intermediate_size",
    },
    fixed={
        "attention_bias": False,
        "clip_qkv": None,
        "hidden_act": "silu",
        "moe_router_enable_expert_bias": False,
        "moe_router_score_function": "softmax",
        "partial_rotary_factor": 1,
        "qk_layernorm": True,
        "routed_scaling_factor": 1,
        "router_num_group": None,
        "router_topk_group": None,
    },
    optional=ABSENT | {"shared_expert_intermediate_size": None, "norm_topk_prob": None},
    needed=("moe_layer_freq",),
)


def _read_llada(source: Source) -> Blueprint:
    rotary = read_rotary(source.config, source.label)
    values = _LLADA_MOE.read(source.config, source.label)
    values["router_renorm"] = False  # its code weighs by the softmax itself, whatever this says
    given = source.config["moe_layer_freq"]
    frequencies = given if isinstance(given, list) else [given]
    dense = frequencies.index(1) if 1 in frequencies else len(frequencies)
    if not all(each == (place >= dense) for place, each in enumerate(frequencies)):
        raise SettingsError(
            source.label, [f"'moe_layer_freq' is {given!r}, expected zeros and then ones"]
        )
    config = build_config(values, source, **rotary, qk_norm=True, dense_layers=dense)
    return Blueprint(config, "masked", find_mask(source))


def _write_llada(blueprint: Blueprint) -> dict[str, Any]:
    config, dense = blueprint.config, blueprint.config.dense_layers
    return {
        "architectures": ["LLaDAMoEModelLM"],
        "model_type": "llada",
        **_LLADA_MOE.write(config),
        **write_rotary(config),
        "moe_layer_freq": [0] * dense + [1] * (config.layers - dense),
        "mask_token_id": blueprint.mask_id,
    }


_LLADA2_NAMES = replace(
    TRANSFORMERS,
    embedding="model.word_embeddings",
    qkv="attention.query_key_value",
    out="attention.dense",
    q_norm="attention.query_layernorm",
    k_norm="attention.key_layernorm",
    shared="mlp.shared_experts",
)

_LLADA2 = FieldTable(
    same=SHAPES
    | _EXPERTS
    | {
        "head_width": "head_dim",
        "rotary_share": "partial_rotary_factor",
        "qk_norm": "use_qk_norm",
        "qkv_bias": "use_qkv_bias",
        "out_bias": "use_bias",
        "dense_layers": "first_k_dense_replace",
        "router": "score_function",
        "router_bias": "moe_router_enable_expert_bias",
        "router_groups": "n_group",
        "router_top_groups": "topk_group",
        "router_scale": "routed_scaling_factor",
    },
    fixed={"hidden_act": "silu", "norm_head": False, "use_sliding_window": False},
    optional=ABSENT
    | {
        "partial_rotary_factor": 1.0,
        "use_qk_norm": True,
        "use_qkv_bias": False,
        "use_bias": False,
        "moe_router_enable_expert_bias": False,
        "n_group": None,
        "topk_group": None,
        "first_k_dense_replace": 0,
    },
)
_LLADA2_BLOCK = 32
"""The block of the released models, whose settings do not name it."""


def _read_llada2(source: Source) -> Blueprint:
    rotary = read_rotary(source.config, source.label)
    values = _LLADA2.read(source.config, source.label)
    for name in ("rotary_share", "router_scale"):
        values[name] = float(values[name])
    if shared := source.config.get("num_shared_experts"):
        values["shared_width"] = shared * values["expert_width"]
    block = source.config.get("block_size", _LLADA2_BLOCK)
    config = build_config(values, source, **rotary, block=block)
    return Blueprint(config, "masked", find_mask(source))


def _write_llada2(blueprint: Blueprint) -> dict[str, Any]:
    config = blueprint.config
    return {
        "architectures": ["LLaDA2MoeModelLM"],
        "model_type": "llada2_moe",
        **_LLADA2.write(config),
        **write_rotary(config),
        "num_shared_experts": (config.shared_width or 0) // config.expert_inner,
        "block_size": config.block,
        "mask_token_id": blueprint.mask_id,
    }


def is_llada_moe(source: Source) -> bool:
    """Whether settings are LLaDA-MoE's, which call themselves LLaDA's."""
    name, experts = source.config.get("model_type"), source.config.get("num_experts")
    return name == "lladamoe" or (name == "llada" and experts is not None)


_LLADA = Dialect(
    name="llada_moe",
    about=(
        "LLaDA-MoE, whose settings say `llada`: experts weighed by the softmax itself; sees "
        "everything"
    ),
    recognise=is_llada_moe,
    read=_read_llada,
    map_tensors=partial(llama_map, names=TRANSFORMERS),
    write=_write_llada,
    ignored=("rotary_emb.inv_freq",),
    tied_head="lm_head.weight",
    token_fields=TOKEN_FIELDS,
    needs_mask=True,
)
DIALECTS = (
    QWEN3_MOE,
    _LLADA,
    replace(
        _LLADA,
        name="llada2_moe",
        about=(
            "LLaDA2.0 and 2.1: a sigmoid router with groups and a bias, a shared expert, dense "
            "first layers, half of each head turned; blocks of 32 unless given"
        ),
        recognise=lambda source: source.config.get("model_type") == "llada2_moe",
        read=_read_llada2,
        map_tensors=partial(llama_map, names=_LLADA2_NAMES),
        write=_write_llada2,
    ),
)

"""Mixtures of experts: Qwen3-MoE in `transformers`, LLaDA-MoE and LLaDA2.

The routers differ in what scores are, how experts are chosen and how they are weighed; all of it is
settings (`unmask.net.mlp.Experts`).
"""

from dataclasses import replace
from typing import Any

from unmask.base.config import SettingsError
from unmask.net.dialects import qwen3
from unmask.net.dialects.dialect import FieldTable, Source
from unmask.net.dialects.layouts import Layout
from unmask.net.dialects.llama import ABSENT, NAMES, SHAPES
from unmask.net.model import Blueprint

_EXPERTS = {
    "experts": "num_experts",
    "experts_per_token": "num_experts_per_tok",
    "expert_width": "moe_intermediate_size",
    "router_renorm": "norm_topk_prob",
}

QWEN3_MOE = Layout(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    replace(
        qwen3.TABLE,
        same=dict(qwen3.TABLE.same) | _EXPERTS,
        fixed=dict(qwen3.TABLE.fixed) | {"decoder_sparse_step": 1, "mlp_only_layers": []},
        optional=dict(qwen3.TABLE.optional) | {"norm_topk_prob": False},
        also_called={"num_experts": "num_local_experts"},  # in newer files
    ),
    NAMES,
    network={"qk_norm": True},
    add=lambda blueprint: {"num_local_experts": blueprint.config.experts},
).make_dialect(
    "qwen3_moe",
    "Qwen3's mixtures of experts: softmax over all experts, the chosen ones renormalised if it "
    "says so",
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


def _complete_llada(values: dict[str, Any], source: Source) -> dict[str, Any]:
    given = source.config["moe_layer_freq"]
    frequencies = given if isinstance(given, list) else [given]
    dense = frequencies.index(1) if 1 in frequencies else len(frequencies)
    if not all(each == (place >= dense) for place, each in enumerate(frequencies)):
        raise SettingsError(
            source.label, [f"'moe_layer_freq' is {given!r}, expected zeros and then ones"]
        )
    # Its code weighs by the softmax itself, whatever its settings say.
    return {"router_renorm": False, "dense_layers": dense}


def _add_llada(blueprint: Blueprint) -> dict[str, Any]:
    dense = blueprint.config.dense_layers
    return {"moe_layer_freq": [0] * dense + [1] * (blueprint.config.layers - dense)}


def is_llada_moe(source: Source) -> bool:
    """Whether settings are LLaDA-MoE's, which call themselves LLaDA's."""
    name, experts = source.config.get("model_type"), source.config.get("num_experts")
    return name == "lladamoe" or (name == "llada" and experts is not None)


_LLADA2_NAMES = replace(
    NAMES,
    parts={
        **NAMES.parts,
        "attn.qkv": "attention.query_key_value",
        "attn.q_norm": "attention.query_layernorm",
        "attn.k_norm": "attention.key_layernorm",
        "attn.out": "attention.dense",
        "mlp.choice_bias": "mlp.gate.expert_bias",
        "mlp.shared.gate": "mlp.shared_experts.gate_proj",
        "mlp.shared.up": "mlp.shared_experts.up_proj",
        "mlp.shared.down": "mlp.shared_experts.down_proj",
    },
    ends={**NAMES.ends, "embedding": "model.word_embeddings"},
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


def _complete_llada2(values: dict[str, Any], source: Source) -> dict[str, Any]:
    more: dict[str, Any] = {name: float(values[name]) for name in ("rotary_share", "router_scale")}
    if shared := source.config.get("num_shared_experts"):
        more["shared_width"] = shared * values["expert_width"]
    return more | {"block": source.config.get("block_size", _LLADA2_BLOCK)}


def _add_llada2(blueprint: Blueprint) -> dict[str, Any]:
    config = blueprint.config
    shared = (config.shared_width or 0) // config.expert_inner
    return {"num_shared_experts": shared, "block_size": config.block}


DIALECTS = (
    QWEN3_MOE,
    Layout(
        "llada",
        "LLaDAMoEModelLM",
        _LLADA_MOE,
        NAMES,
        network={"qk_norm": True},
        is_masked=True,
        complete=_complete_llada,
        add=_add_llada,
    ).make_dialect(
        "llada_moe",
        "LLaDA-MoE, whose settings say `llada`: experts weighed by the softmax itself; sees "
        "everything",
        recognise=is_llada_moe,
    ),
    Layout(
        "llada2_moe",
        "LLaDA2MoeModelLM",
        _LLADA2,
        _LLADA2_NAMES,
        is_masked=True,
        complete=_complete_llada2,
        add=_add_llada2,
    ).make_dialect(
        "llada2_moe",
        "LLaDA2.0 and 2.1: a sigmoid router with groups and a bias, a shared expert, dense first "
        "layers, half of each head turned; blocks of 32 unless given",
    ),
)

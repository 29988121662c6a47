"""Llama's layout in `transformers`, whose names its many descendants share."""

from unmask.net.dialects.dialect import SIZES, FieldTable
from unmask.net.dialects.layouts import Layout
from unmask.net.dialects.names import Names

NAMES = Names(
    layer="model.layers.{i}.",
    parts={
        "attn_norm": "input_layernorm",
        "attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attn.q_norm": "self_attn.q_norm",
        "attn.k_norm": "self_attn.k_norm",
        "attn.out": "self_attn.o_proj",
        "mlp_norm": "post_attention_layernorm",
        "mlp.gate": "mlp.gate_proj",
        "mlp.up": "mlp.up_proj",
        "mlp.down": "mlp.down_proj",
        "mlp.router": "mlp.gate",
        "mlp.gates": "mlp.experts.{e}.gate_proj.weight",
        "mlp.ups": "mlp.experts.{e}.up_proj.weight",
        "mlp.downs": "mlp.experts.{e}.down_proj.weight",
        "mlp.shared.gate": "mlp.shared_expert.gate_proj",
        "mlp.shared.up": "mlp.shared_expert.up_proj",
        "mlp.shared.down": "mlp.shared_expert.down_proj",
    },
    ends={"embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"},
)
SHAPES = SIZES | {
    "kv_heads": "num_key_value_heads",
    "norm_eps": "rms_norm_eps",
    "tied": "tie_word_embeddings",
}
"""Fields that Llama, Qwen2 and Dream share."""
ABSENT = {"tie_word_embeddings": False, "num_key_value_heads": None, "head_dim": None}

_TABLE = FieldTable(
    same=SHAPES
    | {
        "head_width": "head_dim",
        "qkv_bias": "attention_bias",
        "out_bias": "attention_bias",
        "mlp_bias": "mlp_bias",
    },
    fixed={"hidden_act": "silu"},
    optional=ABSENT | {"attention_bias": False, "mlp_bias": False},
)
DIALECT = Layout("llama", "LlamaForCausalLM", _TABLE, NAMES).make_dialect(
    "llama",
    "Llama and its kin: rotary scaling `linear`, `llama3` and `yarn`, here and in the Qwens; "
    "Stable-DiffCoder, whose settings are these",
)

"""LLaDA: the Llama block, bidirectional, under names of its own."""

from unmask.net.dialects.dialect import FieldTable, Source
from unmask.net.dialects.layouts import Layout
from unmask.net.dialects.names import Names

_NAMES = Names(
    layer="model.transformer.blocks.{i}.",
    parts={
        "attn_norm": "attn_norm",
        "attn.qkv": ("q_proj", "k_proj", "v_proj"),
        "attn.out": "attn_out",
        "mlp_norm": "ff_norm",
        "mlp.gate": "ff_proj",
        "mlp.up": "up_proj",
        "mlp.down": "ff_out",
    },
    ends={
        "embedding": "model.transformer.wte",
        "norm": "model.transformer.ln_f",
        "head": "model.transformer.ff_out",
    },
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
    also_called={"embedding_size": "vocab_size"},
    needed=("mask_token_id",),
)


def _recognise(source: Source) -> bool:
    # LLaDA-MoE calls itself llada, too (`unmask.net.dialects.experts`).
    return source.config.get("model_type") == "llada" and source.config.get("num_experts") is None


DIALECT = Layout(
    "llada",
    "LLaDAModelLM",
    _TABLE,
    _NAMES,
    is_masked=True,
    has_rotary=False,
    add=lambda blueprint: {"vocab_size": blueprint.config.vocab_size},
).make_dialect(
    "llada",
    "LLaDA-8B and LLaDA-1.5: sees everything",
    tied_head=None,
    ignored=(),
    token_fields=("eos_token_id", "pad_token_id"),
    recognise=_recognise,
)

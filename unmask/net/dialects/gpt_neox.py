"""GPT-NeoX in `transformers`, the layout of Pythia: queries, keys and values head by head."""

from typing import Any

from torch import Tensor

from unmask.base.config import SettingsError
from unmask.net.config import NetConfig
from unmask.net.dialects.dialect import SIZES, FieldTable, Source
from unmask.net.dialects.layouts import Layout, write_rotary
from unmask.net.dialects.names import Names
from unmask.net.model import Blueprint

_TABLE = FieldTable(
    same=SIZES
    | {
        "norm_eps": "layer_norm_eps",
        "tied": "tie_word_embeddings",
        "qkv_bias": "attention_bias",
        "out_bias": "attention_bias",
    },
    optional={"tie_word_embeddings": False, "attention_bias": True},
)
_GELUS = {"gelu": "exact", "gelu_new": "tanh"}


def _complete(values: dict[str, Any], source: Source) -> dict[str, Any]:
    config = source.config
    activation = config.get("hidden_act", "gelu")
    parallel = config.get("use_parallel_residual", True)
    problems = []
    if activation not in list(_GELUS):
        problems += [f"'hidden_act' is {activation!r}, expected one of {', '.join(_GELUS)}"]
    if not isinstance(parallel, bool):
        problems += [f"'use_parallel_residual' is {parallel!r}, expected true or false"]
    if problems:
        raise SettingsError(source.label, problems)
    rotary = config.get("rope_parameters") or {}  # the share has two names, old and new
    return {
        "gelu": _GELUS[activation],
        "residual": "parallel" if parallel else "sequential",
        "rotary_share": rotary.get("partial_rotary_factor", config.get("rotary_pct", 0.25)),
    }


def _add(blueprint: Blueprint) -> dict[str, Any]:
    config, rotary = blueprint.config, write_rotary(blueprint.config)["rope_parameters"]
    return {
        "hidden_act": next(name for name, gelu in _GELUS.items() if gelu == config.gelu),
        "use_parallel_residual": config.residual == "parallel",
        "rotary_emb_base": config.rotary_base,
        "rotary_pct": config.rotary_share,
        "rope_parameters": rotary | {"partial_rotary_factor": config.rotary_share},
    }


def _part_heads(fused: Tensor, config: NetConfig) -> Tensor:
    """Rows [head, its query + key + value] to all queries, all keys, all values."""
    return fused.unflatten(0, (config.heads, 3, -1)).transpose(0, 1).flatten(0, 2)


def _join_heads(qkv: Tensor, config: NetConfig) -> Tensor:
    """The inverse of `_part_heads`."""
    return qkv.unflatten(0, (3, config.heads, -1)).transpose(0, 1).flatten(0, 2)


_NAMES = Names(
    layer="gpt_neox.layers.{i}.",
    parts={
        "attn_norm": "input_layernorm",
        "attn.qkv": "attention.query_key_value",
        "attn.out": "attention.dense",
        "mlp_norm": "post_attention_layernorm",
        "mlp.up": "mlp.dense_h_to_4h",
        "mlp.down": "mlp.dense_4h_to_h",
    },
    ends={
        "embedding": "gpt_neox.embed_in",
        "norm": "gpt_neox.final_layer_norm",
        "head": "embed_out",
    },
    turns={f"attn.qkv.{kind}": (_part_heads, _join_heads) for kind in ("weight", "bias")},
)
DIALECT = Layout(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    _TABLE,
    _NAMES,
    network={"norm": "layer", "mlp": "gelu", "mlp_bias": True},
    complete=_complete,
    add=_add,
).make_dialect(
    "gpt_neox",
    "Pythia: parallel residual, a share of each head turned",
    tied_head="embed_out.weight",
    ignored=(".attention.bias", ".attention.masked_bias", ".attention.rotary_emb.inv_freq"),
)

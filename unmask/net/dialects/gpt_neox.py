"""GPT-NeoX in `transformers`, the layout of Pythia: queries, keys and values head by head."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor

from unmask.base.config import SettingsError
from unmask.net.config import NetConfig
from unmask.net.dialects.dialect import (
    SIZES,
    TOKEN_FIELDS,
    Dialect,
    FieldTable,
    Source,
    TensorMap,
    build_config,
)
from unmask.net.dialects.llama import read_rotary, write_rotary
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
_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "mlp_norm"}
_PROJECTIONS = {
    "attention.dense": "attn.out",
    "mlp.dense_h_to_4h": "mlp.up",
    "mlp.dense_4h_to_h": "mlp.down",
}


def _read(source: Source) -> Blueprint:
    config = source.config
    activation = config.get("hidden_act", "gelu")
    rotary = config.get("rope_parameters") or {}
    parallel = config.get("use_parallel_residual", True)
    problems = []
    if activation not in list(_GELUS):
        problems += [f"'hidden_act' is {activation!r}, expected one of {', '.join(_GELUS)}"]
    if not isinstance(rotary, dict):
        problems += [f"'rope_parameters' is {rotary!r}, expected an object"]
    if not isinstance(parallel, bool):
        problems += [f"'use_parallel_residual' is {parallel!r}, expected true or false"]
    if problems:
        raise SettingsError(source.label, problems)
    # The rotary settings have two names each, old and new.
    share = rotary.get("partial_rotary_factor", config.get("rotary_pct", 0.25))
    base = {"rope_theta": config["rotary_emb_base"]} if "rotary_emb_base" in config else {}
    network = build_config(
        _TABLE.read(config, source.label),
        source,
        causal=True,
        norm="layer",
        **read_rotary(base | dict(config), source.label),
        rotary_share=share,
        mlp="gelu",
        gelu=_GELUS[activation],
        mlp_bias=True,
        residual="parallel" if parallel else "sequential",
    )
    return Blueprint(network, "causal")


def _write(blueprint: Blueprint) -> dict[str, Any]:
    config = blueprint.config
    base, share = config.rotary_base, config.rotary_share
    rotary = write_rotary(config)
    rotary["rope_parameters"]["partial_rotary_factor"] = share
    activations = {gelu: name for name, gelu in _GELUS.items()}
    return {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "hidden_act": activations[config.gelu],
        "use_parallel_residual": config.residual == "parallel",
        "rotary_emb_base": base,
        "rotary_pct": share,
        **rotary,
        **_TABLE.write(config),
    }


def _part_heads(fused: Tensor, heads: int) -> Tensor:
    """Rows [head, its query + key + value] to all queries, all keys, all values."""
    return fused.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)


def _join_heads(qkv: Tensor, heads: int) -> Tensor:
    """The inverse of `_part_heads`."""
    return qkv.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)


def _map_tensors(config: NetConfig) -> Iterator[TensorMap]:
    yield TensorMap("gpt_neox.embed_in.weight", "embedding.weight")
    if not config.tied:
        yield TensorMap("embed_out.weight", "head.weight")
    part, join = (partial(turn, heads=config.heads) for turn in (_part_heads, _join_heads))
    for tensor in ("weight", "bias"):
        yield TensorMap(f"gpt_neox.final_layer_norm.{tensor}", f"norm.{tensor}")
        for i in range(config.layers):
            theirs, ours = f"gpt_neox.layers.{i}.", f"layers.{i}."
            for name, own in _NORMS.items():
                yield TensorMap(f"{theirs}{name}.{tensor}", f"{ours}{own}.{tensor}")
            for name, own in _PROJECTIONS.items():
                if tensor == "weight" or own != "attn.out" or config.out_bias:
                    yield TensorMap(f"{theirs}{name}.{tensor}", f"{ours}{own}.{tensor}")
            if tensor == "weight" or config.qkv_bias:
                fused = f"{theirs}attention.query_key_value.{tensor}"
                yield TensorMap(fused, f"{ours}attn.qkv.{tensor}", None, part, join)


DIALECT = Dialect(
    name="gpt_neox",
    about="Pythia: parallel residual, a share of each head turned",
    recognise=lambda source: source.config.get("model_type") == "gpt_neox",
    read=_read,
    map_tensors=_map_tensors,
    write=_write,
    ignored=(".attention.bias", ".attention.masked_bias", ".attention.rotary_emb.inv_freq"),
    tied_head="embed_out.weight",
    token_fields=TOKEN_FIELDS,
)

"""GPT-2 in `transformers`: projections stored as [in, out], queries, keys and values as one."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from unmask.net.config import NetConfig
from unmask.net.dialects.dialect import (
    TOKEN_FIELDS,
    Dialect,
    FieldTable,
    Source,
    TensorMap,
    build_config,
)
from unmask.net.model import Blueprint

_TABLE = FieldTable(
    same={
        "vocab_size": "vocab_size",
        "width": "n_embd",
        "layers": "n_layer",
        "heads": "n_head",
        "mlp_width": "n_inner",
        "context": "n_positions",
        "norm_eps": "layer_norm_epsilon",
        "tied": "tie_word_embeddings",
    },
    fixed={
        "activation_function": "gelu_new",
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    optional={"tie_word_embeddings": True, "n_inner": None},
)
_NORMS = {"ln_1": "attn_norm", "ln_2": "mlp_norm"}
_PROJECTIONS = {
    "attn.c_attn": "attn.qkv",
    "attn.c_proj": "attn.out",
    "mlp.c_fc": "mlp.up",
    "mlp.c_proj": "mlp.down",
}


def _read(source: Source) -> Blueprint:
    values = _TABLE.read(source.config, source.label)
    if values["mlp_width"] is None:
        values["mlp_width"] = 4 * values["width"]
    config = build_config(
        values,
        source,
        causal=True,
        norm="layer",
        positions="learned",
        mlp="gelu",
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
    )
    return Blueprint(config, "causal")


def _write(blueprint: Blueprint) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        **_TABLE.write(blueprint.config),
    }


def _turn(tensor: Tensor) -> Tensor:
    return tensor.t().contiguous()


def _map_tensors(config: NetConfig) -> Iterator[TensorMap]:
    yield TensorMap("transformer.wte.weight", "embedding.weight")
    yield TensorMap("transformer.wpe.weight", "position.weight")
    if not config.tied:
        yield TensorMap("lm_head.weight", "head.weight")
    for tensor in ("weight", "bias"):
        yield TensorMap(f"transformer.ln_f.{tensor}", f"norm.{tensor}")
        for i in range(config.layers):
            theirs, ours = f"transformer.h.{i}.", f"layers.{i}."
            for name, own in _NORMS.items():
                yield TensorMap(f"{theirs}{name}.{tensor}", f"{ours}{own}.{tensor}")
            for name, own in _PROJECTIONS.items():
                turns = (_turn, _turn) if tensor == "weight" else ()
                yield TensorMap(f"{theirs}{name}.{tensor}", f"{ours}{own}.{tensor}", None, *turns)


DIALECT = Dialect(
    name="gpt2",
    about="GPT-2: positions are learned",
    recognise=lambda source: source.config.get("model_type") == "gpt2",
    read=_read,
    map_tensors=_map_tensors,
    write=_write,
    optional_prefix="transformer.",
    ignored=(".attn.bias", ".attn.masked_bias"),
    tied_head="lm_head.weight",
    token_fields=TOKEN_FIELDS,
)

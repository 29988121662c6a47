"""Llama in `transformers`: the plain layout that most tools read."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from unmask.base.config import SettingsError
from unmask.net.dialects.dialect import TOKEN_FIELDS, Dialect, FieldTable, Source, build_config
from unmask.net.dialects.names import TRANSFORMERS, llama_map
from unmask.net.model import Blueprint

SHAPES = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "mlp_width": "intermediate_size",
    "context": "max_position_embeddings",
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


def read_rotary_base(config: Mapping[str, Any], label: str) -> float:
    """The base of the rotary positions, under its old or its new key."""
    rotary = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaling = (
        rotary.get("rope_type", rotary.get("type", "default"))
        if isinstance(rotary, dict)
        else rotary
    )
    if scaling != "default":
        raise SettingsError(
            label, [f"rotary scaling {scaling!r} is not supported, only plain positions"]
        )
    base = rotary.get("rope_theta", config.get("rope_theta", 10_000.0))
    if not isinstance(base, int | float):
        raise SettingsError(label, [f"'rope_theta' is {base!r}, expected a number"])
    return float(base)


def write_rotary_base(base: float) -> dict[str, Any]:
    """The base under both keys, for old and new readers."""
    return {"rope_theta": base, "rope_parameters": {"rope_type": "default", "rope_theta": base}}


def _read(source: Source) -> Blueprint:
    base = read_rotary_base(source.config, source.label)
    values = _TABLE.read(source.config, source.label)
    return Blueprint(build_config(values, source, rotary_base=base, causal=True), "causal")


def _write(blueprint: Blueprint) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **_TABLE.write(blueprint.config),
        **write_rotary_base(blueprint.config.rotary_base),
    }


DIALECT = Dialect(
    name="llama",
    recognise=lambda source: source.config.get("model_type") == "llama",
    read=_read,
    map_tensors=partial(llama_map, names=TRANSFORMERS),
    write=_write,
    ignored=("rotary_emb.inv_freq",),
    tied_head="lm_head.weight",
    token_fields=TOKEN_FIELDS,
)

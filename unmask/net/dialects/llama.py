"""Llama in `transformers`: the plain layout that most tools read."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from unmask.base.config import SettingsError
from unmask.net.config import NetConfig
from unmask.net.dialects.dialect import (
    SIZES,
    TOKEN_FIELDS,
    Dialect,
    FieldTable,
    Source,
    build_config,
)
from unmask.net.dialects.names import TRANSFORMERS, llama_map
from unmask.net.model import Blueprint

SHAPES = SIZES | {
    "kv_heads": "num_key_value_heads",
    "norm_eps": "rms_norm_eps",
    "tied": "tie_word_embeddings",
}
"""Fields that Llama, Qwen2 and Dream share."""
ABSENT = {"tie_word_embeddings": False, "num_key_value_heads": None, "head_dim": None}

_TURNS: dict[str, dict[str, tuple[str, int | None]]] = {
    "llama3": {"rotary_slow": ("low_freq_factor", None), "rotary_fast": ("high_freq_factor", None)},
    "yarn": {"rotary_slow": ("beta_slow", 1), "rotary_fast": ("beta_fast", 32)},
}
"""By the kind of rotary scaling: our field, theirs and what its absence means."""
_CONTEXT = "original_max_position_embeddings"

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


def read_rotary(config: Mapping[str, Any], label: str) -> dict[str, Any]:
    """Our settings of the rotary positions, from their old or their new keys."""
    rotary = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaling = rotary.get("rope_type", rotary.get("type")) if isinstance(rotary, dict) else rotary
    if scaling not in (None, "default", "linear", *_TURNS):
        known = ", ".join(("linear", *_TURNS))
        raise SettingsError(label, [f"rotary scaling {scaling!r} is not supported, only {known}"])
    given: dict[str, Any] = {
        "rope_theta": rotary.get("rope_theta", config.get("rope_theta", 10_000.0))
    }
    own = {"rotary_base": "rope_theta"}
    if scaling in ("linear", *_TURNS):
        given["factor"], own["rotary_factor"] = rotary.get("factor"), "factor"
    if scaling in _TURNS:
        for ours, (theirs, default) in _TURNS[scaling].items():
            given[theirs], own[ours] = rotary.get(theirs) or default, theirs
        own["rotary_context"] = _CONTEXT
        given[_CONTEXT] = rotary.get(_CONTEXT) or config.get("max_position_embeddings")
    problems = [
        f"{name!r} is {value!r}, expected a number"
        for name, value in given.items()
        if type(value) not in (int, float)
    ]
    if rotary.get("truncate", True) is not True or rotary.get("mscale"):
        problems += ["'truncate' and 'mscale' of rotary scaling are not supported"]
    if problems:
        raise SettingsError(label, problems)
    values: dict[str, Any] = {ours: float(given[theirs]) for ours, theirs in own.items()}
    if scaling in ("linear", *_TURNS):
        values["rotary_scaling"] = scaling
    if scaling in _TURNS:
        values["rotary_context"] = int(given[_CONTEXT])
    if scaling == "yarn":
        usual = 0.1 * math.log(max(values["rotary_factor"], 1.0)) + 1.0
        values["rotary_gain"] = rotary.get("attention_factor") or usual
    return values


def write_rotary(config: NetConfig) -> dict[str, Any]:
    """The settings of rotary angles under both keys, for old and new readers."""
    scaling = "default" if config.rotary_scaling == "none" else config.rotary_scaling
    rotary: dict[str, Any] = {"rope_type": scaling}
    if scaling != "default":
        rotary["factor"] = config.rotary_factor
    if scaling in _TURNS:
        rotary |= {theirs: getattr(config, ours) for ours, (theirs, _) in _TURNS[scaling].items()}
        rotary[_CONTEXT] = config.rotary_context
    if scaling == "yarn":
        rotary["attention_factor"] = config.rotary_gain
    base = {"rope_theta": config.rotary_base}
    old = {} if scaling == "default" else {"rope_scaling": dict(rotary)}
    return {**base, **old, "rope_parameters": rotary | base}


def _read(source: Source) -> Blueprint:
    rotary = read_rotary(source.config, source.label)
    values = _TABLE.read(source.config, source.label)
    return Blueprint(build_config(values, source, **rotary, causal=True), "causal")


def _write(blueprint: Blueprint) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **_TABLE.write(blueprint.config),
        **write_rotary(blueprint.config),
    }


DIALECT = Dialect(
    name="llama",
    about=(
        "Llama and its kin: rotary scaling `linear`, `llama3` and `yarn`, here and in the Qwens; "
        "Stable-DiffCoder, whose settings are these"
    ),
    recognise=lambda source: source.config.get("model_type") == "llama",
    read=_read,
    map_tensors=partial(llama_map, names=TRANSFORMERS),
    write=_write,
    ignored=("rotary_emb.inv_freq",),
    tied_head="lm_head.weight",
    token_fields=TOKEN_FIELDS,
)

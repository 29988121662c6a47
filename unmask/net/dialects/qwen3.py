"""Qwen3 in `transformers`: Llama's names, with norms of queries and keys."""

from dataclasses import replace
from typing import Any

from unmask.base.config import SettingsError
from unmask.net.dialects import llama, qwen2
from unmask.net.dialects.dialect import Source, build_config, find_mask
from unmask.net.dialects.llama import SHAPES, read_rotary, write_rotary
from unmask.net.model import Blueprint

TABLE = replace(
    qwen2.TABLE,
    same=SHAPES
    | {"head_width": "head_dim", "qkv_bias": "attention_bias", "out_bias": "attention_bias"},
    optional=dict(qwen2.TABLE.optional) | {"head_dim": 128, "attention_bias": False},
)


def _read(source: Source) -> Blueprint:
    rotary = read_rotary(source.config, source.label)
    values = TABLE.read(source.config, source.label)
    config = build_config(values, source, **rotary, qk_norm=True, causal=True)
    # NVIDIA's Efficient-DLM is a diffusion model in Qwen3's settings.
    paradigm = source.config.get("dlm_paradigm")
    if paradigm == "bidirectional":
        return Blueprint(replace(config, causal=False), "masked", find_mask(source))
    if paradigm not in (None, "autoregressive"):
        raise SettingsError(
            source.label,
            [f"'dlm_paradigm' is {paradigm!r}, expected bidirectional or autoregressive"],
        )
    return Blueprint(config, "causal")


def _write(blueprint: Blueprint) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **TABLE.write(blueprint.config),
        **write_rotary(blueprint.config),
    }


DIALECT = replace(
    llama.DIALECT,
    name="qwen3",
    about=(
        "Qwen3: `qk_norm`; Efficient-DLM, read as a masked model by its `dlm_paradigm` and written "
        "as `a2d`"
    ),
    recognise=lambda source: source.config.get("model_type") == "qwen3",
    read=_read,
    write=_write,
)

"""Qwen2 in `transformers`: Llama's names, with biases on queries, keys and values."""

from dataclasses import replace
from typing import Any

from unmask.net.dialects import llama
from unmask.net.dialects.dialect import FieldTable, Source, build_config
from unmask.net.dialects.llama import ABSENT, SHAPES, read_rotary, write_rotary
from unmask.net.model import Blueprint

TABLE = FieldTable(
    same=SHAPES, fixed={"hidden_act": "silu", "use_sliding_window": False}, optional=ABSENT
)


def _read(source: Source) -> Blueprint:
    rotary = read_rotary(source.config, source.label)
    values = TABLE.read(source.config, source.label)
    config = build_config(values, source, **rotary, qkv_bias=True, causal=True)
    return Blueprint(config, "causal")


def _write(blueprint: Blueprint) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        **TABLE.write(blueprint.config),
        **write_rotary(blueprint.config),
    }


DIALECT = replace(
    llama.DIALECT,
    name="qwen2",
    about="Qwen2 and Qwen2.5: biases of queries, keys and values; Open-dCoder in their settings",
    recognise=lambda source: source.config.get("model_type") == "qwen2",
    read=_read,
    write=_write,
)

"""Ministral 3 in `transformers`, and Nemotron-Labs-Diffusion, which is built like it.

Queries are multiplied by 1 + beta log(1 + floor(position / old context)), which is exactly 1 before
the old context ends: rows may be no longer here. Nemotron-Labs-Diffusion reads finished text
causally and the block that is being written both ways, whatever paradigm of training its settings
name; row i predicts position i, and in its causal reading, NAME:causal, position i + 1.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.net.config import NetConfig
from unmask.net.dialects.dialect import FieldTable, Source
from unmask.net.dialects.layouts import Layout, read_rotary, write_rotary
from unmask.net.dialects.llama import ABSENT, NAMES, SHAPES

_TABLE = FieldTable(
    same=SHAPES | {"head_width": "head_dim"}, fixed={"hidden_act": "silu"}, optional=ABSENT
)


def _complete(values: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """The rotary settings, whose gain is a ratio of two, and the context within which they hold."""
    known = source.config.get("rope_parameters") or source.config.get("rope_scaling") or {}
    rotary = dict(known) if isinstance(known, dict) else known
    context = {}
    if isinstance(rotary, dict):
        names = ("factor", "mscale", "mscale_all_dim")
        numbers = [x for name in names if isinstance(x := rotary.get(name), int | float) and x]
        if len(numbers) == len(names):
            factor, *scales = map(float, numbers)
            above, below = (_find_gain(factor, scale) for scale in scales)
            rotary["attention_factor"] = above / below
            del rotary["mscale"], rotary["mscale_all_dim"]
        old = rotary.get("original_max_position_embeddings")
        if rotary.pop("llama_4_scaling_beta", None) and isinstance(old, int):
            context["context"] = min(old, values["context"])
    settings = {**source.config, "rope_parameters": rotary, "rope_scaling": None}
    return read_rotary(settings, source.label) | context


def _open_block(values: dict[str, Any], source: Source) -> dict[str, Any]:
    """What `_complete` reads, and the block, which is 32 where settings do not say it."""
    block = source.config.get("block_size")
    more = {"open_block": True, "block": 32 if block is None else block}
    return _complete(values, source) | more


def _write_rotary(config: NetConfig) -> dict[str, Any]:
    """The rotary settings, with a scale of queries that is 1 everywhere."""
    settings = write_rotary(config)
    for name in settings.keys() & {"rope_parameters", "rope_scaling"}:
        settings[name]["llama_4_scaling_beta"] = 0.0
    return settings


def _find_gain(factor: float, scale: float) -> float:
    """By how much yarn sharpens attention, as `transformers` has it."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


_LAYOUT = Layout(
    "ministral3",
    "Ministral3ForCausalLM",
    _TABLE,
    NAMES,
    has_rotary=False,
    complete=_complete,
    add=lambda blueprint: _write_rotary(blueprint.config),
)
_NEMOTRON = replace(
    _LAYOUT,
    model_type="nemotron_labs_diffusion",
    architecture="NemotronLabsDiffusionModel",
    is_masked=True,
    complete=_open_block,
    add=lambda blueprint: {
        "block_size": blueprint.config.block,
        "dlm_paradigm": "bidirectional",
        **_write_rotary(blueprint.config),
    },
    names=replace(
        NAMES,
        layer="encoder.layers.{i}.",
        ends={
            "embedding": "encoder.embed_tokens",
            "norm": "encoder.norm",
            "head": "diffusion_head",
        },
    ),
)
DIALECTS = (
    _LAYOUT.make_dialect(
        "ministral3", "Ministral 3: yarn, a scale of queries that is 1 in rows as long as these"
    ),
    _NEMOTRON.make_dialect(
        "nemotron_labs_diffusion",
        "Nemotron-Labs-Diffusion, Ministral 3 by other names: finished text is read causally, an "
        "open block of 32 unless given both ways, NAME:causal its other reading; its sampler is "
        '`plan="threshold=0.9"`',
        tied_head="diffusion_head.weight",
    ),
)

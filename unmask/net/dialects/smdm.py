"""SMDM's files (Nie et al. 2024): one file per model, its size in its name or `lit_config.json`.

The last row of a diffusion model's embedding is the mask token; the head has no row for it, which
is how the two kinds are recognised.
"""

import re
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor

from unmask.base.errors import UserError
from unmask.net.config import NetConfig
from unmask.net.dialects.dialect import Dialect, FieldTable, Source, build_config
from unmask.net.dialects.names import Names
from unmask.net.model import Blueprint
from unmask.net.presets import preset

_EMBEDDING, _HEAD = "transformer.wte.weight", "lm_head.weight"
_MARK = "transformer.h.0.attn.attn.weight"
_SIZE = re.compile(r"(?:mdm|ar)-(\d+M)")

_TABLE = FieldTable(
    same={
        "num_logits": "padded_vocab_size",
        "width": "n_embd",
        "layers": "n_layer",
        "heads": "n_head",
        "kv_heads": "n_query_groups",
        "mlp_width": "intermediate_size",
        "context": "block_size",
        "norm_eps": "norm_eps",
    },
    fixed={
        "_mlp_class": "LLaMAMLP",
        "_norm_class": "FusedRMSNorm",
        "bias": False,
        "condense_ratio": 1,
        "parallel_residual": False,
        "rotary_percentage": 1.0,
        "shared_attention_norm": False,
    },
)


def _read(source: Source) -> Blueprint:
    shapes = source.shapes
    if missing := [name for name in (_EMBEDDING, _HEAD) if len(shapes.get(name, ())) != 2]:
        raise UserError(f"{source.label} lacks {', '.join(missing)}: expected a whole SMDM model.")
    rows, logits = shapes[_EMBEDDING][0], shapes[_HEAD][0]
    if rows - logits not in (0, 1):
        raise UserError(
            f"{source.label} has {rows} embedding rows and {logits} head rows: expected as many "
            "(autoregressive) or one more for the mask token (diffusion)."
        )
    causal = rows == logits
    if any(name in source.config for name in _TABLE.same.values()):
        values = _TABLE.read(source.config, source.label)
        config = build_config(
            values, source, vocab_size=rows, causal=causal, rotary_tables="bfloat16"
        )
    elif size := _SIZE.search(PurePath(source.label).name):
        config = replace(preset(size[1], causal=causal), vocab_size=rows, num_logits=logits)
    else:
        raise UserError(
            f"{source.label} does not say how large it is: expected a name such as "
            "mdm-1028M-….safetensors, or a lit_config.json beside it."
        )
    kind, mask_id = ("causal", None) if causal else ("masked", rows - 1)
    # Not said by SMDM's own files: it noises all positions, and guidance hides all of a prompt.
    noises = source.config.get("noises_beginning", True)
    return Blueprint(config, kind, mask_id, noises_beginning=noises)


def _write(blueprint: Blueprint) -> dict[str, Any]:
    rows = blueprint.config.logit_rows
    more = {} if blueprint.noises_beginning else {"noises_beginning": False}
    return _TABLE.write(blueprint.config) | {"vocab_size": rows, "padding_multiple": 64} | more


def _split_groups(fused: Tensor, config: NetConfig) -> Tensor:
    """Rows interleaved by query group [group, its queries + k + v] to all q, all k, all v."""
    per_group = config.heads // config.kv
    grouped = fused.unflatten(0, (config.kv, per_group + 2, config.head_dim))
    parts = grouped.split((per_group, 1, 1), dim=1)
    return torch.cat([part.flatten(0, 2) for part in parts])


def _join_groups(qkv: Tensor, config: NetConfig) -> Tensor:
    """The inverse of `_split_groups`."""
    heads = qkv.unflatten(0, (-1, config.head_dim)).split((config.heads, config.kv, config.kv))
    grouped = [part.unflatten(0, (config.kv, -1)) for part in heads]
    return torch.cat(grouped, dim=1).flatten(0, 2)


_NAMES = Names(
    layer="transformer.h.{i}.",
    parts={
        "attn_norm": "norm_1",
        "attn.qkv": "attn.attn",
        "attn.out": "attn.proj",
        "mlp_norm": "norm_2",
        "mlp.gate": "mlp.swiglu.w1",
        "mlp.up": "mlp.swiglu.w2",
        "mlp.down": "mlp.swiglu.w3",
    },
    ends={"embedding.weight": _EMBEDDING, "norm": "transformer.ln_f", "head.weight": _HEAD},
    turns={"attn.qkv.weight": (_split_groups, _join_groups)},
)
DIALECT = Dialect(
    name="smdm",
    about="SMDM: rotary tables in bfloat16, no logit of the mask",
    recognise=lambda source: _MARK in source.shapes,
    read=_read,
    map_tensors=_NAMES.map_tensors,
    write=_write,
    config_file="lit_config.json",
)

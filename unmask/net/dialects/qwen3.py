"""Qwen3 in `transformers`: Llama's names, with norms of queries and keys."""

from dataclasses import replace

from unmask.base.config import SettingsError
from unmask.net.dialects import qwen2
from unmask.net.dialects.dialect import Source, find_mask
from unmask.net.dialects.layouts import Layout
from unmask.net.dialects.llama import NAMES, SHAPES
from unmask.net.model import Blueprint

TABLE = replace(
    qwen2.TABLE,
    same=SHAPES
    | {"head_width": "head_dim", "qkv_bias": "attention_bias", "out_bias": "attention_bias"},
    optional=dict(qwen2.TABLE.optional) | {"head_dim": 128, "attention_bias": False},
)
_LAYOUT = Layout("qwen3", "Qwen3ForCausalLM", TABLE, NAMES, {"qk_norm": True})


def _read(source: Source) -> Blueprint:
    blueprint = _LAYOUT.read(source)
    # NVIDIA's Efficient-DLM is a diffusion model in Qwen3's settings.
    paradigm = source.config.get("dlm_paradigm")
    if paradigm == "bidirectional":
        config = replace(blueprint.config, causal=False)
        return Blueprint(config, "masked", find_mask(source))
    if paradigm not in (None, "autoregressive"):
        raise SettingsError(
            source.label,
            [f"'dlm_paradigm' is {paradigm!r}, expected bidirectional or autoregressive"],
        )
    return blueprint


DIALECT = _LAYOUT.make_dialect(
    "qwen3",
    "Qwen3: `qk_norm`; Efficient-DLM, read as a masked model by its `dlm_paradigm` and written as "
    "`a2d`",
    read=_read,
)

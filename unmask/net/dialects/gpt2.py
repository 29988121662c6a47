"""GPT-2 in `transformers`: projections stored as [in, out], queries, keys and values as one."""

from typing import Any

from torch import Tensor

from unmask.net.config import NetConfig
from unmask.net.dialects.dialect import FieldTable, Source
from unmask.net.dialects.layouts import Layout
from unmask.net.dialects.names import Names

_PROJECTIONS = {
    "attn.qkv": "attn.c_attn",
    "attn.out": "attn.c_proj",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
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


def _complete(values: dict[str, Any], source: Source) -> dict[str, Any]:
    return {"mlp_width": 4 * values["width"]} if values["mlp_width"] is None else {}


def _turn(tensor: Tensor, config: NetConfig) -> Tensor:
    return tensor.t().contiguous()


_NAMES = Names(
    layer="transformer.h.{i}.",
    parts={"attn_norm": "ln_1", "mlp_norm": "ln_2", **_PROJECTIONS},
    ends={
        "embedding": "transformer.wte",
        "position": "transformer.wpe",
        "norm": "transformer.ln_f",
        "head": "lm_head",
    },
    turns={f"{part}.weight": (_turn, _turn) for part in _PROJECTIONS},
)
DIALECT = Layout(
    "gpt2",
    "GPT2LMHeadModel",
    _TABLE,
    _NAMES,
    network={
        "norm": "layer",
        "positions": "learned",
        "mlp": "gelu",
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
    },
    has_rotary=False,
    complete=_complete,
).make_dialect(
    "gpt2",
    "GPT-2: positions are learned",
    ignored=(".attn.bias", ".attn.masked_bias"),
    optional_prefix="transformer.",
)

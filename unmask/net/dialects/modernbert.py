"""ModernBERT in `transformers` as a masked denoiser: windows, gated GELU and an MLM head.

It was trained with 15 % to 30 % of its tokens masked: single masked tokens are its own task, and
writing whole texts is not, unless it was trained further.
"""

from typing import Any

from unmask.base.config import SettingsError
from unmask.net.config import NetConfig
from unmask.net.dialects.dialect import SIZES, FieldTable, Source
from unmask.net.dialects.layouts import Layout, read_rotary
from unmask.net.dialects.names import Names
from unmask.net.model import Blueprint

_TABLE = FieldTable(
    same=SIZES
    | {
        "norm_eps": "norm_eps",
        "norm_bias": "norm_bias",
        "qkv_bias": "attention_bias",
        "out_bias": "attention_bias",
        "mlp_bias": "mlp_bias",
        "head_bias": "decoder_bias",
        "head_mlp_bias": "classifier_bias",
        "tied": "tie_word_embeddings",
        "window_period": "global_attn_every_n_layers",
    },
    fixed={"hidden_activation": "gelu", "classifier_activation": "gelu"},
    optional={
        "norm_eps": 1e-5,
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "decoder_bias": True,
        "classifier_bias": False,
        "tie_word_embeddings": True,
        "global_attn_every_n_layers": 3,
    },
)
_NAMES = Names(
    layer="model.layers.{i}.",
    parts={
        "attn_norm": "attn_norm",
        "attn.qkv": "attn.Wqkv",
        "attn.out": "attn.Wo",
        "mlp_norm": "mlp_norm",
        "mlp.up": "mlp.Wi",
        "mlp.down": "mlp.Wo",
    },
    ends={
        "embedding": "model.embeddings.tok_embeddings",
        "embed_norm": "model.embeddings.norm",
        "norm": "model.final_norm",
        "norm.dense": "head.dense",
        "norm.last": "head.norm",
        "head": "decoder",
    },
)
_FULL, _LOCAL = "full_attention", "sliding_attention"
_BASES = {
    "rotary_base": (_FULL, "global_rope_theta", 160_000.0),
    "window_base": (_LOCAL, "local_rope_theta", 10_000.0),
}
"""The rotary bases by our fields: the sort of layers, the old key, and what its absence means."""


def _complete(values: dict[str, Any], source: Source) -> dict[str, Any]:
    """The window and the rotary bases of both sorts of layers, under their new or old keys."""
    config = source.config
    window = config.get("local_attention", 128)
    if type(window) is not int or window < 2:
        raise SettingsError(source.label, [f"'local_attention' is {window!r}, expected 2 or more"])
    rotary, given = config.get("rope_parameters"), {"window": window // 2}
    for ours, (part, old, default) in _BASES.items():
        new = rotary.get(part) if isinstance(rotary, dict) else None
        settings = {"rope_theta": config.get(old, default), "rope_parameters": new}
        read = read_rotary(settings, source.label)
        if read.keys() != {"rotary_base"}:
            raise SettingsError(source.label, ["rotary scaling is not supported in ModernBERT"])
        given[ours] = read["rotary_base"]
    return given


def _list_types(config: NetConfig) -> list[str]:
    return [_LOCAL if i % config.window_period else _FULL for i in range(config.layers)]


def _add(blueprint: Blueprint) -> dict[str, Any]:
    config = blueprint.config
    bases = {part: getattr(config, ours) for ours, (part, _, _) in _BASES.items()}
    return {
        "local_attention": 2 * (config.window or 0),
        "layer_types": _list_types(config),
        "rope_parameters": {
            part: {"rope_type": "default", "rope_theta": base} for part, base in bases.items()
        },
        **{old: getattr(config, ours) for ours, (_, old, _) in _BASES.items()},
    }


_LAYOUT = Layout(
    "modernbert",
    "ModernBertForMaskedLM",
    _TABLE,
    _NAMES,
    network={
        "norm": "layer",
        "mlp": "geglu",
        "gelu": "exact",
        "head_mlp": True,
        "embed_norm": True,
    },
    is_masked=True,
    has_rotary=False,
    complete=_complete,
    add=_add,
)


def _read(source: Source) -> Blueprint:
    blueprint, listed = _LAYOUT.read(source), source.config.get("layer_types")
    if listed is not None and listed != _list_types(blueprint.config):
        period = blueprint.config.window_period
        raise SettingsError(
            source.label, [f"'layer_types' are not full attention in every {period}. layer"]
        )
    return blueprint


DIALECT = _LAYOUT.make_dialect(
    "modernbert",
    "ModernBERT and dllm's chat models of it: windows in most layers, gated GELU, an MLM head; the "
    "mask is the tokenizer's",
    tied_head="decoder.weight",
    ignored=(),
    read=_read,
)

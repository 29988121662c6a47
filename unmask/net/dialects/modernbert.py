"""ModernBERT in `transformers` as a masked denoiser: windows, gated GELU and an MLM head.

It was trained with 15 % to 30 % of its tokens masked: single masked tokens are its own task, and
writing whole texts is not, unless it was trained further.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from unmask.base.config import SettingsError
from unmask.net.config import NetConfig
from unmask.net.dialects.dialect import (
    SIZES,
    TOKEN_FIELDS,
    Dialect,
    FieldTable,
    Source,
    TensorMap,
    build_config,
    find_mask,
)
from unmask.net.dialects.llama import read_rotary
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
_FULL, _LOCAL = "full_attention", "sliding_attention"


def _read(source: Source) -> Blueprint:
    config = source.config
    values = _TABLE.read(config, source.label)
    window = config.get("local_attention", 128)
    if type(window) is not int or window < 2:
        raise SettingsError(source.label, [f"'local_attention' is {window!r}, expected 2 or more"])
    bases = [
        _read_base(config, kind, old, default, source.label)
        for kind, old, default in (
            (_FULL, "global_rope_theta", 160_000.0),
            (_LOCAL, "local_rope_theta", 10_000.0),
        )
    ]
    network = build_config(
        values,
        source,
        norm="layer",
        mlp="geglu",
        gelu="exact",
        head_mlp=True,
        embed_norm=True,
        rotary_base=bases[0],
        window=window // 2,
        window_base=bases[1],
    )
    listed, wanted = config.get("layer_types"), _list_types(network)
    if listed is not None and listed != wanted:
        raise SettingsError(
            source.label,
            [f"'layer_types' are not full attention in every {network.window_period}. layer"],
        )
    return Blueprint(network, "masked", find_mask(source))


def _read_base(config: Mapping[str, Any], part: str, old: str, default: float, label: str) -> float:
    """The rotary base of one sort of layers, under its new or its old key."""
    rotary = config.get("rope_parameters")
    new = rotary.get(part) if isinstance(rotary, dict) else None
    given = {"rope_theta": config.get(old, default), "rope_parameters": new}
    values = read_rotary(given, label)
    if values.keys() != {"rotary_base"}:
        raise SettingsError(label, ["rotary scaling is not supported in ModernBERT"])
    return values["rotary_base"]


def _list_types(config: NetConfig) -> list[str]:
    return [_LOCAL if i % config.window_period else _FULL for i in range(config.layers)]


def _write(blueprint: Blueprint) -> dict[str, Any]:
    config = blueprint.config
    bases = {_FULL: config.rotary_base, _LOCAL: config.window_base}
    return {
        "architectures": ["ModernBertForMaskedLM"],
        "model_type": "modernbert",
        **_TABLE.write(config),
        "local_attention": 2 * (config.window or 0),
        "layer_types": _list_types(config),
        "rope_parameters": {
            part: {"rope_type": "default", "rope_theta": base} for part, base in bases.items()
        },
        "global_rope_theta": config.rotary_base,
        "local_rope_theta": config.window_base,
        "mask_token_id": blueprint.mask_id,
    }


def _map_tensors(config: NetConfig) -> Iterator[TensorMap]:
    yield TensorMap("model.embeddings.tok_embeddings.weight", "embedding.weight")
    yield TensorMap("head.dense.weight", "norm.dense.weight")
    if not config.tied:
        yield TensorMap("decoder.weight", "head.weight")
    if config.head_bias:
        yield TensorMap("decoder.bias", "head.bias")
    norms = {"model.embeddings.norm": "embed_norm", "model.final_norm": "norm"}
    norms["head.norm"] = "norm.last"
    if config.head_mlp_bias:
        yield TensorMap("head.dense.bias", "norm.dense.bias")
    linears: dict[str, tuple[str, bool]] = {}
    for i in range(config.layers):
        theirs, ours = f"model.layers.{i}.", f"layers.{i}."
        if i:  # the first layer has no norm before its attention
            norms[f"{theirs}attn_norm"] = f"{ours}attn_norm"
        norms[f"{theirs}mlp_norm"] = f"{ours}mlp_norm"
        linears[f"{theirs}attn.Wqkv"] = f"{ours}attn.qkv", config.qkv_bias
        linears[f"{theirs}attn.Wo"] = f"{ours}attn.out", config.out_bias
        linears[f"{theirs}mlp.Wi"] = f"{ours}mlp.up", config.mlp_bias
        linears[f"{theirs}mlp.Wo"] = f"{ours}mlp.down", config.mlp_bias
    for name, own in norms.items():
        linears[name] = own, config.norm_bias
    for name, (own, has_bias) in linears.items():
        for tensor in ("weight", "bias") if has_bias else ("weight",):
            yield TensorMap(f"{name}.{tensor}", f"{own}.{tensor}")


DIALECT = Dialect(
    name="modernbert",
    about=(
        "ModernBERT and dllm's chat models of it: windows in most layers, gated GELU, an MLM head; "
        "the mask is the tokenizer's"
    ),
    recognise=lambda source: source.config.get("model_type") == "modernbert",
    read=_read,
    map_tensors=_map_tensors,
    write=_write,
    tied_head="decoder.weight",
    token_fields=TOKEN_FIELDS,
    needs_mask=True,
)

"""BERT in `transformers` as a masked denoiser: norms after additions, token types, an MLM head.

It was trained with 15 % of its tokens masked: single masked tokens are its own task, and writing
whole texts is not. All tokens are of the first type, as in a text of one part.
"""

from collections.abc import Iterator
from typing import Any

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
from unmask.net.model import Blueprint

_TABLE = FieldTable(
    same=SIZES | {"norm_eps": "layer_norm_eps", "token_types": "type_vocab_size"},
    fixed={
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    optional={"layer_norm_eps": 1e-12, "type_vocab_size": 2},
)


def _read(source: Source) -> Blueprint:
    network = build_config(
        _TABLE.read(source.config, source.label),
        source,
        norm="layer",
        positions="learned",
        mlp="gelu",
        gelu="exact",
        residual="post",
        tied=True,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        head_bias=True,
        head_mlp=True,
        head_mlp_bias=True,
    )
    return Blueprint(network, "masked", find_mask(source))


def _write(blueprint: Blueprint) -> dict[str, Any]:
    return {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        **_TABLE.write(blueprint.config),
        "mask_token_id": blueprint.mask_id,
    }


def _map_tensors(config: NetConfig) -> Iterator[TensorMap]:
    tables = {"word": "embedding", "position": "position", "token_type": "types"}
    for theirs, ours in tables.items():
        yield TensorMap(f"bert.embeddings.{theirs}_embeddings.weight", f"{ours}.weight")
    yield TensorMap("cls.predictions.bias", "head.bias")
    head = "cls.predictions.transform."
    parts = {f"{head}dense": "norm.dense", f"{head}LayerNorm": "norm.last"}
    parts["bert.embeddings.LayerNorm"] = "layers.0.attn_norm"
    width = config.heads * config.head_dim
    for i in range(config.layers):
        theirs, ours = f"bert.encoder.layer.{i}.", f"layers.{i}."
        parts[f"{theirs}attention.output.dense"] = f"{ours}attn.out"
        parts[f"{theirs}attention.output.LayerNorm"] = f"{ours}mlp_norm"
        parts[f"{theirs}intermediate.dense"] = f"{ours}mlp.up"
        parts[f"{theirs}output.dense"] = f"{ours}mlp.down"
        # The norm after a layer is the one before what the next layer reads.
        above = f"layers.{i + 1}.attn_norm" if i + 1 < config.layers else "norm"
        parts[f"{theirs}output.LayerNorm"] = above
        for j, name in enumerate(("query", "key", "value")):
            for tensor in ("weight", "bias"):
                rows = (j * width, (j + 1) * width)
                own = f"{ours}attn.qkv.{tensor}"
                yield TensorMap(f"{theirs}attention.self.{name}.{tensor}", own, rows)
    for name, own in parts.items():
        for tensor in ("weight", "bias"):
            yield TensorMap(f"{name}.{tensor}", f"{own}.{tensor}")


DIALECT = Dialect(
    name="bert",
    about="BERT: norms after the additions, token types, an MLM head; the mask is the tokenizer's",
    recognise=lambda source: source.config.get("model_type") == "bert",
    read=_read,
    map_tensors=_map_tensors,
    write=_write,
    old_endings={"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"},
    ignored=(
        "embeddings.position_ids",
        "pooler.dense.weight",
        "pooler.dense.bias",
        "cls.seq_relationship.weight",
        "cls.seq_relationship.bias",
        "cls.predictions.decoder.bias",  # `cls.predictions.bias` once more
    ),
    tied_head="cls.predictions.decoder.weight",
    token_fields=TOKEN_FIELDS,
    needs_mask=True,
)

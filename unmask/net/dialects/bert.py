"""BERT in `transformers` as a masked denoiser: norms after additions, token types, an MLM head.

It was trained with 15 % of its tokens masked: single masked tokens are its own task, and writing
whole texts is not. All tokens are of the first type, as in a text of one part.
"""

from collections.abc import Iterator
from dataclasses import replace

from unmask.net.config import NetConfig
from unmask.net.dialects.dialect import SIZES, FieldTable, TensorMap
from unmask.net.dialects.layouts import Layout
from unmask.net.dialects.names import Names

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
_LAYER = "bert.encoder.layer.{i}."
_NAMES = Names(
    layer=_LAYER,
    parts={
        "attn.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "attn.out": "attention.output.dense",
        "mlp_norm": "attention.output.LayerNorm",
        "mlp.up": "intermediate.dense",
        "mlp.down": "output.dense",
    },
    ends={
        "embedding": "bert.embeddings.word_embeddings",
        "position": "bert.embeddings.position_embeddings",
        "types": "bert.embeddings.token_type_embeddings",
        "layers.0.attn_norm": "bert.embeddings.LayerNorm",
        "norm.dense": "cls.predictions.transform.dense",
        "norm.last": "cls.predictions.transform.LayerNorm",
        "head.bias": "cls.predictions.bias",
    },
)


def _map_tensors(config: NetConfig) -> Iterator[TensorMap]:
    # The norm after a layer is the one before what the next layer reads.
    above = [f"layers.{i + 1}.attn_norm" for i in range(config.layers - 1)] + ["norm"]
    norms = {ours: _LAYER.format(i=i) + "output.LayerNorm" for i, ours in enumerate(above)}
    return replace(_NAMES, ends={**_NAMES.ends, **norms}).map_tensors(config)


DIALECT = Layout(
    "bert",
    "BertForMaskedLM",
    _TABLE,
    _NAMES,
    network={
        "norm": "layer",
        "positions": "learned",
        "mlp": "gelu",
        "gelu": "exact",
        "residual": "post",
        "tied": True,
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
        "head_bias": True,
        "head_mlp": True,
        "head_mlp_bias": True,
    },
    is_masked=True,
    has_rotary=False,
).make_dialect(
    "bert",
    "BERT: norms after the additions, token types, an MLM head; the mask is the tokenizer's",
    tied_head="cls.predictions.decoder.weight",
    ignored=(
        "embeddings.position_ids",
        "pooler.dense.weight",
        "pooler.dense.bias",
        "cls.seq_relationship.weight",
        "cls.seq_relationship.bias",
        "cls.predictions.decoder.bias",  # `cls.predictions.bias` once more
    ),
    map_tensors=_map_tensors,
    old_endings={"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"},
)

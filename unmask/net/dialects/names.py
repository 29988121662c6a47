"""The tensor names of a Llama block, as tables; the tensor maps follow from them."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from unmask.net.config import NetConfig
from unmask.net.dialects.dialect import TensorMap

_MLP = ("gate", "up", "down")


@dataclass(frozen=True)
class BlockNames:
    """What a checkpoint calls each part of a network with Llama's block."""

    embedding: str
    block: str
    """With {i} for the layer."""
    attn_norm: str
    q: str
    k: str
    v: str
    out: str
    mlp_norm: str
    gate: str
    up: str
    down: str
    norm: str
    head: str
    q_norm: str = ""
    k_norm: str = ""
    """Empty where a layout has no norms of queries and keys."""
    qkv: str = ""
    """The tensor that holds the rows of q, k and v; empty where they are kept apart."""
    router: str = "mlp.gate"
    experts: str = "mlp.experts.{e}"
    """With {e} for the expert; its parts are called as those of the MLP."""
    shared: str = "mlp.shared_expert"


TRANSFORMERS = BlockNames(
    embedding="model.embed_tokens",
    block="model.layers.{i}.",
    attn_norm="input_layernorm",
    q="self_attn.q_proj",
    k="self_attn.k_proj",
    v="self_attn.v_proj",
    out="self_attn.o_proj",
    mlp_norm="post_attention_layernorm",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
    norm="model.norm",
    head="lm_head",
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
)
"""Llama's and its many descendants' in `transformers`."""


def llama_map(config: NetConfig, names: BlockNames) -> Iterator[TensorMap]:
    """The tensor maps of a whole network with these names."""
    yield TensorMap(f"{names.embedding}.weight", "embedding.weight")
    yield TensorMap(f"{names.norm}.weight", "norm.weight")
    if not config.tied:
        yield TensorMap(f"{names.head}.weight", "head.weight")
    # Rows of our `attn.qkv`.
    queries, keys = config.heads * config.head_dim, config.kv * config.head_dim
    rows = {
        names.q: (0, queries),
        names.k: (queries, queries + keys),
        names.v: (queries + keys, queries + 2 * keys),
    }
    if names.qkv:
        rows = {names.qkv: None}
    mlp = {names.gate: "mlp.gate", names.up: "mlp.up", names.down: "mlp.down"}
    for i in range(config.layers):
        theirs, ours = names.block.format(i=i), f"layers.{i}."
        yield TensorMap(f"{theirs}{names.attn_norm}.weight", f"{ours}attn_norm.weight")
        yield TensorMap(f"{theirs}{names.mlp_norm}.weight", f"{ours}mlp_norm.weight")
        for kind in _kinds(config.qkv_bias):
            for part, rows_of_part in rows.items():
                yield TensorMap(f"{theirs}{part}.{kind}", f"{ours}attn.qkv.{kind}", rows_of_part)
        if config.qk_norm and names.q_norm:
            yield TensorMap(f"{theirs}{names.q_norm}.weight", f"{ours}attn.q_norm.weight")
            yield TensorMap(f"{theirs}{names.k_norm}.weight", f"{ours}attn.k_norm.weight")
        for kind in _kinds(config.out_bias):
            yield TensorMap(f"{theirs}{names.out}.{kind}", f"{ours}attn.out.{kind}")
        if config.has_experts(i):
            yield from _map_experts(config, names, theirs, ours)
            continue
        for kind in _kinds(config.mlp_bias):
            for part, own in mlp.items():
                yield TensorMap(f"{theirs}{part}.{kind}", f"{ours}{own}.{kind}")


def _map_experts(
    config: NetConfig, names: BlockNames, theirs: str, ours: str
) -> Iterator[TensorMap]:
    """The maps of one layer's experts, each a row of our stacks."""
    yield TensorMap(f"{theirs}{names.router}.weight", f"{ours}mlp.router.weight")
    if config.router_bias:
        yield TensorMap(f"{theirs}{names.router}.expert_bias", f"{ours}mlp.choice_bias")
    parts = {part: name.rpartition(".")[2] for part, name in vars(names).items() if part in _MLP}
    if config.shared_width is not None:
        for part, name in parts.items():
            yield TensorMap(
                f"{theirs}{names.shared}.{name}.weight", f"{ours}mlp.shared.{part}.weight"
            )
    for e in range(config.experts or 0):
        expert = names.experts.format(e=e)
        for part, name in parts.items():
            yield TensorMap(
                f"{theirs}{expert}.{name}.weight",
                f"{ours}mlp.{part}s",
                (e, e + 1),
                _stack,
                _unstack,
            )


def _stack(tensor: Tensor) -> Tensor:
    return tensor[None]


def _unstack(tensor: Tensor) -> Tensor:
    return tensor[0]


def _kinds(biased: bool) -> tuple[str, ...]:
    return ("weight", "bias") if biased else ("weight",)

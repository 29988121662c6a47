"""Parameters, floating-point operations and bytes of a network.

Parameters are counted on its shapes, whatever its blocks are made of; operations follow closed
forms, which hold for the blocks of this package.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from unmask.net.config import NetConfig
from unmask.net.transformer import Transformer


@dataclass(frozen=True)
class Parameters:
    """How many numbers a network holds, by part."""

    embedding: int
    positions: int
    layers: int
    """All blocks together: what SMDM's size names count, but for the norms' few."""
    final_norm: int
    head: int
    """0 where the head is the embedding."""
    conditioning: int = 0
    """What tells a network the time and noised token vectors; 0 for most."""

    @property
    def total(self) -> int:
        ends = self.embedding + self.positions + self.final_norm + self.head
        return ends + self.layers + self.conditioning


@cache
def count_parameters(config: NetConfig) -> Parameters:
    """The number of parameters of each part, counted on a network that takes up no memory."""
    counts: Counter[str] = Counter()
    for name, parameter in make_shapes(config).named_parameters():
        counts[name.partition(".")[0]] += parameter.numel()
    return Parameters(
        embedding=counts["embedding"] + counts["embed_norm"] + counts["types"],
        positions=counts["position"],
        layers=counts["layers"],
        final_norm=counts["norm"],
        head=counts["head"],  # a tied one is listed once, as the embedding
        conditioning=counts["time"] + counts["latents"],
    )


@cache
def list_matrices(config: NetConfig) -> tuple[tuple[int, int], ...]:
    """Shapes of one layer's matrices."""
    parameters = make_shapes(replace(config, layers=1)).layers.parameters()
    shapes = (parameter.shape for parameter in parameters if parameter.ndim == 2)
    return tuple((rows, columns) for rows, columns in shapes)


def make_shapes(config: NetConfig) -> Transformer:
    """The network without its numbers: shapes alone, on the meta device."""
    with torch.device("meta"):
        return Transformer(config, seed=None)


def fill_network(config: NetConfig, weights: Mapping[str, Tensor]) -> Transformer:
    """The network that has these tensors, which are not copied, as its weights."""
    net = make_shapes(config)
    net.load_state_dict(weights, assign=True)
    net.tie_head()
    return net


def count_flops(config: NetConfig, length: int, num_logits: int | None = None) -> int:
    """Operations of the forward pass of one row: two for each multiply-add of a matrix product.

    `num_logits` is the number of positions unembedded (all by default). Attention is counted in
    full, also where causal kernels skip half of it; a training step costs three times as much.
    """
    num_logits = length if num_logits is None else num_logits
    attention = 4 * length * length * config.heads * config.head_dim
    matrices = sum(_block_matrices(config, layer) for layer in range(config.layers))
    layers = 2 * length * matrices + config.layers * attention
    return (
        layers
        + 2 * num_logits * (config.logit_rows + config.head_mlp * config.width) * config.width
    )


def count_weight_bytes(config: NetConfig, bytes_per_number: int) -> int:
    """Bytes of the weights alone."""
    return count_parameters(config).total * bytes_per_number


def count_cache_bytes(config: NetConfig, batch: int, length: int, bytes_per_number: int) -> int:
    """Bytes of the keys and values of `batch` rows of `length` positions, in all layers."""
    per_position = 2 * config.layers * config.kv * config.head_dim
    return batch * length * per_position * bytes_per_number


def count_training_bytes(config: NetConfig) -> int:
    """Bytes of weights, gradients and AdamW's two moments in float32, without activations."""
    return 4 * 4 * count_parameters(config).total


def count_mlp_entries(config: NetConfig, layer: int) -> int:
    """Entries of the MLP's matrices that a token meets in a layer; with experts, in a few."""
    if config.has_experts(layer):
        assert config.experts is not None
        return config.width * (3 * config.active_mlp_width + config.experts)
    return config.width * (2 if config.mlp == "gelu" else 3) * config.mlp_width


def _block_matrices(config: NetConfig, layer: int) -> int:
    """Entries of one block's matrices that every token meets once."""
    qkv = (config.heads + 2 * config.kv) * config.head_dim
    out = config.heads * config.head_dim
    return config.width * (qkv + out) + count_mlp_entries(config, layer)

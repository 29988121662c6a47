"""Parameters, floating-point operations and bytes of a network, by closed form."""

from dataclasses import dataclass

from unmask.net.conditioning import TIME_FEATURES
from unmask.net.config import NetConfig


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


def count_parameters(config: NetConfig) -> Parameters:
    """The number of parameters of each part."""
    width, norm = config.width, config.width * (1 if config.norm == "rms" else 2)
    qkv_rows = (config.heads + 2 * config.kv) * config.head_dim
    biases = qkv_rows * config.qkv_bias + width * config.out_bias
    biases += (_mlp_inputs(config) * config.mlp_width + width) * config.mlp_bias
    block = _block_matrices(config) + biases + 2 * norm
    return Parameters(
        embedding=config.vocab_size * width,
        positions=config.context * width if config.positions == "learned" else 0,
        layers=config.layers * block,
        final_norm=norm,
        head=0 if config.tied else config.logit_rows * width,
        conditioning=_count_conditioning(config),
    )


def _count_conditioning(config: NetConfig) -> int:
    width, latent = config.width, config.latent_width
    time = width * (TIME_FEATURES + 1) + width * (width + 1) if config.time else 0
    return time + (0 if latent is None else config.logit_rows * latent + width * (2 * latent + 1))


def count_flops(config: NetConfig, length: int, num_logits: int | None = None) -> int:
    """Operations of the forward pass of one row: two for each multiply-add of a matrix product.

    `num_logits` is the number of positions unembedded (all by default). Attention is counted in
    full, also where causal kernels skip half of it; a training step costs three times as much.
    """
    num_logits = length if num_logits is None else num_logits
    attention = 4 * length * length * config.heads * config.head_dim
    layers = config.layers * (2 * length * _block_matrices(config) + attention)
    return layers + 2 * num_logits * config.logit_rows * config.width


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


def _mlp_inputs(config: NetConfig) -> int:
    return 2 if config.mlp == "swiglu" else 1


def _block_matrices(config: NetConfig) -> int:
    """Entries of one block's matrices, each of which meets every token once."""
    qkv = (config.heads + 2 * config.kv) * config.head_dim
    out = config.heads * config.head_dim
    return config.width * (qkv + out + (_mlp_inputs(config) + 1) * config.mlp_width)

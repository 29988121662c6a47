"""The parts of a transformer block: norm, attention, MLP."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from unmask.net.config import NetConfig
from unmask.net.rotary import rotate
from unmask.net.sites import Tap
from unmask.net.view import View


class Linear(nn.Linear):
    """torch's, without drawing weights that are drawn or loaded afterwards anyway."""

    def reset_parameters(self) -> None:
        pass


class Embedding(nn.Embedding):
    """torch's, likewise."""

    def reset_parameters(self) -> None:
        pass


def make_norm(config: NetConfig) -> nn.Module:
    """The normalisation that the configuration names."""
    if config.norm == "rms":
        return nn.RMSNorm(config.width, eps=config.norm_eps)
    return nn.LayerNorm(config.width, eps=config.norm_eps)


class Attention(nn.Module):
    """Attention with grouped queries; causal or not is a matter of the view."""

    def __init__(self, config: NetConfig, layer: int):
        super().__init__()
        self.layer = layer
        self.heads, self.kv, self.head_dim = config.heads, config.kv, config.head_dim
        # One product for queries, keys and values: fewer, larger matrices.
        rows = (config.heads + 2 * config.kv) * config.head_dim
        self.qkv = Linear(config.width, rows, bias=config.qkv_bias)
        self.out = Linear(config.heads * config.head_dim, config.width, bias=config.out_bias)

    def forward(self, x: Float[Tensor, "B L D"], view: View) -> Float[Tensor, "B L H d"]:
        """Each head's mixture of values, before the out projection."""
        qkv = self.qkv(x).unflatten(-1, (-1, self.head_dim))
        queries_keys, values = qkv.split((self.heads + self.kv, self.kv), dim=2)
        if view.cos is not None and view.sin is not None:
            queries_keys = rotate(queries_keys, view.cos, view.sin)
        queries, keys = queries_keys.transpose(1, 2).split((self.heads, self.kv), dim=1)
        values = values.transpose(1, 2)
        if view.cache is not None:
            keys, values = view.cache.extend(self.layer, keys, values)
        z = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=view.mask,
            is_causal=view.is_causal,
            enable_gqa=self.kv != self.heads,
        )
        return z.transpose(1, 2)


class SwiGLU(nn.Module):
    """Llama's MLP: down(silu(gate x) * up x)."""

    def __init__(self, config: NetConfig):
        super().__init__()
        self.gate = Linear(config.width, config.mlp_width, bias=config.mlp_bias)
        self.up = Linear(config.width, config.mlp_width, bias=config.mlp_bias)
        self.down = Linear(config.mlp_width, config.width, bias=config.mlp_bias)

    def forward(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L F"]:
        """The inner activation, input of the down projection."""
        return F.silu(self.gate(x)) * self.up(x)


class GELU(nn.Module):
    """GPT-2's MLP: down(gelu(up x)), with the tanh approximation."""

    def __init__(self, config: NetConfig):
        super().__init__()
        self.up = Linear(config.width, config.mlp_width, bias=config.mlp_bias)
        self.down = Linear(config.mlp_width, config.width, bias=config.mlp_bias)

    def forward(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L F"]:
        """The inner activation, input of the down projection."""
        return F.gelu(self.up(x), approximate="tanh")


class Block(nn.Module):
    """Attention, then MLP, each reading the normalised stream and adding to it."""

    def __init__(self, config: NetConfig, layer: int):
        super().__init__()
        self.attn_norm = make_norm(config)
        self.attn = Attention(config, layer)
        self.mlp_norm = make_norm(config)
        self.mlp = SwiGLU(config) if config.mlp == "swiglu" else GELU(config)

    def forward(self, x: Float[Tensor, "B L D"], view: View, tap: Tap) -> Float[Tensor, "B L D"]:
        x = tap("resid_in", x)
        z = tap("attn_z", self.attn(self.attn_norm(x), view))
        x = x + tap("attn_out", self.attn.out(z.flatten(-2)))
        h = tap("mlp_in", self.mlp_norm(x))
        key = tap("mlp_key", self.mlp(h))
        x = x + tap("mlp_out", self.mlp.down(key))
        return tap("resid_out", x)


@torch.no_grad()
def initialise(module: nn.Module, layers: int, generator: torch.Generator | None) -> None:
    """Draw all weights: normal with deviation 0.02, smaller where a block adds to the stream.

    GPT-2's rule: the 2 x `layers` additions to the stream are scaled to keep its size.
    """
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
        elif parameter.ndim < 2:
            parameter.fill_(1.0)
        else:
            adds_to_stream = name.endswith(("attn.out.weight", "mlp.down.weight"))
            deviation = 0.02 / math.sqrt(2 * layers) if adds_to_stream else 0.02
            parameter.normal_(0.0, deviation, generator=generator)

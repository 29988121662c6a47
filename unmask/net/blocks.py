"""The parts of a transformer block: norm, attention, MLP."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from unmask.net.config import NetConfig
from unmask.net.fused import fuses
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
        queries, keys, values = self.project(x, view.cos, view.sin)
        if view.cache is not None:
            new = (keys.transpose(1, 2), values.transpose(1, 2))
            keys, values = (all_.transpose(1, 2) for all_ in view.cache.extend(self.layer, *new))
        return self.mix(queries, keys, values, view.mask, view.is_causal)

    def project(
        self, x: Float[Tensor, "*n D"], cos: Tensor | None, sin: Tensor | None
    ) -> tuple[Float[Tensor, "*n H d"], Float[Tensor, "*n h d"], Float[Tensor, "*n h d"]]:
        """Queries, keys and values of the normalised stream, turned by their positions' angles."""
        qkv = self.qkv(x).unflatten(-1, (-1, self.head_dim))
        queries_keys, values = qkv.split((self.heads + self.kv, self.kv), dim=-2)
        if cos is not None and sin is not None:
            queries_keys = rotate(queries_keys, cos, sin)
        queries, keys = queries_keys.split((self.heads, self.kv), dim=-2)
        return queries, keys, values

    def mix(
        self,
        queries: Float[Tensor, "B n H d"],
        keys: Float[Tensor, "B N h d"],
        values: Float[Tensor, "B N h d"],
        mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Float[Tensor, "B n H d"]:
        """Each head's mixture of values."""
        z = F.scaled_dot_product_attention(
            queries.transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=mask,
            is_causal=is_causal,
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

    def forward(self, x: Float[Tensor, "*n D"]) -> Float[Tensor, "*n F"]:
        """The inner activation, input of the down projection."""
        gate, up = self.gate(x), self.up(x)
        if fuses(up, gate) and up.is_contiguous():
            from unmask.net import kernels

            return kernels.gate(gate, up)
        return F.silu(gate) * up


class GELU(nn.Module):
    """GPT-2's MLP: down(gelu(up x)), with the tanh approximation."""

    def __init__(self, config: NetConfig):
        super().__init__()
        self.up = Linear(config.width, config.mlp_width, bias=config.mlp_bias)
        self.down = Linear(config.mlp_width, config.width, bias=config.mlp_bias)

    def forward(self, x: Float[Tensor, "*n D"]) -> Float[Tensor, "*n F"]:
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

    def feed(self, x: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
        """What the MLP adds to the stream, for those who run a block in parts."""
        return self.mlp.down(self.mlp(self.mlp_norm(x)))


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

"""What a network may be told beside tokens: the time, a class, and noised token vectors."""

import math
from copy import copy
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.base.errors import UserError
from unmask.net.blocks import BLOCKS, Block, InnerKey, Projected, Residual
from unmask.net.config import NetConfig
from unmask.net.layers import Embedding, Linear
from unmask.net.sites import Tap
from unmask.net.taps import untouched
from unmask.net.view import View

T = TypeVar("T")

TIME_FEATURES = 64
ADALN_FEATURES = 256


class TimeInput(nn.Module):
    """A vector for each time in [0, 1], added to the stream at every position."""

    def __init__(self, config: NetConfig):
        super().__init__()
        self.rise = Linear(TIME_FEATURES, config.width)
        self.mix = Linear(config.width, config.width)

    def forward(self, t: Float[Tensor, "B"]) -> Float[Tensor, "B 1 D"]:
        weight = self.rise.weight
        steps = torch.arange(TIME_FEATURES // 2, device=t.device) / (TIME_FEATURES // 2)
        # Wavelengths from two whole intervals down to about a four-hundredth of one.
        angles = math.pi * t.double()[:, None] * 1000.0**steps
        features = torch.cat((angles.sin(), angles.cos()), -1).to(weight.dtype)
        return self.mix(nn.functional.silu(self.rise(features)))[:, None]


class LatentInput(nn.Module):
    """Token vectors of unit length times sqrt(d), and the way noised ones enter the stream."""

    def __init__(self, config: NetConfig):
        super().__init__()
        assert config.latent_width is not None
        self.vectors = Embedding(config.logit_rows, config.latent_width)
        self.enter = Linear(2 * config.latent_width, config.width)

    def table(self) -> Float[Tensor, "V d"]:
        """The vector of each token; of fixed length, so that noise cannot be outgrown."""
        weight = self.vectors.weight
        return nn.functional.normalize(weight, dim=-1) * weight.shape[-1] ** 0.5

    def forward(
        self, z: Float[Tensor, "B L d"], hint: Float[Tensor, "B L d"] | None
    ) -> Float[Tensor, "B L D"]:
        """The stream for noised vectors `z` and the last guess at the clean ones, if any."""
        hint = torch.zeros_like(z) if hint is None else hint
        dtype = self.enter.weight.dtype
        # Under autocast the product is short; the stream is as wide as the weights.
        return self.enter(torch.cat((z, hint), -1).to(dtype)).to(dtype)


class ConditionInput(nn.Module):
    """A vector for each time, and class, from which adaLN sets scales, shifts and gates."""

    def __init__(self, config: NetConfig):
        super().__init__()
        assert config.adaln is not None
        self.rise = Linear(ADALN_FEATURES, config.adaln)
        self.mix = Linear(config.adaln, config.adaln)
        if config.classes is not None:
            self.classes = Embedding(config.classes + 1, config.adaln)  # the last one is: no class

    def forward(
        self, t: Float[Tensor, "B"], classes: Int[Tensor, "B"] | None = None
    ) -> Float[Tensor, "B C"]:
        half, weight = ADALN_FEATURES // 2, self.rise.weight
        steps = torch.arange(half, device=t.device, dtype=torch.float32) / half
        angles = t.float()[:, None] * torch.exp(-math.log(10_000.0) * steps)
        features = torch.cat((angles.cos(), angles.sin()), -1).to(weight.dtype)
        condition = nn.functional.silu(self.mix(nn.functional.silu(self.rise(features))))
        if classes is not None:
            condition = condition + nn.functional.silu(self.classes(classes))
        return condition


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """A normalised stream as the condition scales and shifts it."""
    return x * (1 + scale) + shift


class ConditionedNorm(nn.LayerNorm):
    """The last norm of a network with adaLN."""

    def __init__(self, config: NetConfig):
        assert config.adaln is not None
        super().__init__(config.width, eps=config.norm_eps, bias=False)
        self.modulation = Linear(config.adaln, 2 * config.width)

    def forward(
        self, input: Float[Tensor, "*n D"], condition: Float[Tensor, "*#n C"] | None = None
    ) -> Float[Tensor, "*n D"]:
        return modulate(
            super().forward(input), *self.modulation(require(condition)).chunk(2, dim=-1)
        )


class ConditionedBlock(Block):
    """A layer whose norms and additions the condition modulates; gates are inside what is added.

    Its pieces need a condition: `run` gives them that of the pass. `unmask.net.folding.fold_time`
    makes a network of plain blocks for one time, which tracing and editing take.
    """

    modulations: tuple[Tensor, ...] | None = None

    def __init__(self, config: NetConfig, layer: int):
        super().__init__(config, layer)
        assert config.adaln is not None
        self.modulation = Linear(config.adaln, 6 * config.width)

    def run(self, x: Float[Tensor, "B L D"], view: View, tap: Tap) -> Float[Tensor, "B L D"]:
        bound = copy(self)  # weights are shared
        bound.modulations = self.modulation(require(view.condition))[:, None].chunk(6, dim=-1)
        return Block.run(bound, x, view, tap)

    def read(self, x: Residual, cos: Tensor | None, sin: Tensor | None) -> Projected:
        shift, scale = require(self.modulations)[:2]
        return self.attn.project(modulate(self.attn_norm(x), shift, scale), cos, sin)

    def attn_out(self, z: Float[Tensor, "*n H d"]) -> Residual:
        return require(self.modulations)[2] * super().attn_out(z)

    def mlp_key(self, x: Residual, tap: Tap = untouched) -> InnerKey:
        shift, scale = require(self.modulations)[3:5]
        return self.mlp(tap("mlp_in", modulate(self.mlp_norm(x), shift, scale)))

    def mlp_out(self, key: InnerKey) -> Residual:
        return require(self.modulations)[5] * super().mlp_out(key)


def require(condition: T | None) -> T:
    """The condition, or a sentence about networks that are run without one."""
    if condition is None:
        raise UserError(
            "this network's layers are told the time, and none was given: give one, or fix it by "
            "unmask.net.folding.fold_time(net, t), which makes a network that needs none."
        )
    return condition


BLOCKS["adaln"] = ConditionedBlock

"""What a network may be told beside tokens: the time, and noised token vectors."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.net.blocks import Embedding, Linear
from unmask.net.config import NetConfig

TIME_FEATURES = 64


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

"""The small parts of a network: matrices without drawn weights, and norms."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from unmask.net.config import NetConfig
from unmask.net.fused import fuses, has_hooks


class Linear(nn.Linear):
    """torch's, without drawing weights that are drawn or loaded afterwards anyway."""

    def reset_parameters(self) -> None:
        pass


class Embedding(nn.Embedding):
    """torch's, likewise."""

    def reset_parameters(self) -> None:
        pass


class Head(Linear):
    """Logits of the stream.

    Tensor cores take rows of 16 bytes: with an odd number of logits in 16 bits the product is
    several times slower. Then every row has room to spare, and the last few logits are a second
    product.
    """

    def forward(self, input: Float[Tensor, "*n D"]) -> Float[Tensor, "*n V"]:
        rows, spare = len(self.weight), -len(self.weight) % 8
        if not spare or input.element_size() != 2 or not fuses(input, self.weight):
            return super().forward(input)
        flat, even = input.reshape(-1, input.shape[-1]), rows - rows % 8
        logits = input.new_empty(len(flat), rows + spare)
        for part in (slice(even), slice(even, rows)):
            torch.mm(flat, self.weight[part].T, out=logits[:, part])
        if self.bias is not None:
            logits[:, :rows] += self.bias
        return logits[:, :rows].unflatten(0, input.shape[:-1])


class RMSNorm(nn.RMSNorm):
    """torch's, by a kernel of our own where nothing is learned."""

    def forward(self, x: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
        if fuses(x, self.weight) and x.is_contiguous():
            from unmask.net import kernels

            assert self.eps is not None
            return kernels.norm(x, self.weight, self.eps)
        return super().forward(x)


def add_and_norm(
    x: Float[Tensor, "*n D"], added: Float[Tensor, "*n D"], norm: nn.Module
) -> tuple[Float[Tensor, "*n D"], Float[Tensor, "*n D"]] | None:
    """x + added and the norm of it, in one pass over memory; None where that is left to torch."""
    if type(norm) is not RMSNorm or not fuses(x, added, norm.weight) or has_hooks(norm):
        return None
    if x.shape != added.shape or not x.is_contiguous():
        return None
    from unmask.net import kernels

    assert norm.eps is not None
    return kernels.fused_add_and_norm(x, added, norm.weight, norm.eps)


def make_norm(config: NetConfig) -> nn.Module:
    """The normalisation that the configuration names."""
    if config.norm == "rms":
        return RMSNorm(config.width, eps=config.norm_eps)
    return nn.LayerNorm(config.width, eps=config.norm_eps, bias=config.norm_bias)


class PredictionNorm(nn.LayerNorm):
    """The last norm of a masked language model's encoder, and what stands before its head.

    norm(gelu(dense(norm x))), as in BERT and ModernBERT.
    """

    def __init__(self, config: NetConfig):
        super().__init__(config.width, eps=config.norm_eps, bias=config.norm_bias)
        self.dense = Linear(config.width, config.width, bias=config.head_mlp_bias)
        self.last = nn.LayerNorm(config.width, eps=config.norm_eps, bias=config.norm_bias)

    def forward(self, input: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
        return self.last(F.gelu(self.dense(super().forward(input))))

"""Objectives that change their own noise while they train: warped times, softened tokens, powers.

TimeWarp        CDCD: times are drawn where the loss changes (Dieleman et al. 2022, 2211.15089)
soften          DUO: uniform noise seen through the gaussian noise it stems from, ever less
                softly (Sahoo et al. 2025, 2506.10892)
leave_one_out   gradients of what noise is drawn from (Shi et al. 2024, 2406.04329)
"""

import math
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams

_NODES, _REACH = 2001, 12.0
"""Nodes and reach of the quadrature over a standard normal."""


class TimeWarp(nn.Module):
    """A monotone map of (0, 1), a straight line in each of some bins, fitted to the loss by time.

    Where losses rise with time (how uncertain the network is), times drawn by `draw` are spread
    such that the loss rises evenly: most are drawn where it changes most. `fit_loss` is minimised
    along with the network.
    """

    def __init__(self, bins: int = 50):
        super().__init__()
        if bins < 2:
            raise UserError(f"{bins} bins of time were asked for: expected at least 2.")
        self.widths = nn.Parameter(torch.zeros(bins))
        """Widths of bins on the axis of time, before softmax."""
        self.heights = nn.Parameter(torch.zeros(bins))
        """Heights of bins on the axis of the loss, before softmax."""
        self.scale = nn.Parameter(torch.zeros(()))
        """log of the loss at t = 1."""

    def _edges(self) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"]]:
        """Where bins begin and end on both axes, from 0 to 1."""
        least = 1e-3 / len(self.widths)
        edges = []
        for weights in (self.widths, self.heights):
            share = weights.double().softmax(0) + least
            edges.append(torch.cat((share.new_zeros(1), (share / share.sum()).cumsum(0))))
        return edges[0], edges[1]

    def cumulative(self, t: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        """F(t), from 0 to 1: the share of the loss at t = 1 that there is at t."""
        return _interpolate(t.double(), *self._edges())

    def draw(self, uniform: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        """F^{-1}: uniform numbers to times; no gradient."""
        with torch.no_grad():
            times, values = self._edges()
            return _interpolate(uniform.double(), values, times)

    def density(self, t: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        """How much more often than evenly a time is drawn: 1 / density makes means even again."""
        with torch.no_grad():
            times, values = self._edges()
            bin_ = _find_bin(t.double(), times)
            return (values.diff() / times.diff())[bin_]

    def fit_loss(self, t: Float[Tensor, "B"], losses: Float[Tensor, "B"]) -> Float[Tensor, ""]:
        """Squared distance of the loss curve from losses at times drawn by `draw`."""
        curve = self.scale.double().exp() * self.cumulative(t)
        weight = 1 / self.density(t)
        return (weight * (curve - losses.detach().double()).square()).mean()


def _find_bin(x: Tensor, edges: Tensor) -> Int[Tensor, "*B"]:
    return (torch.searchsorted(edges, x.contiguous(), right=True) - 1).clamp(0, len(edges) - 2)


def _interpolate(x: Tensor, edges: Tensor, values: Tensor) -> Tensor:
    """The broken line through (edges, values) at x."""
    bin_ = _find_bin(x.detach(), edges.detach())
    share = (x - edges[bin_]) / (edges[bin_ + 1] - edges[bin_])
    return values[bin_] + share * (values[bin_ + 1] - values[bin_])


def keep_uniform(alpha: Float[Tensor, "*B"], num_tokens: int) -> Float[Tensor, "*B"]:
    """alpha of the uniform noise that the largest entry of gaussian noise is (DUO).

    w = alpha onehot(x) + sqrt(1 - alpha²) e; the largest entry of w is x with probability
    a + (1 - a) / V, any other token with (1 - a) / V: this is a.
    """
    # Over a grid of the own entry's noise: the integrand is steep where there are many tokens.
    nodes = torch.linspace(-_REACH, _REACH, _NODES, dtype=torch.float64, device=alpha.device)
    weights = torch.exp(-0.5 * nodes.square()) / math.sqrt(2 * math.pi) * (nodes[1] - nodes[0])
    shift = alpha.double() / (1 - alpha.double().square()).clamp(min=1e-12).sqrt()
    log_below = torch.special.log_ndtr(nodes + shift[..., None])
    hit = (weights * ((num_tokens - 1) * log_below).exp()).sum(-1)
    return ((num_tokens * hit - 1) / (num_tokens - 1)).clamp(0.0, 1.0)


def find_signal(t: Float[Tensor, "B"], num_tokens: int) -> Float[Tensor, "B"]:
    """alpha of gaussian noise at which uniform noise is about as strong as linear noise at t."""
    grid, kept = (x.to(t.device) for x in _tabulate_signal(num_tokens))
    place = torch.searchsorted(kept, (1 - t.double()).contiguous()).clamp(1, len(grid) - 1)
    low, high = kept[place - 1], kept[place]
    share = ((1 - t.double() - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    return grid[place - 1] + share * (grid[place] - grid[place - 1])


@cache
def _tabulate_signal(num_tokens: int) -> tuple[Tensor, Tensor]:
    grid = torch.linspace(0, 0.999, 512, dtype=torch.float64)
    return grid, keep_uniform(grid, num_tokens)


def soften(
    x0: Int[Tensor, "B L"],
    alpha: Float[Tensor, "B"],
    temperature: float,
    num_tokens: int,
    streams: RowStreams,
) -> tuple[Int[Tensor, "B L"], Float[Tensor, "B L V"]]:
    """Tokens noised uniformly through gaussian noise, and the same softly: softmax(w / T).

    `alpha` is the gaussian noise's; the tokens' is `keep_uniform` of it. At temperature 0 the soft
    tokens are the hard ones.
    """
    noise = streams.normal(x0.shape[1], num_tokens)
    signal = alpha.double()[:, None, None]
    clean = nn.functional.one_hot(x0, num_tokens)
    w = signal * clean + (1 - signal.square()).clamp(min=0).sqrt() * noise
    hard = w.argmax(-1)
    if temperature <= 0:
        return hard, nn.functional.one_hot(hard, num_tokens).to(w.dtype)
    return hard, (w / temperature).softmax(-1)


def leave_one_out(
    losses: Float[Tensor, "2 B"], log_chances: Float[Tensor, "2 B"]
) -> Float[Tensor, ""]:
    """A loss whose gradient is that of E[loss] where the noise itself depends on parameters.

    Two draws of the noise for each row: their losses, and the log-probabilities of what was drawn.
    Each draw's loss less the other's weighs the gradient of its log-probability, which is REINFORCE
    with the other draw as its baseline; the losses have their own gradient beside it.
    """
    advantage = (losses - losses.flip(0)).detach()
    weighted = (advantage * log_chances).mean()
    return losses.mean() + weighted - weighted.detach()

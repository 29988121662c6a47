"""Ancestral sampling: step back through the posteriors of a process, from the prior to a text."""

from collections.abc import Callable
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.noise.gaussian import Gaussian
from unmask.noise.process import Process
from unmask.noise.schedules import check_closed

Denoiser = Callable[[Tensor, Tensor], Tensor]
"""(x_t [B, L], t [B]) to logits [B, L, V]."""
VectorDenoiser = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(z_t [B, L, d], t [B], the last guess at the clean vectors) to logits [B, L, V]."""


@torch.no_grad()
def sample_ancestral(
    denoise: Denoiser, process: Process, length: int, steps: int, streams: RowStreams
) -> Int[Tensor, "B L"]:
    """Texts drawn in `steps` equal steps of time from a discrete process with closed ends."""
    check_closed(process.schedule)
    xt = process.prior(length, streams)
    for t, s in _times(steps, streams):
        logp = process.posterior(denoise(xt, t[:, 0]).double(), xt, t, s)
        xt = draw(logp, streams)
    return xt


@torch.no_grad()
def sample_gaussian(
    denoise: VectorDenoiser,
    process: Gaussian,
    length: int,
    steps: int,
    streams: RowStreams,
    clamp: bool = False,
) -> Int[Tensor, "B L"]:
    """Texts drawn from a Gaussian process; each step is given the last one's guess.

    At t = 0 every position takes the token whose vector is nearest to what was reached.
    """
    zt, hint = process.prior(length, streams), None
    for t, s in _times(steps, streams):
        logits = denoise(zt, t[:, 0], hint)
        hint = process.denoise(logits)
        mean, deviation = process.posterior(logits, zt, t, s, clamp)
        zt = mean + deviation * streams.normal(*mean.shape[1:]).to(mean.dtype)
    return process.nearest(zt)


def draw(logp: Float[Tensor, "B L N"], streams: RowStreams) -> Int[Tensor, "B L"]:
    """One value a position, by the Gumbel trick in float64."""
    return (logp.double() + streams.gumbel(*logp.shape[1:])).argmax(-1)


def _times(steps: int, streams: RowStreams) -> list[tuple[Tensor, Tensor]]:
    """Pairs t > s of [B, 1], from 1 to 0."""
    if steps < 1:
        raise UserError(f"{steps} sampling steps were asked for: expected at least 1.")
    grid = torch.linspace(1, 0, steps + 1, dtype=torch.float64, device=streams.keys.device)
    rows = grid[:, None, None].expand(-1, streams.rows, 1)
    return list(pairwise(rows))

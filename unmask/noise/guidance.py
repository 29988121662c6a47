"""Classifier-free guidance: what a condition adds to a prediction, taken further.

z = z_u + (w + 1) (z_c - z_u); w = 0 is the conditional prediction itself. For masked noise
the network's logits are mixed (`mix`, before anything else is made of them), for uniform and hybrid
noise the log posteriors (Schiff et al. 2024).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.noise.masked import Masked
from unmask.noise.process import Process, Times


def mix(
    conditional: Float[Tensor, "*S V"], unconditional: Float[Tensor, "*#S V"], guidance: float
) -> Float[Tensor, "*S V"]:
    """The conditional prediction moved `guidance` times further away from the unconditional one."""
    return torch.lerp(unconditional, conditional, guidance + 1)


def guide_posterior(
    process: Process,
    conditional: Float[Tensor, "*S V"],
    unconditional: Float[Tensor, "*S V"],
    guidance: float,
    xt: Tensor,
    t: Times,
    s: Times,
) -> Float[Tensor, "*S N"]:
    """Log-probabilities of x_s under guidance, in the way that fits the process."""
    if guidance == 0:
        return process.posterior(conditional, xt, t, s)
    if isinstance(process, Masked):
        return process.posterior(mix(conditional, unconditional, guidance), xt, t, s)
    with_it, without = (process.posterior(z, xt, t, s) for z in (conditional, unconditional))
    return mix(with_it, without, guidance).log_softmax(-1)

"""Classifier-free guidance: what a condition adds to a prediction, taken further.

z = z_u + (w + 1) (z_c - z_u); w = 0 is the conditional prediction itself. What is mixed is up to
the process (`unmask.noise.process.Process.guided_posterior`): the network's logits for masked
noise, the log posteriors otherwise.

Guidance by rates (Nisonoff et al. 2024, arXiv 2406.01572) does not normalise: a mask becomes a
token at the rate R_c^g R_u^(1-g), g = w + 1, so that its total rate is multiplied by
Z = sum_v p_c(v)^g p_u(v)^(1-g).
"""

import torch
from jaxtyping import Float
from torch import Tensor


def mix(
    conditional: Float[Tensor, "*S V"], unconditional: Float[Tensor, "*#S V"], guidance: float
) -> Float[Tensor, "*S V"]:
    """The conditional prediction moved `guidance` times further away from the unconditional one."""
    return torch.lerp(unconditional, conditional, guidance + 1)


def find_log_rate(
    logp_c: Float[Tensor, "*S V"], logp_u: Float[Tensor, "*S V"], guidance: float
) -> Float[Tensor, "*S"]:
    """log Z: by how much guidance by rates speeds up un-masking.

    log Z is convex in g = guidance + 1 and 0 at g = 0 and 1, hence Z <= 1 between them and
    Z >= 1 outside (Hoelder).
    """
    # Values that neither allows add nothing: -inf less -inf would not be a number.
    moved = torch.lerp(logp_u, logp_c, guidance + 1)
    return moved.masked_fill(logp_c == -torch.inf, -torch.inf).logsumexp(-1)

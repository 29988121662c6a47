"""Classifier-free guidance: what a condition adds to a prediction, taken further.

z = z_u + (w + 1) (z_c - z_u); w = 0 is the conditional prediction itself. What is mixed is up to
the process (`unmask.noise.process.Process.guided_posterior`): the network's logits for masked
noise, the log posteriors otherwise.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def mix(
    conditional: Float[Tensor, "*S V"], unconditional: Float[Tensor, "*#S V"], guidance: float
) -> Float[Tensor, "*S V"]:
    """The conditional prediction moved `guidance` times further away from the unconditional one."""
    return torch.lerp(unconditional, conditional, guidance + 1)

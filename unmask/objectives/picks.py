"""Picks: which places of the stream predict which token, and how much each prediction counts.

Masked and next-token losses differ in their picks alone. Picks can be made on the CPU, where asking
how many there are costs nothing, and travel to the device with the batch.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.net.transformer import Transformer
from unmask.objectives.batch import Batch
from unmask.objectives.cross_entropy import weighted_cross_entropy


@dataclass(frozen=True)
class Picks:
    """N predictions of a batch."""

    at: Int[Tensor, "N"]
    """Places in the stream of all rows one behind the other."""
    targets: Int[Tensor, "N"]
    weights: Float[Tensor, "N"]
    """Of each cross-entropy, all division done."""


def pick_hidden(
    batch: Batch, hidden: Bool[Tensor, "B L"], weights: Float[Tensor, "B L"], shift: bool = False
) -> Picks:
    """The hidden tokens, each predicted at its own place, or shifted, at the one before it.

    A row's first token has no place before it and is predicted at its own, as Dream has it.
    """
    at = hidden.flatten().nonzero()[:, 0]
    targets, weights = batch.tokens.flatten()[at], weights.flatten()[at].float()
    if shift:
        at = torch.where(at % hidden.shape[1] > 0, at - 1, at)
    return Picks(at, targets, weights)


def pick_next(batch: Batch, wanted: Bool[Tensor, "B L"]) -> Picks:
    """The wanted tokens but rows' first, predicted at the place before them, all counting alike."""
    at = (wanted & (batch.places > 0)).flatten().nonzero()[:, 0]
    if not len(at):
        raise UserError("the rows have no second token: there is nothing to predict.")
    weights = torch.full((len(at),), 1 / len(at), device=at.device)
    return Picks(at - 1, batch.tokens.flatten()[at], weights)


def picked_loss(
    net: Transformer, x: Float[Tensor, "B L D"], picks: Picks, forbidden: int | None = None
) -> tuple[Float[Tensor, ""], Float[Tensor, "N"]]:
    """The weighted cross-entropies of the picks' sum, and the cross-entropies (no gradient).

    `x` is the stream that leaves the last layer; logits are computed at the picks only.
    """
    net.taps.require_none("the training loss", ("final", "logits"))
    # By number: the gradient of indexing with a mask sorts all its positions first.
    rows = net.norm(x.flatten(0, 1).index_select(0, picks.at))
    return weighted_cross_entropy(rows, net.head.weight, picks.targets, picks.weights, forbidden)

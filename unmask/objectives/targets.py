"""Targets: which positions of the residual stream predict which tokens, with what weights.

Masked and next-token losses differ in their targets alone. Targets are made on the CPU, where
asking how many there are costs nothing, and move to the device with the batch.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.base.errors import UserError
from unmask.net.transformer import Transformer
from unmask.objectives.batch import Batch
from unmask.objectives.cross_entropy import weighted_cross_entropy


@dataclass(frozen=True)
class Targets:
    """The N predictions that the loss of a batch is made of."""

    at: Int[Tensor, "N"]
    """Which position predicts: an index into the rows laid end to end, row times L plus column."""
    tokens: Int[Tensor, "N"]
    """The true token of each prediction."""
    weights: Float[Tensor, "N"]
    """The weight of each cross-entropy, all division done."""

    @classmethod
    def weigh_alike(cls, at: Int[Tensor, "N"], tokens: Int[Tensor, "N"]) -> "Targets":
        """Predictions whose mean is the loss."""
        weights = torch.full((len(at),), 1 / max(len(at), 1), device=at.device)
        return cls(at, tokens, weights)

    def pad(self, multiple: int) -> "Targets":
        """As many targets as the next multiple says; those added weigh nothing.

        They repeat the first one, whose cross-entropy is a number wherever the loss is one.
        """
        missing = -len(self.at) % multiple if len(self.at) else 0
        if not missing:
            return self
        at, tokens = (torch.cat([x, x[:1].expand(missing)]) for x in (self.at, self.tokens))
        return Targets(at, tokens, torch.cat([self.weights, self.weights.new_zeros(missing)]))


def hidden_targets(
    batch: Batch, hidden: Bool[Tensor, "B L"], weights: Float[Tensor, "B L"], shift: bool = False
) -> Targets:
    """The hidden tokens, each predicted at its own position, or shifted, at the one before it.

    A row's first token has no position before it and is predicted at its own, as in Dream.
    """
    at = hidden.flatten().nonzero()[:, 0]
    tokens, weights = batch.tokens.flatten()[at], weights.flatten()[at].float()
    if shift:
        at = torch.where(at % hidden.shape[1] > 0, at - 1, at)
    return Targets(at, tokens, weights)


def next_targets(batch: Batch, wanted: Bool[Tensor, "B L"]) -> Targets:
    """The wanted tokens, each predicted at the position before it, with equal weights.

    Rows' first tokens are left out: there is no position before them.
    """
    at = (wanted & (batch.positions > 0)).flatten().nonzero()[:, 0]
    if not len(at):
        raise UserError("the rows have no second token: there is nothing to predict.")
    return Targets.weigh_alike(at - 1, batch.tokens.flatten()[at])


def targets_loss(
    net: Transformer, x: Float[Tensor, "B L D"], targets: Targets, forbidden: int | None = None
) -> tuple[Float[Tensor, ""], Float[Tensor, "N"]]:
    """The weighted sum of the targets' cross-entropies, and these themselves (no gradient).

    `x` is the stream after the last layer; logits are computed at the targets' positions only.
    `forbidden` is a row of the head that can never be predicted.
    """
    rows, head = read_head(net, x, targets)
    return weighted_cross_entropy(rows, head, targets.tokens, targets.weights, forbidden)


def read_head(
    net: Transformer, x: Float[Tensor, "B L D"], targets: Targets
) -> tuple[Float[Tensor, "N E"], Float[Tensor, "V E"]]:
    """What goes into the head at the targets' positions, and its weights: their product is logits.

    A bias is one more column of the weights.
    """
    net.taps.require_none("the training loss", ("final", "logits"))
    # By index: the gradient of indexing with a mask sorts all its positions first.
    rows = net.norm(x.flatten(0, 1).index_select(0, targets.at))
    head = net.head.weight
    if net.head.bias is not None:  # the column meets a constant
        rows = nn.functional.pad(rows, (0, 1), value=1.0)
        head = torch.cat((head, net.head.bias[:, None]), dim=1)
    return rows, head

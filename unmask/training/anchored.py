"""Text read without forgetting: what is kept are the predictions of the model to start from."""

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.net.transformer import Transformer
from unmask.noise.masked import Masked
from unmask.objectives.batch import Batch
from unmask.objectives.masked import find_forbidden
from unmask.objectives.targets import read_head
from unmask.training.losses import CausalObjective, LossInputs, MaskedObjective, Objective

_NEVER = -1e4
"""The logit of a token that can never be predicted: its chance is 0 in float32."""


@dataclass(frozen=True)
class AnchoredObjective(Objective):
    """An objective on rows of facts or pairs; on rows of text, the distance from the start.

    The distance is KL(start || network), at the positions and with the weights that the objective
    gives to their tokens. At the start its gradient is exactly zero, where that of the tokens is
    noise: rows of text then hold the network in place instead of moving it about.
    """

    inner: MaskedObjective | CausalObjective
    start: Transformer

    @classmethod
    def wrap(cls, inner: Objective, net: Transformer) -> "AnchoredObjective":
        """That objective, anchored to the network as it stands."""
        if not isinstance(inner, MaskedObjective | CausalObjective) or inner.settings.clean_blocks:
            raise UserError(
                "objective.anchored is for a masked cross-entropy and for next_token, without "
                "clean_blocks: choose another objective.name, or leave objective.anchored out."
            )
        return cls(inner.settings, inner, copy.deepcopy(net).eval().requires_grad_(False))

    def count(self, batch: Batch) -> float:
        return self.inner.count(batch)

    def find_learnable(self, batch: Batch) -> Tensor:
        return self.inner.find_learnable(batch)

    def prepare(self, batch: Batch, t: Tensor, streams: RowStreams) -> LossInputs:
        return self.inner.prepare(batch, t, streams)

    def loss(self, net: Transformer, inputs: LossInputs) -> Tensor:
        if inputs.batch.prompt_length is not None:  # facts and pairs have prompts, text has none
            return self.inner.loss(net, inputs)
        assert inputs.targets is not None
        process = self.inner.process if isinstance(self.inner, MaskedObjective) else None
        with torch.no_grad():
            kept = predict_targets(self.start, inputs, process)
        own = predict_targets(net, inputs, process)
        distances = F.kl_div(own, kept, reduction="none", log_target=True)
        return (inputs.targets.weights * distances.sum(-1)).sum()


def predict_targets(
    net: Transformer, inputs: LossInputs, process: Masked | None
) -> Float[Tensor, "N V"]:
    """Log-probabilities at the targets' positions; under a process with masks, none of the mask."""
    assert inputs.targets is not None
    x = net.run_layers(net.embed(inputs.batch.tokens, t=inputs.t), sees=inputs.sees)
    rows, head = read_head(net, x, inputs.targets)
    logits = (rows @ head.T).float()
    forbidden = None if process is None else find_forbidden(net, process)
    if forbidden is not None:
        logits[:, forbidden] = _NEVER
    return logits.log_softmax(-1)

"""Preference tuning: DPO on differences of bounds, the masks shared with the start (LLaDA 1.5).

Zhu et al. 2025, arXiv 2505.19223. With B the evidence lower bound of a response,

    loss = -log sigmoid(beta [(B(chosen) - B_start(chosen)) - (B(rejected) - B_start(rejected))])

A bound is estimated by some masks: of a response of R tokens k are hidden, k drawn evenly from 1 to
R, and their log-probabilities count R / k. Each mask has a time of its own (one mask a time varies
least), the times spread evenly. The network and its start read the same masks, so that what masks
have in common drops out of the difference; both responses are masked at the same times.
"""

import copy
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.net.model import Model
from unmask.net.transformer import Transformer
from unmask.noise.masked import Masked
from unmask.noise.processes import make_process
from unmask.objectives.batch import Batch, allow_noise
from unmask.objectives.targets import hidden_targets
from unmask.training.anchored import predict_targets
from unmask.training.losses import LossInputs, Objective
from unmask.training.recipe import Recipe


@dataclass(frozen=True)
class PreferenceObjective(Objective):
    """How much surer than its start a network is of chosen responses than of rejected ones."""

    process: Masked
    start: Transformer
    shift: bool = False

    @classmethod
    def make(cls, recipe: Recipe, model: Model) -> Self:
        blueprint, rows = model.blueprint, model.net.config.logit_rows
        known = (blueprint.noise, rows, blueprint.mask_id, model.tokenizer)
        process = make_process(recipe.kind, *known)
        assert isinstance(process, Masked), "recipes with other noise are refused"
        start = copy.deepcopy(model.net).eval().requires_grad_(False)
        return cls(recipe.objective, process, start, blueprint.shift)

    def find_learnable(self, batch: Batch) -> Bool[Tensor, "B L"]:
        return allow_noise(batch, True, self.settings.filling)

    def count(self, batch: Batch) -> float:
        return float(len(batch.tokens))

    def prepare(self, batch: Batch, t: Tensor, streams: RowStreams) -> LossInputs:
        """Every mask of the chosen responses, then those of the rejected, mask by mask.

        The weights of rejected tokens are negative, so that a pair's margin is a sum.
        """
        if batch.rejected is None:
            raise UserError(
                "the rows have no rejected responses: the objective preference needs data.source="
                "preferences."
            )
        rows, hides, weights = [], [], []
        for number in range(self.settings.masks):
            times = ((t.double() + number / self.settings.masks) % 1.0)[:, None]
            for sign, side in ((1.0, batch), (-1.0, batch.rejected)):
                may = self.find_learnable(side)
                draws = streams.at("mask", number, sign).uniform(may.shape[1])
                hidden, weight = _hide(may, draws, times)
                rows.append(torch.where(hidden, self.process.mask_id, side.tokens))
                hides.append(hidden)
                weights.append(sign * weight / self.settings.masks)
        copies = [batch.tokens, batch.rejected.tokens] * self.settings.masks
        clean, hidden = Batch(torch.cat(copies)), torch.cat(hides)
        targets = hidden_targets(clean, hidden, torch.cat(weights), self.shift)
        shares = hidden.double().mean(-1)
        return LossInputs(Batch(torch.cat(rows)), shares, targets)

    def loss(self, net: Transformer, inputs: LossInputs) -> Tensor:
        return -F.logsigmoid(self.settings.beta * self.find_margins(net, inputs)).mean()

    def find_margins(self, net: Transformer, inputs: LossInputs) -> Float[Tensor, "B"]:
        """For each pair, by how much the chosen response's bound rose more than the other's."""
        assert inputs.targets is not None
        with torch.no_grad():
            kept = predict_targets(self.start, inputs, self.process)
        risen = predict_targets(net, inputs, self.process) - kept
        risen = risen.gather(-1, inputs.targets.tokens[:, None])[:, 0]
        rows, length = inputs.batch.tokens.shape
        pairs = rows // (2 * self.settings.masks)
        margins = risen.new_zeros(pairs)
        place = inputs.targets.at // length % pairs
        return margins.index_add(0, place, inputs.targets.weights * risen)


def _hide(
    may: Bool[Tensor, "B L"], draws: Float[Tensor, "B L"], t: Float[Tensor, "B 1"]
) -> tuple[Bool[Tensor, "B L"], Float[Tensor, "B L"]]:
    """Exactly k of each row's R positions, k = 1 + floor(t R), and the weight R / k on them."""
    most = may.sum(-1, keepdim=True)
    number = (1 + (t * most).floor()).minimum(most.double())
    ranks = draws.masked_fill(~may, 2.0).argsort(-1).argsort(-1)
    hidden = (ranks < number) & may
    return hidden, torch.where(hidden, most / number.clamp(min=1), 0.0)

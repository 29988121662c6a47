"""Both readings of one network learned at once: the next token, and what masks hide.

NVIDIA's Nemotron-Labs-Diffusion is trained so, with the weight 0.3 on the masked loss. Here every
row has two passes in a step, clean under a causal mask and noised under the network's own
attention: one long pass over both would cost as much, and need a mask that fast attention lacks.
Only where noised blocks are to see clean text before them are both in one pass as well.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.net.model import Model
from unmask.net.readings import open_causally
from unmask.net.transformer import Transformer
from unmask.noise.masked import Masked
from unmask.objectives.batch import Batch
from unmask.objectives.masked import find_forbidden, get_weighting
from unmask.objectives.rearranged import run_beside_clean
from unmask.objectives.targets import Targets, targets_loss
from unmask.training.losses import CausalObjective, LossInputs, MaskedObjective, Objective
from unmask.training.recipe import Recipe


@dataclass(frozen=True)
class JointObjective(Objective):
    """The next token of the causal reading, plus a share of the diffusion reading's masked loss.

    Rows that one reading learns have its loss alone, whole. A source counts by its rows.
    """

    masked: MaskedObjective
    causal: CausalObjective

    @classmethod
    def make(cls, recipe: Recipe, model: Model) -> "JointObjective":
        settings = recipe.objective
        config = model.net.config
        if config.time or (settings.clean_blocks and config.block is None):
            raise UserError(
                "the objective joint is for networks that are not told the time, and with "
                "objective.clean_blocks for those with blocks: choose another preset."
            )
        process = model.make_process()
        assert isinstance(process, Masked), "a kind that has this objective"
        weighting, shift = get_weighting("smdm"), model.blueprint.shift
        masked = MaskedObjective(settings, process, weighting, shift)
        # A causal text is over at its end.
        return cls(settings, masked, CausalObjective(replace(settings, filling=False)))

    def count(self, batch: Batch) -> float:
        return float(len(batch.tokens))

    def find_learnable(self, batch: Batch) -> Tensor:
        return (self.causal if batch.reading == "causal" else self.masked).find_learnable(batch)

    def prepare(self, batch: Batch, t: Tensor, streams: RowStreams) -> LossInputs:
        """The rows of one reading, or those of both: first the noised ones, then the clean ones."""
        if batch.reading != "both":
            only = self.causal if batch.reading == "causal" else self.masked
            return only.prepare(batch, t, streams)
        noised, clean = (each.prepare(batch, t, streams) for each in (self.masked, self.causal))
        hidden, following = noised.targets, clean.targets
        assert hidden is not None and following is not None
        targets = Targets(
            torch.cat((hidden.at, following.at + batch.tokens.numel())),
            torch.cat((hidden.tokens, following.tokens)),
            torch.cat((hidden.weights * self.settings.diffusion_weight, following.weights)),
        )
        xt = noised.batch.tokens[:, : batch.tokens.shape[1]]  # its clean rows follow anyway
        return LossInputs(Batch(torch.cat((xt, batch.tokens))), t, targets)

    def loss(self, net: Transformer, inputs: LossInputs) -> Tensor:
        assert inputs.targets is not None
        reading, tokens = inputs.batch.reading, inputs.batch.tokens
        count = {"both": len(tokens) // 2, "causal": 0, "diffusion": len(tokens)}[reading]
        streams = []
        if count and self.settings.clean_blocks:
            both = tokens.split(count) if reading == "both" else tokens.chunk(2, dim=1)
            streams.append(run_beside_clean(net, *both))
        elif count:
            streams.append(net.run_layers(net.embed(tokens[:count]), sees=inputs.sees))
        if count < len(tokens):
            shared = open_causally(net)
            streams.append(shared.run_layers(shared.embed(tokens[count:])))
        forbidden = find_forbidden(net, self.masked.process)
        return targets_loss(net, torch.cat(streams), inputs.targets, forbidden)[0]

"""Objectives whose noise changes while they train: softened tokens, powers of tokens.

What is learned of the noise lies in the network while it trains, and is left out of the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.net.transformer import Transformer
from unmask.noise.masked import Masked
from unmask.noise.process import Process
from unmask.noise.schedules import LinearSchedule
from unmask.noise.state_masked import StateMasked
from unmask.noise.uniform import Uniform
from unmask.objectives.batch import Batch
from unmask.objectives.warping import (
    TimeWarp,
    find_signal,
    keep_uniform,
    leave_one_out,
    soften,
)
from unmask.training.objective import LossInputs, Objective
from unmask.training.objective_settings import ObjectiveSettings

WARP, POWERS = "time_warp", "token_powers"
"""Names of what is learned beside a network: a map of times, and how late each token is hidden."""


def add_learned_noise(net: Transformer, settings: ObjectiveSettings) -> None:
    """Give a network what an objective learns of its noise."""
    if settings.warped:
        net.add_module(WARP, TimeWarp())
    if settings.name == "by_token":
        net.register_parameter(POWERS, nn.Parameter(torch.zeros(net.config.logit_rows)))


def leave_learned_noise(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a network alone."""
    return {name: x for name, x in weights.items() if not name.startswith((WARP, POWERS))}


@dataclass(frozen=True)
class CurriculumObjective(Objective):
    """The bound of uniform noise, seen softly at first, through gaussian noise (DUO).

    Soft tokens are mixtures of all token vectors, made on the device: [B, L, V] numbers.
    """

    process: Uniform
    temperature: float

    @classmethod
    def of(cls, settings: ObjectiveSettings, process: Process) -> Self:
        assert isinstance(process, Uniform), "recipes with other noise are refused"
        if not isinstance(process.schedule, LinearSchedule):
            raise UserError("the objective curriculum has linear noise: leave noise.schedule out.")
        return cls(settings, process, settings.softness)

    def at(self, share: float) -> "CurriculumObjective":
        """Softness falls to 0 in the first half of the training."""
        return replace(self, temperature=max(0.0, self.settings.softness * (1 - 2 * share)))

    def prepare(self, batch: Batch, t: Tensor, streams: RowStreams) -> LossInputs:
        return LossInputs(batch, t, streams=streams, softness=self.temperature)

    def loss(self, net: Transformer, inputs: LossInputs) -> Tensor:
        assert inputs.streams is not None
        clean, count = inputs.batch.tokens, self.process.num_tokens
        may, signal = self.find_learnable(inputs.batch), find_signal(inputs.t, count)
        hard, soft = soften(clean, signal, inputs.softness, count, inputs.streams)
        hard, table = torch.where(may, hard, clean), net.embedding.weight
        mixed = soft.to(table.dtype) @ table[:count]
        with net.patch({"embed": lambda x: torch.where(may[..., None], mixed, x).to(x.dtype)}):
            logits = net(hard, t=inputs.t if net.config.time else None)
        # The bound at the time when uniform noise has kept as much as this gaussian noise.
        when = (1 - keep_uniform(signal, count))[:, None].clamp(1e-3, 1 - 1e-3)
        return self.process.nll(logits.float(), clean, hard, when)[may].mean()


@dataclass(frozen=True)
class ByTokenObjective(Objective):
    """The bound of masked noise whose speed depends on the token, and is learned (GenMD4).

    Two draws of the noise for each row; powers lie between 1 / e and e.
    """

    process: Masked

    @classmethod
    def of(cls, settings: ObjectiveSettings, process: Process) -> Self:
        assert isinstance(process, Masked), "recipes with other noise are refused"
        if not isinstance(process.schedule, LinearSchedule) or process.mask_id != (
            process.num_tokens
        ):
            raise UserError(
                "the objective by_token has linear noise and a mask that stands after all tokens: "
                "leave noise.schedule and start.model out."
            )
        return cls(settings, process)

    def prepare(self, batch: Batch, t: Tensor, streams: RowStreams) -> LossInputs:
        return LossInputs(batch, t, streams=streams)

    def loss(self, net: Transformer, inputs: LossInputs) -> Tensor:
        assert inputs.streams is not None
        clean, times = inputs.batch.tokens, inputs.t.double()[:, None]
        powers = net.get_parameter(POWERS).clamp(-1.0, 1.0).exp()
        process, may = StateMasked(powers), self.find_learnable(inputs.batch)
        losses, chances = [], []
        for _ in range(2):
            with torch.no_grad():
                xt = process.corrupt(clean, times, inputs.streams)
                xt = torch.where(may, xt, clean)
            at = xt == process.mask_id
            x = net.run_layers(net.embed(xt, t=inputs.t if net.config.time else None))
            own = times.expand(clean.shape)[at]
            nll = process.nll(net.unembed(x, at).float(), clean[at], xt[at], own)
            rows = at.nonzero()[:, 0]
            each = torch.zeros(len(clean), dtype=torch.float64, device=clean.device)
            losses.append(each.index_add(0, rows, nll.double()) / may.sum(-1).clamp(min=1))
            hidden = process.hidden_chance(clean, times).clamp(1e-9, 1 - 1e-9)
            chance = torch.where(at, hidden.log(), torch.log1p(-hidden))
            chances.append(torch.where(may, chance, 0.0).sum(-1))
        return leave_one_out(torch.stack(losses), torch.stack(chances)).float()


CHANGING: dict[str, type[CurriculumObjective] | type[ByTokenObjective]] = {
    "curriculum": CurriculumObjective,
    "by_token": ByTokenObjective,
}
"""By the names that recipes have for them."""

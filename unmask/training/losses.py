"""One lesson a kind: how a batch is noised on the CPU, and what the network's answer costs."""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask.base.streams import RowStreams
from unmask.net.model import Blueprint
from unmask.net.transformer import Transformer
from unmask.noise.masked import Masked
from unmask.noise.process import Process
from unmask.noise.schedules import Schedule
from unmask.noise.settings import make_process
from unmask.objectives import masked
from unmask.objectives.batch import Batch, allow_noise
from unmask.objectives.discrete import process_loss, score_entropy_loss
from unmask.objectives.masked import find_forbidden, get_recipe, noise_batch
from unmask.objectives.picks import Picks, pick_hidden, pick_next, picked_loss
from unmask.objectives.vectors import gaussian_loss
from unmask.training.recipe import Objective, Recipe


@dataclass(frozen=True)
class Given:
    """All that one forward pass is given, made on the CPU and moved as a whole."""

    batch: Batch
    """As the network sees it where there are picks, clean where the loss noises on the device."""
    t: Float[Tensor, "B"]
    picks: Picks | None = None
    streams: RowStreams | None = None
    sees: Bool[Tensor, "L L"] | None = None

    def to(self, device: torch.device) -> "Given":
        """The same on a device, without waiting for the copies."""
        if device.type == "cpu":
            return self

        def move(x: Tensor) -> Tensor:
            x = x.pin_memory() if device.type == "cuda" else x
            # Times are float64, which not every device has.
            x = x.float() if device.type == "mps" and x.dtype == torch.float64 else x
            return x.to(device, non_blocking=True)

        batch, picks, streams = self.batch, self.picks, self.streams
        ends = (batch.prompt_length, batch.length)
        if picks is not None:
            picks = Picks(move(picks.at), move(picks.targets), move(picks.weights))
        if streams is not None:
            streams = RowStreams(move(streams.keys), streams.pace)
        return Given(
            Batch(move(batch.tokens), *(None if end is None else move(end) for end in ends)),
            move(self.t),
            picks,
            streams,
            None if self.sees is None else move(self.sees),
        )


class Lesson(Protocol):
    """What a kind of model learns from a batch."""

    def find_targets(self, batch: Batch) -> Bool[Tensor, "B L"]:
        """True on the tokens that may have to be predicted."""
        ...

    def count(self, batch: Batch) -> float:
        """What the loss of this batch is a mean over, so that parts of a step add up right."""
        ...

    def prepare(self, batch: Batch, t: Float[Tensor, "B"], streams: RowStreams) -> Given:
        """What the network is given."""
        ...

    def loss(self, net: Transformer, given: Given) -> Float[Tensor, ""]:
        """The loss, with a gradient."""
        ...


@dataclass(frozen=True)
class MaskedLesson:
    """The masked cross-entropy under one of its recipes."""

    process: Masked
    recipe: masked.Recipe
    objective: Objective
    shift: bool = False

    def find_targets(self, batch: Batch) -> Tensor:
        return _allow_noise(batch, self.objective)

    def count(self, batch: Batch) -> float:
        if self.recipe.share == "responses":
            return float((~batch.is_prompt()).sum())
        if self.recipe.share == "noised":
            return float(self.find_targets(batch).sum())
        return float(len(batch.tokens))

    def prepare(self, batch: Batch, t: Tensor, streams: RowStreams) -> Given:
        noised = noise_batch(
            self.process,
            batch,
            t,
            streams,
            self.recipe,
            self.objective.response_only,
            self.objective.filling,
            self.objective.drop_prompt,
        )
        picks = pick_hidden(batch, noised.hidden, noised.weights, self.shift)
        return Given(replace(batch, tokens=noised.xt), t, picks)

    def loss(self, net: Transformer, given: Given) -> Tensor:
        assert given.picks is not None
        x = net.run_layers(net.embed(given.batch.tokens, t=given.t), sees=given.sees)
        return picked_loss(net, x, given.picks, find_forbidden(net, self.process))[0]


@dataclass(frozen=True)
class CausalLesson:
    """The next token."""

    objective: Objective

    def find_targets(self, batch: Batch) -> Tensor:
        return _allow_noise(batch, self.objective) & (batch.places > 0)

    def count(self, batch: Batch) -> float:
        return float(self.find_targets(batch).sum())

    def prepare(self, batch: Batch, t: Tensor, streams: RowStreams) -> Given:
        return Given(batch, t, pick_next(batch, self.find_targets(batch)))

    def loss(self, net: Transformer, given: Given) -> Tensor:
        assert given.picks is not None
        x = net.run_layers(net.embed(given.batch.tokens))
        return picked_loss(net, x, given.picks)[0]


@dataclass(frozen=True)
class ProcessLesson:
    """The bound of a discrete process, or the score entropy of masked noise."""

    process: Process
    objective: Objective

    def find_targets(self, batch: Batch) -> Tensor:
        return _allow_noise(batch, self.objective)

    def count(self, batch: Batch) -> float:
        return float(self.find_targets(batch).sum())

    def prepare(self, batch: Batch, t: Tensor, streams: RowStreams) -> Given:
        return Given(batch, t, streams=streams)

    def loss(self, net: Transformer, given: Given) -> Tensor:
        assert given.streams is not None
        settings = self.objective
        where = {"response_only": settings.response_only, "noise_filling": settings.filling}
        rest = (given.batch, given.t, given.streams)
        if settings.name == "score_entropy":
            assert isinstance(self.process, Masked)
            return score_entropy_loss(net, self.process, *rest, **where)[0]
        drop = settings.drop_prompt
        return process_loss(net, self.process, *rest, drop_prompt=drop, **where)[0]


@dataclass(frozen=True)
class GaussianLesson:
    """The bound of noise on token vectors, or CDCD's cross-entropy."""

    schedule: Schedule
    form: str
    objective: Objective

    def find_targets(self, batch: Batch) -> Tensor:
        return _allow_noise(batch, self.objective)

    def count(self, batch: Batch) -> float:
        return float(self.find_targets(batch).sum())

    def prepare(self, batch: Batch, t: Tensor, streams: RowStreams) -> Given:
        return Given(batch, t, streams=streams)

    def loss(self, net: Transformer, given: Given) -> Tensor:
        assert given.streams is not None
        return gaussian_loss(
            net,
            given.batch,
            given.t,
            given.streams,
            self.schedule,
            "bound" if self.form == "bound" else "cdcd",
            self.objective.self_condition,
            self.objective.response_only,
            self.objective.filling,
        )[0]


def make_lesson(recipe: Recipe, blueprint: Blueprint) -> Lesson:
    """The lesson of a recipe's kind, under the noise that the model will carry."""
    objective, name, noise = recipe.objective, recipe.objective_name, blueprint.noise
    if recipe.kind == "causal":
        return CausalLesson(objective)
    if recipe.kind == "gaussian":
        return GaussianLesson(noise.make_schedule("sigmoid"), name, objective)
    rows = blueprint.config.logit_rows
    process = make_process(recipe.kind, noise, rows, blueprint.mask_id)
    if isinstance(process, Masked) and name != "score_entropy":
        return MaskedLesson(process, get_recipe(name), objective, blueprint.shift)
    return ProcessLesson(process, objective)


def find_least_length(batch: Batch, recipe: Recipe) -> int:
    """The shortest length that rows may be cut to such that something is left to learn.

    Where prompts are not learned, one token more than the longest; a causal model never learns a
    row's first token.
    """
    least = 2 if recipe.kind == "causal" else 1
    after_prompts = recipe.objective.response_only or recipe.objective_name == "smdm_sft"
    if after_prompts and batch.prompt_length is not None:
        least = max(least, int(batch.prompt_length.max()) + 1)
    return min(least, batch.tokens.shape[1])


def _allow_noise(batch: Batch, objective: Objective) -> Tensor:
    return allow_noise(batch, objective.response_only, objective.filling)

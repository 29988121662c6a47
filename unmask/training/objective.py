"""What is minimised: the inputs of a loss, and what every objective has."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.streams import RowStreams
from unmask.net.model import Model
from unmask.net.transformer import Transformer
from unmask.objectives.batch import Batch, allow_noise
from unmask.objectives.targets import Targets
from unmask.training.objective_settings import ObjectiveSettings
from unmask.training.recipe import Recipe


@dataclass(frozen=True)
class LossInputs:
    """The inputs of one forward pass, made on the CPU and moved to the device together."""

    batch: Batch
    """As the network sees it where there are targets, clean where the loss noises on the device."""
    t: Float[Tensor, "B"]
    targets: Targets | None = None
    streams: RowStreams | None = None
    sees: Bool[Tensor, "L L"] | None = None
    positions: Int[Tensor, "B L"] | None = None
    """Positions of the tokens, where they do not stand in their order."""
    softness: float = 0.0
    """The temperature of soft tokens; 0 where tokens are as they are."""

    def to(self, device: torch.device) -> "LossInputs":
        """These inputs on a device, without waiting for the copies."""
        if self.batch.tokens.device.type == device.type:
            return self

        def move(x: Tensor) -> Tensor:
            x = x.pin_memory() if device.type == "cuda" else x
            # Times are float64, which not every device has.
            x = x.float() if device.type == "mps" and x.dtype == torch.float64 else x
            return x.to(device, non_blocking=True)

        def move_any(x: Tensor | None) -> Tensor | None:
            return None if x is None else move(x)

        batch, targets, streams = self.batch, self.targets, self.streams
        starts, ends = move_any(batch.prompt_length), move_any(batch.length)
        if targets is not None:
            targets = Targets(move(targets.at), move(targets.tokens), move(targets.weights))
        if streams is not None:
            streams = RowStreams(move(streams.keys), streams.pace)
        return LossInputs(
            Batch(
                move(batch.tokens), starts, ends, kept=move_any(batch.kept), reading=batch.reading
            ),
            move(self.t),
            targets,
            streams,
            move_any(self.sees),
            move_any(self.positions),
            self.softness,
        )


@dataclass(frozen=True)
class Objective(ABC):
    """What is minimised: the inputs that are made of a batch, and the loss on them.

    Unless one says otherwise, all tokens that may be noised are learned, and alike.
    """

    settings: ObjectiveSettings

    @classmethod
    def make(cls, recipe: Recipe, model: Model) -> Self:
        """The objective of a recipe; for classes of other packages, which may need more."""
        return cls(recipe.objective)

    @abstractmethod
    def prepare(self, batch: Batch, t: Float[Tensor, "B"], streams: RowStreams) -> LossInputs:
        """The inputs of the loss: the batch noised at times t, or what noises it on the device."""

    @abstractmethod
    def loss(self, net: Transformer, inputs: LossInputs) -> Float[Tensor, ""]:
        """The loss, with a gradient."""

    def at(self, share: float) -> Self:
        """The objective when that share of the training is done."""
        return self

    @property
    def noising(self) -> tuple[bool, bool, float, float]:
        """What may be noised (responses only, filling), how often prompts and entities whole."""
        own = self.settings
        return own.response_only, own.filling, own.drop_prompt, own.whole_entities

    def find_learnable(self, batch: Batch) -> Bool[Tensor, "B L"]:
        """True on the tokens that may have to be predicted."""
        return allow_noise(batch, self.settings.response_only, self.settings.filling)

    def count(self, batch: Batch) -> float:
        """How many terms the loss of this batch is the mean of, so that parts of a step add up."""
        return float(self.find_learnable(batch).sum())

"""The ways to learn the toy language, in one shape: a network, a loss, a sampler, a noise."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.base.streams import RowStreams
from unmask.net.config import NetConfig
from unmask.net.transformer import Transformer
from unmask.noise.gaussian import Gaussian
from unmask.noise.hybrid import Hybrid
from unmask.noise.masked import Masked
from unmask.noise.process import Process
from unmask.noise.schedules import Schedule, SigmoidSchedule
from unmask.noise.state_masked import StateMasked
from unmask.noise.uniform import Uniform
from unmask.objectives.batch import Batch
from unmask.objectives.causal import next_token_loss
from unmask.objectives.discrete import process_loss
from unmask.objectives.vectors import gaussian_loss, predict_tokens
from unmask.objectives.warping import (
    TimeWarp,
    find_signal,
    keep_uniform,
    leave_one_out,
    soften,
)
from unmask.sampling.ancestral import draw, sample_ancestral, sample_gaussian
from unmask.toy.language import LENGTH, UNITS

NUM_UNITS = len(UNITS)
MASK = NUM_UNITS
"""The number after the units: the mask, and for the causal twin what stands before a sentence."""

BLIND = NetConfig(
    vocab_size=NUM_UNITS + 1,
    num_logits=NUM_UNITS,
    width=48,
    layers=2,
    heads=2,
    mlp_width=96,
    context=LENGTH + 1,
    # Where all units are masks, rotary positions could not tell one position from another.
    positions="learned",
    mlp="gelu",
)
"""The network of all variants, before it is given the time or anything else."""


@dataclass(frozen=True, kw_only=True)
class Variant(ABC):
    """A way to learn and to draw sentences."""

    config: NetConfig = BLIND
    training_steps: int = 600
    """How long it takes to learn the language."""

    def prepare(self, net: Transformer) -> Transformer:
        """The network with what is learned beside it."""
        return net

    def at(self, share: float) -> "Variant":
        """The variant when that share of the training is done."""
        return self

    @abstractmethod
    def loss(
        self, net: Transformer, x0: Int[Tensor, "B L"], t: Float[Tensor, "B"], streams: RowStreams
    ) -> Float[Tensor, ""]:
        """What is minimised, with a gradient."""

    @abstractmethod
    def sample(self, net: Transformer, streams: RowStreams) -> Int[Tensor, "B L"]:
        """One sentence for each row of the streams."""

    def noise(
        self, net: Transformer, x0: Int[Tensor, "B L"], t: Float[Tensor, "B"], streams: RowStreams
    ) -> Int[Tensor, "B L"] | None:
        """The sentences at times t of the forward process; None where there is none."""
        return None


@dataclass(frozen=True)
class DiscreteVariant(Variant):
    """Noise on units, undone in many steps that may change several units at once."""

    process: Process
    sampling_steps: int = 24

    def loss(self, net: Transformer, x0: Tensor, t: Tensor, streams: RowStreams) -> Tensor:
        return process_loss(net, self.process, Batch(x0), t, streams)[0]

    def sample(self, net: Transformer, streams: RowStreams) -> Tensor:
        denoise = partial(read, net)
        return sample_ancestral(denoise, self.process, LENGTH, self.sampling_steps, streams)

    def noise(self, net: Transformer, x0: Tensor, t: Tensor, streams: RowStreams) -> Tensor:
        return self.process.corrupt(x0, t[:, None], streams)


@dataclass(frozen=True)
class CurriculumVariant(DiscreteVariant):
    """Uniform noise seen softly at first, through the gaussian noise that it stems from (DUO)."""

    temperature: float = 0.3

    def at(self, share: float) -> "CurriculumVariant":
        """Softness falls in a straight line to 0 in the first half of training."""
        return replace(self, temperature=max(0.0, 0.3 * (1 - 2 * share)))

    def loss(self, net: Transformer, x0: Tensor, t: Tensor, streams: RowStreams) -> Tensor:
        hard, soft = soften(x0, find_signal(t, NUM_UNITS), self.temperature, NUM_UNITS, streams)
        vectors = soft.to(net.embedding.weight.dtype) @ net.embedding.weight[:NUM_UNITS]
        with net.patch({"embed": lambda x: vectors}):
            logits = net(hard, t=t)
        # The bound at the time when uniform noise has kept as much as this gaussian noise.
        when = (1 - keep_uniform(find_signal(t, NUM_UNITS), NUM_UNITS))[:, None]
        return self.process.nll(logits, x0, hard, when.clamp(1e-3, 1 - 1e-3)).mean()


@dataclass(frozen=True)
class ByUnitVariant(DiscreteVariant):
    """Masks that come at a time of their own for each unit, and powers that are learned (GenMD4).

    The powers lie in the network, under the name `powers`, before an exponential.
    """

    def prepare(self, net: Transformer) -> Transformer:
        net.register_parameter("powers", nn.Parameter(torch.zeros(NUM_UNITS)))
        return net

    def _process(self, net: Transformer) -> StateMasked:
        powers = net.get_parameter("powers")
        return StateMasked(powers.clamp(-1.0, 1.0).exp())

    def loss(self, net: Transformer, x0: Tensor, t: Tensor, streams: RowStreams) -> Tensor:
        process, losses, chances = self._process(net), [], []
        for _ in range(2):
            with torch.no_grad():
                xt = process.corrupt(x0, t[:, None], streams)
            nll = process.nll(net(xt, t=t), x0, xt, t[:, None]).mean(-1)
            hidden = process.hidden_chance(x0, t[:, None].double()).clamp(1e-9, 1 - 1e-9)
            chance = torch.where(xt == MASK, hidden.log(), torch.log1p(-hidden)).sum(-1)
            losses.append(nll.double())
            chances.append(chance)
        return leave_one_out(torch.stack(losses), torch.stack(chances)).to(x0.device)

    def sample(self, net: Transformer, streams: RowStreams) -> Tensor:
        process = replace(self._process(net), powers=self._process(net).powers.detach().double())
        return sample_ancestral(partial(read, net), process, LENGTH, self.sampling_steps, streams)

    def noise(self, net: Transformer, x0: Tensor, t: Tensor, streams: RowStreams) -> Tensor:
        return self._process(net).corrupt(x0, t[:, None], streams)


@dataclass(frozen=True)
class OneByOne(DiscreteVariant):
    """Masks, filled one at a time in a random order: nothing is lost by drawing units together."""

    def sample(self, net: Transformer, streams: RowStreams) -> Tensor:
        order = streams.uniform(LENGTH).argsort(-1)
        return fill(partial(read, net), self.process.prior(LENGTH, streams), order, streams)


@dataclass(frozen=True)
class CausalVariant(Variant):
    """The autoregressive twin: the same network, each unit from those before it."""

    training_steps: int = 250

    def loss(self, net: Transformer, x0: Tensor, t: Tensor, streams: RowStreams) -> Tensor:
        return next_token_loss(net, Batch(F.pad(x0, (1, 0), value=MASK)))[0]

    def sample(self, net: Transformer, streams: RowStreams) -> Tensor:
        def continue_from(rows: Tensor) -> Tensor:
            return read(net, F.pad(rows, (1, -1), value=MASK))

        order = torch.arange(LENGTH).expand(streams.rows, -1)
        return fill(continue_from, torch.full((streams.rows, LENGTH), MASK), order, streams)


@dataclass(frozen=True)
class GaussianVariant(Variant):
    """Gaussian noise on learned vectors of the units; the noised ones are shown by the nearest."""

    schedule: Schedule
    sampling_steps: int = 24

    def loss(self, net: Transformer, x0: Tensor, t: Tensor, streams: RowStreams) -> Tensor:
        return gaussian_loss(net, Batch(x0), t, streams, self.schedule, form="cdcd")[0]

    def sample(self, net: Transformer, streams: RowStreams) -> Tensor:
        process = self._process(net)
        denoise = partial(predict_tokens, net, process)
        return sample_gaussian(denoise, process, LENGTH, self.sampling_steps, streams)

    def noise(self, net: Transformer, x0: Tensor, t: Tensor, streams: RowStreams) -> Tensor:
        process = self._process(net)
        return process.nearest(process.corrupt(x0, t[:, None].to(process.table.dtype), streams))

    def _process(self, net: Transformer) -> Gaussian:
        return Gaussian(net.latents.table().detach(), self.schedule)


@dataclass(frozen=True)
class WarpedVariant(GaussianVariant):
    """Gaussian noise with times drawn where the loss changes, by a map learned beside it (CDCD)."""

    def prepare(self, net: Transformer) -> Transformer:
        net.add_module("time_warp", TimeWarp())
        return net

    def loss(self, net: Transformer, x0: Tensor, t: Tensor, streams: RowStreams) -> Tensor:
        warp = net.get_submodule("time_warp")
        assert isinstance(warp, TimeWarp)
        times = warp.draw(t)
        loss, terms = gaussian_loss(net, Batch(x0), times, streams, self.schedule, form="cdcd")
        return loss + warp.fit_loss(times, terms.mean(-1))


TIMED = replace(BLIND, time=True)
LATENT, SIGMOID = replace(TIMED, latent_width=8), SigmoidSchedule(start=6.0, stop=-6.0)
VARIANTS: dict[str, Variant] = {
    "gaussian": GaussianVariant(SIGMOID, config=LATENT),
    "warped": WarpedVariant(SIGMOID, config=LATENT),
    "uniform": DiscreteVariant(Uniform(NUM_UNITS, mixture=True), config=TIMED),
    "curriculum": CurriculumVariant(Uniform(NUM_UNITS, mixture=True), config=TIMED),
    "scores": DiscreteVariant(
        Uniform(NUM_UNITS, scores=True), sampling_steps=48, config=TIMED, training_steps=900
    ),
    "hybrid": DiscreteVariant(Hybrid(NUM_UNITS, share_start=0.5)),
    "by_unit": ByUnitVariant(StateMasked(torch.ones(NUM_UNITS)), 64, config=TIMED),
    "masked": OneByOne(Masked(NUM_UNITS, MASK)),
    "causal": CausalVariant(config=replace(BLIND, causal=True)),
}
"""All variants, those that take longest first, so that side by side they end together."""


def read(
    net: Transformer, rows: Int[Tensor, "B L"], t: Float[Tensor, "B"] | None = None
) -> Float[Tensor, "B L V"]:
    """Logits of rows that are all at the same time: equal ones, most of them, are read once."""
    # Rows as numbers are sorted in a tenth of the time; parts of 1,024 stay in the cache.
    base = NUM_UNITS + 1
    powers = base ** torch.arange(rows.shape[1] - 1, -1, -1)
    codes, places = (rows * powers).sum(-1).unique(return_inverse=True)
    parts = (codes[:, None] // powers % base).split(1024)
    logits = [net(part, t=None if t is None else t[: len(part)]) for part in parts]
    return torch.cat(logits)[places]


@torch.no_grad()
def fill(
    predict_units: Callable[[Tensor], Tensor],
    rows: Int[Tensor, "B L"],
    order: Int[Tensor, "B L"],
    streams: RowStreams,
) -> Int[Tensor, "B L"]:
    """The rows with one position after the other drawn from the logits at it."""
    for place in order.split(1, dim=1):
        logits = predict_units(rows).take_along_dim(place[..., None], dim=1)
        rows = rows.scatter(1, place, draw(logits.double().log_softmax(-1), streams))
    return rows

"""Lenses fitted in closed form: what a state says of the token that is committed now or later.

    logit lens       head(x)           the stream after a layer, read as if it were the last
    tuned lens       head(A x + b)     fitted to the last layer's stream at the same step
    later-step lens  head(A x + b)     to the last layer's stream at the step that commits the token
    shuffled lens    head(A x + b)     to that stream of other positions, drawn at random: a control

    A = Cov(y, x) (Cov(x, x) + λ I)⁻¹,  b = mean(y) − A mean(x),  λ = ridge · mean variance of x

There is a map for each layer and band of mask shares. Only positions that are masked are read, and
of what is written after a text's end nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.seeds import torch_stream
from unmask.evaluation.chain import log_softmax
from unmask.net.model import Model
from unmask.representation.readout import run_by_layer
from unmask.sampling.trajectory import Trajectory

LENSES = ("logit", "tuned", "later", "shuffled")
POSITIONS_AT_ONCE = 2048


@dataclass(frozen=True)
class MaskedStates:
    """The streams of N masked positions, each at a step of writing a text."""

    text: Int[Tensor, "N"]
    step: Int[Tensor, "N"]
    """The denoising step, from 1, that sees the position masked."""
    ahead: Int[Tensor, "N"]
    """How many steps later it is committed; 0: in this one."""
    share: Float[Tensor, "N"]
    """The share of the canvas that is masked."""
    written: Int[Tensor, "N"]
    """The token that is committed there."""
    x: Float[Tensor, "layers N D"]
    """The stream after every layer, where the position is predicted."""
    later: Float[Tensor, "N D"]
    """The stream after the last layer, at the step that commits the position."""

    def pick(self, rows: Tensor) -> "MaskedStates":
        """Some of the positions."""
        one = (getattr(self, name)[rows] for name in ("text", "step", "ahead", "share", "written"))
        return MaskedStates(*one, self.x[:, rows], self.later[rows])


@dataclass(frozen=True)
class StreamMap:
    """A linear map from the stream after a layer to that after the last one."""

    weight: Float[Tensor, "E D"]
    bias: Float[Tensor, "E"]

    def __call__(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "N E"]:
        return x @ self.weight.T + self.bias


Maps = dict[tuple[str, int, int], StreamMap]
"""By lens, layer and band of mask shares."""


@torch.inference_mode()
def read_masked(model: Model, drawn: Trajectory) -> MaskedStates:
    """The streams at all masked positions of all steps of a trajectory that keeps its states."""
    if drawn.states is None:
        raise UserError("the trajectory keeps no states: sample it with keep_states=True.")
    mask, states = model.require_mask(), drawn.states.to(model.device)  # [S + 1, B, L]
    end, length = states[-1], states.shape[-1]
    # 1. Positions of a text's own: those that were masked, up to its end, that token included.
    is_open = (states[:-1] == mask) & (end != mask)  # [S, B, L]
    if model.tokenizer is not None:
        ends = (end == model.tokenizer.end_id) & is_open[0]
        is_open &= ends.cumsum(-1) - ends.long() == 0
    rows = torch.tensor([model.row_of(place) for place in range(length)], device=model.device)
    commits = is_open.sum(0)  # the step that commits a position, from 1; 0: it was given
    # 2. Of each step its masked positions' streams, after every layer.
    parts, last = [], torch.zeros(*end.shape, model.net.config.width, device=model.device)
    for step, canvas in enumerate(states[:-1], 1):
        here = is_open[step - 1]
        if not bool(here.any()):
            continue
        text, place = here.nonzero(as_tuple=True)
        with model.net.taps.in_step(step):
            x = torch.stack([each[text, rows[place]] for each in run_by_layer(model, canvas)])
        last[text, place] = x[-1].to(last.dtype)  # what stays is of the step that commits
        share = (canvas == mask).float().mean(-1)[text]
        ahead, steps = commits[text, place] - step, torch.full_like(text, step)
        parts.append((text, place, steps, ahead, share, end[text, place], x))
    if not parts:
        raise UserError("no position of the texts was masked at any step: give prompts to go on.")
    text, place, steps, ahead, share, written = (
        torch.cat([part[i] for part in parts]) for i in range(6)
    )
    x = torch.cat([part[6] for part in parts], 1).float()
    return MaskedStates(text, steps, ahead, share, written, x, last[text, place].float())


def join_masked(parts: Sequence[MaskedStates]) -> MaskedStates:
    """Several readings as one."""
    names = ("text", "step", "ahead", "share", "written")
    one = (torch.cat([getattr(part, name) for part in parts]) for name in names)
    x = torch.cat([part.x for part in parts], 1)
    return MaskedStates(*one, x, torch.cat([part.later for part in parts]))


def find_bands(share: Float[Tensor, "N"], number: int) -> Int[Tensor, "N"]:
    """The band of each share of masks, of so many equal ones from 0 to 1."""
    return (share * number).ceil().long().clamp(1, number) - 1


def fit_maps(states: MaskedStates, bands: int, ridge: float, seed: int = 0) -> Maps:
    """The maps of all fitted lenses; of a band without positions there is none."""
    maps: Maps = {}
    band_of = find_bands(states.share, bands)
    for band in range(bands):
        rows = (band_of == band).nonzero()[:, 0]
        if not len(rows):
            continue
        own = states.pick(rows)
        order = torch.randperm(len(rows), generator=torch_stream(seed, "shuffled", band))
        targets = {
            "tuned": own.x[-1],
            "later": own.later,
            "shuffled": own.later[order.to(own.later.device)],
        }
        for layer, x in enumerate(own.x):
            fitted = fit_map(x, torch.cat(list(targets.values()), -1), ridge)
            pieces = zip(fitted.weight.chunk(3), fitted.bias.chunk(3), strict=True)
            for name, (weight, bias) in zip(targets, pieces, strict=True):
                maps[name, layer, band] = StreamMap(weight, bias)
    return maps


def fit_map(x: Float[Tensor, "N D"], y: Float[Tensor, "N E"], ridge: float) -> StreamMap:
    """The map from x to y of the least squares, with a penalty on its weights but not its bias."""
    x, y = x.double(), y.double()
    mean_x, mean_y = x.mean(0), y.mean(0)
    centred = x - mean_x
    covariance = centred.T @ centred / len(x)
    penalty = ridge * covariance.diagonal().mean().clamp_min(1e-12)
    covariance.diagonal().add_(penalty)
    weight = torch.linalg.solve(covariance, centred.T @ (y - mean_y) / len(x)).T
    return StreamMap(weight.float(), (mean_y - weight @ mean_x).float())


@torch.inference_mode()
def read_lenses(
    model: Model, states: MaskedStates, maps: Maps, bands: int
) -> Iterator[tuple[str, int, Tensor, Tensor]]:
    """For each lens and layer: log p of the token that is committed, and whether it is likeliest.

    Positions of a band without a map are read by none of the fitted lenses (NaN).
    """
    band_of = find_bands(states.share, bands)
    for layer, x in enumerate(states.x):
        for lens in LENSES:
            streams = x.clone() if lens == "logit" else torch.full_like(x, float("nan"))
            for band in range(bands) if lens != "logit" else ():
                if (own := maps.get((lens, layer, band))) is not None:
                    streams[band_of == band] = own(x[band_of == band])
            logp, hits = _read(model, streams, states.written)
            yield lens, layer, logp, hits


def _read(model: Model, x: Tensor, written: Tensor) -> tuple[Tensor, Tensor]:
    """log p of the tokens under the head, and whether each is the likeliest."""
    parts: list[tuple[Tensor, Tensor]] = []
    dtype = model.net.embedding.weight.dtype
    for begin in range(0, len(x), POSITIONS_AT_ONCE):
        some, tokens = x[begin : begin + POSITIONS_AT_ONCE], written[begin:][:POSITIONS_AT_ONCE]
        logp = log_softmax(model, model.net.unembed(some[None].to(dtype)))[0]
        own = logp.gather(-1, tokens[:, None])[:, 0]
        hits = (logp.argmax(-1) == tokens).float()
        parts.append((own, torch.where(own.isnan(), own, hits)))
    logp, hits = (torch.cat(each) for each in zip(*parts, strict=True))
    return logp, hits


def average_texts(
    states: MaskedStates,
    group: Int[Tensor, "N"],
    logp: Float[Tensor, "N"],
    hits: Float[Tensor, "N"],
) -> Iterator[dict[str, Any]]:
    """For each text and group of its positions: shares of hits and means of log p."""
    known = ~logp.isnan()
    pairs, place = torch.stack((states.text, group), 1)[known].unique(dim=0, return_inverse=True)
    values = torch.stack((torch.ones_like(logp), hits, logp), 1)[known].double()
    sums = torch.zeros(len(pairs), 3, dtype=torch.float64, device=logp.device)
    sums.index_add_(0, place, values)
    for (text, number), (count, right, nats) in zip(pairs.tolist(), sums.tolist(), strict=True):
        means = {"said": right / count, "logp": nats / count}
        yield {"text": text, "group": number, "positions": int(count)} | means

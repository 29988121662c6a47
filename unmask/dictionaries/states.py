"""States of a network's sites, run no further than the last of them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.net.model import Model


@dataclass(frozen=True)
class StateBatch:
    """States of N positions, and where each comes from."""

    states: dict[str, Float[Tensor, "N F"]]
    """By site; what has several axes, such as heads, is laid out as one row of numbers."""
    token: Int[Tensor, "N"]
    """What stands at the position: the mask where nothing is written yet."""
    written: Int[Tensor, "N"]
    """What stands there in the end: the clean token, or the one that is committed."""
    text: Int[Tensor, "N"]
    """Which of the given texts, counted from 0; rows of several trajectories run on."""
    position: Int[Tensor, "N"]
    step: Int[Tensor, "N"]
    """The denoising step that sees this canvas, from 1; 0 of noised texts."""
    share: Float[Tensor, "N"]
    """The share of the canvas that is masked."""
    is_masked: Bool[Tensor, "N"]

    def __len__(self) -> int:
        return len(self.token)

    @property
    def x(self) -> Float[Tensor, "N F"]:
        """The states at the only site, or at the first one."""
        return next(iter(self.states.values()))

    def pick(self, rows: Tensor | slice) -> "StateBatch":
        """Some of the positions."""
        states = {site: x[rows] for site, x in self.states.items()}
        return StateBatch(states, *(getattr(self, each.name)[rows] for each in fields(self)[1:]))


@dataclass(frozen=True)
class StateCanvas:
    """One canvas that the network is run on."""

    text: int
    step: int
    tokens: Int[Tensor, "L"]
    written: Int[Tensor, "L"]
    time: float | None = None
    """When it was noised; None where the share of its masks says so."""


def run_canvases(model: Model, sites: Sequence[str], canvases: Sequence[StateCanvas]) -> StateBatch:
    """The states of all positions of some canvases of one step, whatever their lengths."""
    # 1. Canvases as rows of one length; what is after a row's end is not real.
    device, lengths = model.device, [len(each.tokens) for each in canvases]
    padding = model.mask_id if model.mask_id is not None else 0
    tokens = torch.full((len(canvases), max(lengths)), padding, device=device)
    written = tokens.clone()
    for row, (canvas, length) in enumerate(zip(canvases, lengths, strict=True)):
        tokens[row, :length] = canvas.tokens.to(device)
        written[row, :length] = canvas.written.to(device)
    ends = torch.tensor(lengths, device=device)[:, None]
    real = torch.arange(max(lengths), device=device) < ends  # [R, L]
    # 2. Layers up to the last site.
    times = [canvas.time for canvas in canvases]
    t = None if None in times or not model.net.config.time else torch.tensor(times, device=device)
    step = canvases[0].step
    with model.net.taps.in_step(step or None), model.net.capture(*sites) as taken:
        run_to(model, sites[-1], tokens, None if bool(real.all()) else real, t)
    # 3. One row for each real position.
    masked = (tokens == (-1 if model.mask_id is None else model.mask_id)) & real
    share = masked.sum(-1, keepdim=True) / ends
    texts = torch.tensor([canvas.text for canvas in canvases], device=device)
    places = torch.arange(max(lengths), device=device)
    return StateBatch(
        {site: taken[site].detach()[real].flatten(1) for site in sites},
        tokens[real],
        written[real],
        texts[:, None].expand_as(tokens)[real],
        places.expand_as(tokens)[real],
        torch.full_like(tokens, step)[real],
        share.expand_as(tokens)[real],
        masked[real],
    )


def run_to(
    model: Model,
    site: str,
    tokens: Int[Tensor, "R L"],
    real: Bool[Tensor, "R L"] | None = None,
    t: Float[Tensor, "R"] | None = None,
) -> None:
    """Run the network as far as a site, past whatever waits on the way."""
    net, layers = model.net, model.net.config.layers
    stop = 0 if site == "embed" else layers
    if site.startswith("layers."):
        stop = int(site.split(".")[1]) + 1
    time = model.convert_time(model.find_time(tokens, real) if t is None else t)
    condition = net.make_condition(time)
    x = net.embed(tokens, real, None, time)
    x = net.run_layers(x, 0, stop, real, condition=condition) if stop else x
    if site in ("final", "logits"):
        net.unembed(model.align(x, real), condition=condition)


def join_batches(parts: Sequence[StateBatch]) -> StateBatch:
    """Several batches as one."""
    states = {site: torch.cat([part.states[site] for part in parts]) for site in parts[0].states}
    rest = (each.name for each in fields(StateBatch)[1:])
    return StateBatch(
        states, *(torch.cat([getattr(part, name) for part in parts]) for name in rest)
    )

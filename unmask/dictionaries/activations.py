"""`unmask.activations`: states of a site, batch by batch, with the place that each comes from.

    texts → blocks of texts, shuffled by epoch → canvases, noised or on their way from mask to text
    → the layers up to the last site → the states of a block, shuffled → batches

A block is what the shuffle sees at once, and all that is held in memory. Which texts it has, their
noise and the order of its states are functions of the seed and the block's number alone: resuming
is to ask for a place again, and processes share the work by taking every n-th block.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.base.config import adjust, check_arguments
from unmask.base.errors import UserError
from unmask.base.seeds import torch_stream
from unmask.base.streams import RowStreams
from unmask.dictionaries.states import StateBatch, StateCanvas, join_batches, run_canvases
from unmask.net.model import Model
from unmask.net.sites import PAIRED, find_sites, site_names
from unmask.sampling.canvas import Prompt, check_model, encode_prompt, list_prompt_rows
from unmask.sampling.settings import Sampling
from unmask.sampling.texts import infill, sample
from unmask.sampling.trajectory import Trajectory

CanvasSource = Literal["noised", "denoising"]


@dataclass(frozen=True)
class Harvest:
    """What is read, of what, and in which order."""

    model: Model
    sites: tuple[str, ...]
    texts: tuple[Any, ...]
    """Texts or token ids; of trajectories the states [steps + 1, L] of each row."""
    source: CanvasSource = "noised"
    batch: int = 1024
    buffer: int = 256
    """Canvases of a block."""
    rows: int = 64
    """Canvases of a forward pass."""
    length: int | None = None
    seed: int = 0
    epochs: int | None = 1
    shard: tuple[int, int] = (0, 1)
    sampling: Sampling = field(default_factory=Sampling)

    @property
    def texts_of_block(self) -> int:
        """Texts of a block: one canvas each, or one for each of their steps."""
        steps = 1
        if self.source == "denoising":
            steps = self.sampling.steps
            if _is_drawn(self.texts[0]):
                steps = max(len(states) - 1 for states in self.texts)
        return max(1, self.buffer // max(1, steps))

    @property
    def blocks_of_epoch(self) -> int:
        return -(-len(self.texts) // self.texts_of_block)


class ActivationStream:
    """Batches of states, one after the other; `place` says which comes next.

    A stream that is given the place of another goes on where that one stopped, with the same
    numbers to the bit on one machine.
    """

    def __init__(self, harvest: Harvest, place: tuple[int, int] = (0, 0)):
        self.harvest = harvest
        self.place = place
        """The block, counted over all epochs and shards, and how many of its batches were taken."""

    def __iter__(self) -> Iterator[StateBatch]:
        own = self.harvest
        first, step = own.shard
        while own.epochs is None or self.place[0] < own.epochs * own.blocks_of_epoch:
            block, taken = self.place
            if block % step != first:
                self.place = block + 1, 0
                continue
            batches = list(_cut(own, block))
            for number in range(taken, len(batches)):
                self.place = (block, number + 1) if number + 1 < len(batches) else (block + 1, 0)
                yield batches[number]
            if not batches:
                self.place = block + 1, 0


@check_arguments(
    leave_out=("model", "source"),
    batch=(1, 2**24),
    buffer=(1, 2**24),
    rows=(1, 2**16),
    seed=(0, 2**63 - 1),
    epochs=(1, 2**31),
    length=(2, 2**20),
)
def activations(
    model: Model,
    site: str | Sequence[str],
    source: Any,
    *,
    states: CanvasSource = "noised",
    batch: int = 1024,
    buffer: int = 256,
    rows: int = 64,
    length: int | None = None,
    seed: int = 0,
    epochs: int | None = 1,
    shard: tuple[int, int] = (0, 1),
    place: tuple[int, int] = (0, 0),
    **sampling: Any,
) -> ActivationStream:
    """An iterator over states at a site, with token, position, step and mask share of each.

    The network stops after the last site that is asked for. Patches inside of it are honoured.
    Nothing is written to disk, and no more than a block of `buffer` canvases is held at once.

    Args:
        model: What is read. Texts of a model without masks are read as they stand.
        site: A site or several, `*` standing for any layer or part; all but scores and patterns of
            attention, whose positions are pairs.
        source: Texts or rows of token ids; for denoising also prompts, texts with masks, or
            trajectories that keep their states.
        states: "noised": each text is noised once in an epoch, at a time drawn evenly, as training
            does. "denoising": the canvases that a sampler's steps see.
        batch: States of a batch; the batches of a block are about as large as each other, and none
            is larger.
        buffer: Canvases that are shuffled together.
        rows: Canvases of one forward pass.
        length: Noised texts are filled with end tokens up to so many positions, as this project's
            models are trained; prompts are continued to it.
        seed: Of order, noise and sampling.
        epochs: How often all texts are gone through; None for without end.
        shard: Which process this is, and of how many: (1, 4) takes every fourth block.
        place: Where to begin, as another stream's `place` says.
        sampling: Settings of `unmask.sample` and `unmask.infill`, for denoising.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> stream = unmask.activations(model, "layers.2.resid_out", ["We sat down beside the river."])
    >>> states = next(iter(stream))
    >>> states.x.shape, len(states.token)
    (torch.Size([7, 256]), 7)
    """
    check_model(model)
    names = [site] if isinstance(site, str) else list(site)
    if not names or not all(isinstance(name, str) for name in names):
        raise UserError(f"the sites are {site!r:.60}: expected names such as layers.0.resid_out.")
    sites = _find_sites(model, names)
    if states == "denoising":
        model.require_mask()
    elif sampling:
        raise UserError(
            f"{', '.join(sampling)} were given with noised states, for which nothing is sampled: "
            'ask for states="denoising", or leave them out.'
        )
    given = _list_texts(source, states)
    if not given:
        raise UserError("no texts were given: expected texts, rows of token ids or trajectories.")
    if not 0 <= shard[0] < shard[1]:
        raise UserError(f"the shard is {shard}: expected (i, n) with i from 0 to n - 1.")
    if min(place) < 0:
        raise UserError(f"the place is {place}: expected a block and a number of batches, from 0.")
    drawn = adjust(activations, Sampling, None, {"seed": seed, "length": length} | sampling)
    harvest = Harvest(
        model, sites, given, states, batch, buffer, rows, length, seed, epochs, shard, drawn
    )
    return ActivationStream(harvest, place)


def _find_sites(model: Model, names: Sequence[str]) -> tuple[str, ...]:
    """The sites that are named, in the order in which they fire."""
    named = {site for name in names for site in find_sites(name, model.net.config.layers)}
    if paired := [site for site in sorted(named) if site.endswith(PAIRED)]:
        raise UserError(
            f"site {paired[0]} was asked for, which has a number for each pair of positions: "
            "expected sites with a state at each position, such as layers.0.resid_out."
        )
    return tuple(site for site in site_names(model.net.config.layers) if site in named)


def _list_texts(source: Any, states: CanvasSource) -> tuple[Any, ...]:
    """One entry for each text; a trajectory of many rows has one for each row."""
    many = source if isinstance(source, list | tuple) else [source]
    drawn = [each for each in many if isinstance(each, Trajectory)]
    if not drawn:
        return tuple(list_prompt_rows(source))
    if states == "noised" or len(drawn) < len(many):
        raise UserError(
            "trajectories were given for noised states, or among texts: expected texts, or "
            'trajectories alone with states="denoising".'
        )
    if any(each.states is None for each in drawn):
        raise UserError("a trajectory keeps no states: sample it with keep_states=True.")
    return tuple(states for each in drawn for states in _split_rows(each))


def _is_drawn(text: Any) -> bool:
    return isinstance(text, Tensor) and text.ndim == 2


def _split_rows(drawn: Trajectory) -> list[Int[Tensor, "states L"]]:
    """The states of each row, up to the row's own end."""
    assert drawn.states is not None
    ends = drawn.lengths.tolist()
    return [drawn.states[:, row, :end].cpu() for row, end in enumerate(ends)]


def _cut(harvest: Harvest, block: int) -> Iterator[StateBatch]:
    """The batches of a block."""
    canvases = list(_lay_out(harvest, block))
    # 1. Canvases of one step run together, as they would in a sampler.
    with torch.no_grad():
        parts = [
            run_canvases(harvest.model, harvest.sites, together[begin : begin + harvest.rows])
            for step in sorted({canvas.step for canvas in canvases})
            for together in [[canvas for canvas in canvases if canvas.step == step]]
            for begin in range(0, len(together), harvest.rows)
        ]
    if not parts:
        return
    whole = join_batches(parts)
    # 2. Their states are shuffled, and cut into batches of about one size.
    stream = torch_stream(harvest.seed, "states", block)
    order = torch.randperm(len(whole), generator=stream).to(whole.token.device)
    for chosen in order.tensor_split(-(-len(whole) // harvest.batch)):
        yield whole.pick(chosen)


def _lay_out(harvest: Harvest, block: int) -> Iterator[StateCanvas]:
    """The canvases of a block."""
    epoch, number = divmod(block, harvest.blocks_of_epoch)
    stream = torch_stream(harvest.seed, "texts", epoch)
    order = torch.randperm(len(harvest.texts), generator=stream)
    size = harvest.texts_of_block
    chosen = order[number * size : (number + 1) * size].tolist()
    if harvest.source == "denoising":
        yield from _denoise(harvest, epoch, chosen)
        return
    for text in chosen:
        clean = torch.tensor(_encode_whole(harvest, harvest.texts[text]))
        yield _noise(harvest, epoch, text, clean)


def _encode_whole(harvest: Harvest, text: Prompt) -> list[int]:
    """A text with what the tokenizer puts around it, filled with end tokens to the length."""
    model, length = harvest.model, harvest.length
    ids = encode_prompt(model, text, added="both")
    if length is not None and len(ids) < length:
        ids = ids + [model.require_tokenizer().end_id] * (length - len(ids))
    if not ids or len(ids) > (length or model.net.config.context):
        raise UserError(
            f"a text has {len(ids)} tokens: expected 1 to {length or model.net.config.context}; "
            "cut it, or leave it out."
        )
    return ids


def _noise(harvest: Harvest, epoch: int, text: int, clean: Int[Tensor, "L"]) -> StateCanvas:
    """A text noised at its own time, as a pure function of seed, epoch and text."""
    model = harvest.model
    if model.mask_id is None:
        return StateCanvas(text, 0, clean, clean)
    streams = RowStreams.make(harvest.seed, [("noise", epoch, text)])
    time = streams.at("time").uniform(1)  # [1, 1]
    noised = model.make_process().corrupt(clean[None], time, streams.at("values"))[0]
    if (kept := model.find_kept(clean[None])) is not None:
        noised = torch.where(kept[0], clean, noised)
    return StateCanvas(text, 0, noised, clean, float(time))


def _denoise(harvest: Harvest, epoch: int, chosen: Sequence[int]) -> Iterator[StateCanvas]:
    """The canvas that each step saw, of every text that is chosen."""
    given = [harvest.texts[text] for text in chosen]
    drawn = given if _is_drawn(given[0]) else _sample(harvest, epoch, given)
    for text, states in zip(chosen, drawn, strict=True):
        for step, state in enumerate(states[:-1], 1):
            if bool((state == harvest.model.mask_id).any()):  # others may need more steps
                yield StateCanvas(text, step, state, states[-1])


def _sample(harvest: Harvest, epoch: int, given: Sequence[Any]) -> list[Int[Tensor, "states L"]]:
    """The states of texts that the model writes."""
    model = harvest.model
    settings = replace(harvest.sampling, seed=harvest.sampling.seed + epoch, keep_states=True)
    is_open = [
        model.require_mask() in (model.encode(each).ids if isinstance(each, str) else list(each))
        for each in given
    ]
    if any(is_open) != all(is_open):
        raise UserError(
            "texts with masks were given beside texts without: expected masks in all, which are "
            "filled, or in none, so that all are continued."
        )
    if all(is_open):
        return _split_rows(infill(model, given, replace(settings, length=None)))
    return _split_rows(sample(model, given, settings))

"""What texts are steered towards: a direction of a site's states, and when it forms.

    direction  mean state of lines that have the target, minus that of lines that lack it; or a
               feature's, or a given one; scaled to length 1
    gap(s)     how far apart both kinds of lines lie along it as step s sees them, in their spread
    forms      the fewest steps whose rises of the gap make up half of the widest one

Lines are read as a sampler's steps see them: at step s of S a share 1 − (s − 1)/S of the canvas is
masked, in random places. What is added at a step is strength · S/|T| · size · direction, where T
are the steps of the schedule and size is the mean length of a state: all schedules of one strength
add as much to a text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.seeds import torch_stream
from unmask.data.words import find_words, join_words
from unmask.dictionaries.dictionary import Dictionary
from unmask.dictionaries.states import StateBatch, StateCanvas, run_canvases
from unmask.dictionaries.steering import choose_forming_steps
from unmask.net.model import Model
from unmask.sampling.canvas import encode_prompt

ROWS_AT_ONCE = 64
FLOOR = 1e-4
"""The least spread of lines that a gap is counted in, in lengths of a state."""


@dataclass(frozen=True)
class Heading:
    """A direction, how long states are, and how far apart it sets lines at each step."""

    direction: Float[Tensor, "D"]
    size: float
    gaps: tuple[float, ...]

    @property
    def forming(self) -> list[int]:
        """The steps in which the direction forms, from 1."""
        return choose_forming_steps(dict(enumerate(self.gaps, 1)))


def has_words(text: str, words: Sequence[str]) -> bool:
    """Whether a text has any of some words or phrases, whatever their case and punctuation."""
    joined = join_words(text)
    return any(find_words(joined, join_words(word)) for word in words)


@torch.inference_mode()
def find_heading(
    model: Model,
    site: str,
    sides: tuple[Sequence[str], Sequence[str]],
    steps: int,
    length: int,
    direction: Float[Tensor, "D"] | None = None,
    seed: int = 0,
) -> Heading:
    """The direction of a target, or the one given; `sides` are lines that have it or lack it."""
    lines = [*sides[0], *sides[1]]
    is_with = torch.tensor([True] * len(sides[0]) + [False] * len(sides[1]), device=model.device)
    means, lengths = [], []
    for step in range(1, steps + 1):
        share = 1 - (step - 1) / steps
        sums = torch.zeros(len(lines), model.net.config.width, device=model.device)
        counts = torch.zeros(len(lines), device=model.device)
        for batch in _read_lines(model, site, lines, length, share, step, seed):
            sums.index_add_(0, batch.text, batch.x.float())
            counts.index_add_(0, batch.text, torch.ones_like(batch.text, dtype=torch.float32))
            lengths.append(batch.x.float().norm(dim=-1))
        means.append(sums / counts.clamp_min(1)[:, None])
    x, size = torch.stack(means), float(torch.cat(lengths).mean())  # [S, lines, D]
    apart = x[:, is_with].mean((0, 1)) - x[:, ~is_with].mean((0, 1))
    chosen = apart if direction is None else direction.to(x)
    if not bool(chosen.isfinite().all()) or not float(chosen.norm()):
        raise UserError("the direction has no length: expected a finite vector other than 0.")
    unit = chosen / chosen.norm()
    along = x @ unit  # [S, lines]
    ours, theirs = along[:, is_with], along[:, ~is_with]
    # Where all is masked lines differ by rounding alone: that is no gap.
    spread = ((ours.var(1) + theirs.var(1)) / 2).sqrt().clamp_min(FLOOR * size)
    gaps = ((ours.mean(1) - theirs.mean(1)) / spread).tolist()
    return Heading(unit, size, tuple(gaps))


@torch.inference_mode()
def count_firing(
    model: Model, site: str, dictionary: Dictionary, lines: Sequence[str], length: int
) -> Float[Tensor, "lines F"]:
    """The share of each line's positions at which each feature fires, nothing being masked."""
    fires = torch.zeros(len(lines), dictionary.size, device=model.device)
    counts = torch.zeros(len(lines), device=model.device)
    for batch in _read_lines(model, site, lines, length, 0.0, 0):
        fires.index_add_(0, batch.text, (dictionary.encode(batch.x) > 0).float())
        counts.index_add_(0, batch.text, torch.ones_like(batch.text, dtype=torch.float32))
    return fires / counts.clamp_min(1)[:, None]


def _read_lines(
    model: Model,
    site: str,
    lines: Sequence[str],
    length: int,
    share: float,
    step: int,
    seed: int = 0,
) -> list[StateBatch]:
    """States at the lines' own positions, on canvases filled with end tokens as in training."""
    mask, end = model.require_mask(), model.require_tokenizer().end_id
    canvases, own = [], []
    for number, line in enumerate(lines):
        ids = encode_prompt(model, line, added="both")[:length]
        own.append(len(ids))
        written = torch.tensor([*ids, *[end] * (length - len(ids))])
        order = torch.rand(length, generator=torch_stream(seed, "line", number)).argsort().argsort()
        tokens = torch.where(order < round(share * length), mask, written)
        canvases.append(StateCanvas(number, step, tokens, written, share))
    ends, read = torch.tensor(own, device=model.device), []
    for begin in range(0, len(canvases), ROWS_AT_ONCE):
        batch = run_canvases(model, [site], canvases[begin : begin + ROWS_AT_ONCE])
        read.append(batch.pick(batch.position < ends[batch.text]))
    return read

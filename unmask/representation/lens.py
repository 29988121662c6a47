"""`unmask.logit_lens`: what a model would say after each layer, at each denoising step.

The stream after a layer is read as if it were the last: normalised and multiplied by the head
(nostalgebraist 2020). The last layer says what the model itself says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.config import check_arguments
from unmask.base.errors import UserError
from unmask.base.extras import Shown
from unmask.data.tokenizer import Tokenizer
from unmask.evaluation.chain import log_softmax
from unmask.net.model import Model
from unmask.representation.readout import run_by_layer
from unmask.sampling.canvas import Prompt, encode_pattern, encode_prompt
from unmask.sampling.state import find_entropy
from unmask.sampling.texts import infill, sample
from unmask.sampling.trajectory import Trajectory, show_token


@dataclass(frozen=True, repr=False)
class Lens(Shown):
    """What each layer would say at some positions, at each state that was read."""

    steps: tuple[int, ...]
    """The denoising steps, counted from 1, whose states were read."""
    positions: tuple[int, ...]
    states: Int[Tensor, "S L"]
    """The canvas that each step saw."""
    target: Int[Tensor, "P"]
    """The token that is followed at each position: what was written there in the end."""
    logp: Float[Tensor, "S layers P"]
    """log p of the followed token."""
    rank: Int[Tensor, "S layers P"]
    """Its rank, 1 for the likeliest token."""
    entropy: Float[Tensor, "S layers P"]
    """The entropy of what a layer would say, in nats."""
    ids: Int[Tensor, "S layers P k"]
    """The likeliest tokens."""
    p: Float[Tensor, "S layers P k"]
    """Their probabilities."""
    tokenizer: Tokenizer | None = None

    def at(self, position: int, step: int | None = None) -> list[list[tuple[str, float]]]:
        """For each layer the likeliest tokens at a position, with their probabilities."""
        step = self.steps[0] if step is None else step
        if position not in self.positions or step not in self.steps:
            raise UserError(
                f"position {position} at step {step} was not read: expected one of the positions "
                f"{_list(self.positions)}, at one of the steps {_list(self.steps)}."
            )
        i, j = self.steps.index(step), self.positions.index(position)
        return [
            [(show_token(token, self.tokenizer), p) for token, p in zip(*both, strict=True)]
            for both in zip(self.ids[i, :, j].tolist(), self.p[i, :, j].tolist(), strict=True)
        ]

    def __repr__(self) -> str:
        layers = self.logp.shape[1]
        return (
            f"Lens({len(self.steps)} step{'s' * (len(self.steps) != 1)} × {layers} layers × "
            f"{len(self.positions)} positions, following {self.followed!r})"
        )

    @property
    def followed(self) -> str:
        """The followed tokens as a text."""
        return "".join(show_token(token, self.tokenizer) for token in self.target.tolist()).strip()


@torch.inference_mode()
@check_arguments(leave_out=("text",), top=(1, 1000))
def logit_lens(
    model: Model,
    text: Prompt | Trajectory,
    *,
    steps: int | None = None,
    positions: Sequence[int] | None = None,
    row: int = 0,
    top: int = 5,
    **sampling: Any,
) -> Lens:
    """What the model would say after each layer, at each denoising step of a text.

    A patch inside the layers is honoured; one at `final` or `logits` is refused, since these are
    read once for every layer.

    Args:
        model: Masked or causal.
        text: A text with masks, such as "We met [MASK]*3 there.", its token ids, or a trajectory
            that keeps its states. For a causal model a text to read as it stands.
        steps: Un-mask the text in that many steps and read every state on the way; by default only
            the text as it is. A causal model writes as many tokens.
        positions: What is read; by default what is masked in the first state, up to the end of the
            text that is written, and for a causal model what it writes, or all but the first.
        row: Of a trajectory with several.
        top: How many of the likeliest tokens are kept.
        sampling: Further settings of `unmask.infill` or `unmask.sample`, with `steps`.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> lens = unmask.logit_lens(model, "We sat down beside[MASK]*3, our old friend.", steps=2)
    >>> lens.logp.shape, len(lens.at(4, step=2))
    (torch.Size([2, 6, 3]), 6)
    """
    model.paradigm.require_scored(model.name, "the logit lens is read")
    why = "reads them once for every layer"
    model.net.taps.require_none("the logit lens", ("final", "logits"), why)
    states, end = _find_states(model, text, steps, row, sampling)
    reads_next, first = model.paradigm.predicts_next, states[0]
    wanted = _choose_positions(model, first, end, positions)
    rows = [model.row_of(position) for position in wanted]
    if reads_next:
        states = end[None]  # it sees nothing after a row: the whole text gives every state at once
    is_written = isinstance(text, Trajectory) or steps is not None or reads_next
    target = end[wanted] if is_written else None
    read = []
    for step, state in enumerate(states, 1):
        with model.net.taps.in_step(step):
            streams = [x[:, rows] for x in run_by_layer(model, state[None])]
        if target is None:  # nothing was written: what the model itself says is followed
            target = log_softmax(model, model.net.unembed(streams[-1]))[0].argmax(-1)
        read += [_read_layer(model, stream, target, top) for stream in streams]
    assert target is not None
    shape = (len(states), model.net.config.layers)
    each = (torch.stack(kind).unflatten(0, shape) for kind in zip(*read, strict=True))
    return Lens(
        tuple(range(1, len(states) + 1)),
        tuple(wanted),
        states.cpu(),
        target.cpu(),
        *each,
        tokenizer=model.tokenizer,
    )


def _read_layer(
    model: Model, stream: Float[Tensor, "1 P D"], target: Int[Tensor, "P"], top: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """log p, rank, entropy [P], and the likeliest ids and their p [P, k]; logits go at once."""
    logp = log_softmax(model, model.net.unembed(stream))[0]  # [P, V]
    followed = logp.gather(-1, target[:, None])
    best = logp.topk(min(top, logp.shape[-1]), dim=-1)
    kept = (followed[:, 0], 1 + (logp > followed).sum(-1), find_entropy(logp))
    return tuple(x.cpu() for x in (*kept, best.indices, best.values.exp()))  # ty: ignore[invalid-return-type]


def _find_states(
    model: Model, text: Prompt | Trajectory, steps: int | None, row: int, sampling: dict[str, Any]
) -> tuple[Int[Tensor, "S L"], Int[Tensor, "L"]]:
    """The canvas that each step saw, and the text at the end."""
    if sampling and (steps is None or isinstance(text, Trajectory)):
        raise UserError(
            f"{', '.join(sampling)} were given without steps to sample in: give `steps` and a "
            "text, or leave them out."
        )
    if steps is not None and not isinstance(text, Trajectory):
        if model.paradigm.predicts_next:
            sampling.setdefault("length", len(encode_prompt(model, text)) + steps)
            text = sample(model, text, **sampling)
        else:
            text = infill(model, text, steps=steps, **sampling)
    if isinstance(text, Trajectory):
        if text.states is None:
            raise UserError("the trajectory keeps no states: sample it with keep_states=True.")
        if not 0 <= row < len(text.tokens):
            raise UserError(f"row {row} was asked for: expected 0 to {len(text.tokens) - 1}.")
        length, states = int(text.lengths[row]), text.states[:, row].to(model.device)
        return states[: max(1, len(states) - 1), :length], states[-1, :length]
    encode = encode_prompt if model.paradigm.predicts_next else encode_pattern
    ids = torch.tensor(encode(model, text), device=model.device)
    return ids[None], ids


def _choose_positions(
    model: Model, first: Tensor, end: Tensor, positions: Sequence[int] | None
) -> list[int]:
    if positions is None:
        if model.paradigm.predicts_next:
            changed = (first != end).nonzero()[:, 0].tolist()
            return changed or list(range(1, len(end)))
        masked = (first == model.require_mask()).nonzero()[:, 0].tolist()
        end_id = None if model.tokenizer is None else model.tokenizer.end_id
        for count, at in enumerate(masked, 1):
            if int(end[at]) == end_id:
                return masked[:count]  # what comes after the end is padding
        if not masked:
            raise UserError(
                "the text holds no mask: write [MASK] where the model is to be read, or name "
                "`positions`."
            )
        return masked
    least = 1 if model.paradigm.predicts_next else 0
    if not positions or any(not least <= at < len(end) for at in positions):
        raise UserError(
            f"the positions are {_list(positions)}: expected some of {least} to {len(end) - 1}."
        )
    return list(positions)


def _list(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown + (", …" if len(numbers) > 8 else "") or "none"

"""Trajectories: a text being written, every state of it kept. Steps count from 1."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_type_hints

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.config import SettingsError, check_values
from unmask.base.errors import UserError
from unmask.base.files import replace_file
from unmask.base.reading import parse_json
from unmask.data.tokenizer import Tokenizer
from unmask.net.model import Model

FORMAT = "1"
_TENSORS = ("tokens", "lengths", "committed_at", "confidence", "entropy")


@dataclass(frozen=True)
class Trajectory:
    """What a sampler returns: the end, and how it came about."""

    tokens: Int[Tensor, "B L"]
    """The last state."""
    lengths: Int[Tensor, "B"]
    """Of each row: what comes after that in a batch of longer ones is not part of it."""
    committed_at: Int[Tensor, "B L"]
    """The step that wrote each token, the last one if it was rewritten; 0 where it was given."""
    confidence: Float[Tensor, "B L"]
    """The probability a token had when it was written; 1 where it was given."""
    entropy: Float[Tensor, "B L"]
    """Of the prediction it was chosen from, in nats; 0 where it was given."""
    calls: int
    """Forward passes; a guided step is one of twice the rows."""
    texts: list[str] | None
    """The rows as text, each up to its end token; None without a tokenizer."""
    states: Int[Tensor, "states B L"] | None = None
    """The canvas before step 1 and after every step; None unless asked for."""

    def save(self, path: str | Path) -> None:
        """Write it as one safetensors file."""
        from safetensors.torch import save_file

        tensors = {name: getattr(self, name) for name in _TENSORS}
        if self.states is not None:
            tensors["states"] = self.states
        notes = {
            "unmask.trajectory": FORMAT,
            "calls": str(self.calls),
            "texts": json.dumps(self.texts),
        }
        with replace_file(path) as draft:
            save_file({name: x.cpu().contiguous() for name, x in tensors.items()}, draft, notes)

    @classmethod
    def load(cls, path: str | Path) -> "Trajectory":
        """The trajectory in a file."""
        from safetensors import SafetensorError, safe_open

        if not Path(path).is_file():
            raise UserError(f"{path} is not there: expected a saved trajectory.")
        try:
            with safe_open(str(path), "pt") as file:
                notes = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise UserError(
                f"{path} is not a safetensors file ({error}): sample it anew."
            ) from None
        if notes.get("unmask.trajectory") != FORMAT or not tensors.keys() >= set(_TENSORS):
            raise UserError(f"{path} does not hold a trajectory of this version: sample it anew.")
        values = tensors | {
            "calls": parse_json(notes.get("calls", ""), f"{path}, calls"),
            "texts": parse_json(notes.get("texts", ""), f"{path}, texts"),
        }
        problems = check_values(values, get_type_hints(cls))
        problems += [f"unknown tensor {name!r:.60}" for name in values.keys() - get_type_hints(cls)]
        rows = tensors["tokens"].shape
        shapes = {name: rows for name in _TENSORS} | {"lengths": rows[:1]}
        if "states" in tensors:
            shapes["states"] = (tensors["states"].shape[0], *rows)
        for name, shape in shapes.items():
            if tuple(tensors[name].shape) != tuple(shape):
                problems.append(f"{name!r} has the shape {list(tensors[name].shape)}")
        if problems:
            raise SettingsError(str(path), problems)
        return cls(**values)


StateCallback = Callable[[Trajectory], None]
"""Called after every step with the trajectory so far."""


Part = tuple[Int[Tensor, "_"], Trajectory]
"""Some rows of a batch by their numbers, and how they were sampled."""


class TrajectoryRecord:
    """A trajectory in the making."""

    def __init__(
        self,
        model: Model,
        tokens: Int[Tensor, "B L"],
        real: Bool[Tensor, "B L"] | None,
        in_front: Int[Tensor, "B"] | None = None,
        keep_states: bool = True,
        watch: StateCallback | None = None,
    ):
        self.tokenizer, self.in_front = model.tokenizer, in_front
        self.lengths = (torch.ones_like(tokens) if real is None else real).sum(-1)
        self.watch = watch
        self.tokens = tokens
        self.committed_at = torch.zeros_like(tokens)
        self.confidence = torch.ones(tokens.shape, dtype=torch.float64, device=tokens.device)
        self.entropy = torch.zeros_like(self.confidence)
        self.states = [tokens] if keep_states else None
        self.step = 0

    def write(
        self,
        chosen: Bool[Tensor, "B L"],
        tokens: Int[Tensor, "B #L"],
        confidence: Float[Tensor, "B #L"],
        entropy: Float[Tensor, "B #L"],
    ) -> None:
        """One step: the chosen positions get their tokens; what is given elsewhere is not read."""
        self.step += 1
        self.tokens = torch.where(chosen, tokens, self.tokens)
        self.confidence = torch.where(chosen, confidence, self.confidence)
        self.entropy = torch.where(chosen, entropy, self.entropy)
        self.committed_at = torch.where(chosen, self.step, self.committed_at)

    def take_back(self, positions: Bool[Tensor, "B L"], mask_id: int) -> None:
        """In the same step, some positions become masks again."""
        self.tokens = torch.where(positions, mask_id, self.tokens)
        self.confidence = torch.where(positions, 1.0, self.confidence)
        self.entropy = torch.where(positions, 0.0, self.entropy)
        self.committed_at = torch.where(positions, 0, self.committed_at)

    def end_step(self, calls: int) -> None:
        """Keep the state that the step left, and show it to whoever watches."""
        if self.states is not None:
            self.states.append(self.tokens)
        if self.watch is not None:
            self.watch(self.finish(calls))

    def finish(self, calls: int) -> Trajectory:
        """The trajectory up to here."""
        return Trajectory(
            tokens=self.tokens,
            lengths=self.lengths,
            committed_at=self.committed_at,
            confidence=self.confidence,
            entropy=self.entropy,
            calls=calls,
            texts=decode_rows(self.tokens, self.lengths, self.in_front, self.tokenizer),
            states=None if self.states is None else torch.stack(self.states),
        )


def decode_rows(
    tokens: Int[Tensor, "B L"],
    lengths: Int[Tensor, "B"],
    in_front: Int[Tensor, "B"] | None,
    tokenizer: Tokenizer | None,
) -> list[str] | None:
    """Each row's text; end tokens among those in front do not end it."""
    if tokenizer is None:
        return None
    fronts = [0] * len(tokens) if in_front is None else in_front.tolist()
    rows = zip(tokens.tolist(), lengths.tolist(), fronts, strict=True)
    end = tokenizer.end_id
    return [
        tokenizer.decode([token for token in row[:front] if token != end] + row[front:length])
        for row, length, front in rows
    ]


def join_rows(parts: Sequence[Part]) -> Trajectory:
    """One trajectory of rows that were sampled apart, each part under its row numbers.

    A part that took fewer steps keeps its last state until the others are done.
    """
    order = torch.cat([rows for rows, _ in parts]).argsort()
    pieces = [part for _, part in parts]
    joined = {name: torch.cat([getattr(part, name) for part in pieces])[order] for name in _TENSORS}
    states = None
    if all(part.states is not None for part in pieces):
        longest = max(len(part.states) for part in pieces if part.states is not None)
        states = torch.cat([_lengthen(part.states, longest) for part in pieces], dim=1)[:, order]
    texts = None
    if pieces[0].texts is not None:
        rows = [text for part in pieces for text in part.texts or []]
        texts = [rows[i] for i in order.tolist()]
    calls = sum(part.calls for part in pieces)
    return replace(pieces[0], **joined, calls=calls, texts=texts, states=states)


def _lengthen(states: Tensor | None, length: int) -> Tensor:
    assert states is not None
    return torch.cat((states, states[-1:].expand(length - len(states), -1, -1)))

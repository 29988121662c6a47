"""Trajectories: a text being written, every state of it kept. Steps count from 1."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_type_hints

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.config import SettingsError, check_values
from unmask.base.errors import UserError
from unmask.base.extras import Shown
from unmask.base.files import replace_file
from unmask.base.reading import parse_json, read_tensors
from unmask.data.tokenizer import Tokenizer
from unmask.net.model import Model
from unmask.sampling.state import Predictions

FORMAT = "1"
_TENSORS = ("tokens", "lengths", "committed_at", "confidence", "entropy")
_OPTIONAL = ("states", "guess_ids", "guess_p")
MOST_GUESS_BYTES = 2**30
HIDDEN = "░"
"""What is shown where nothing is written yet."""
BYTES_PER_GUESS = 8
"""A token id and its probability."""


@dataclass(frozen=True, repr=False)
class Guesses:
    """What the model would say at the open positions of one step, the likeliest tokens first."""

    ids: Int[Tensor, "B L k"]
    """Token ids; -1 at positions that are not open."""
    p: Float[Tensor, "B L k"]
    """Their probabilities; 0 at positions that are not open."""
    tokenizer: Tokenizer | None = None

    @property
    def open(self) -> Bool[Tensor, "B L"]:
        """The positions about which the model was asked."""
        return self.ids[..., 0] >= 0

    def at(self, position: int, row: int = 0) -> list[tuple[str, float]]:
        """The likeliest tokens at a position of a row with their probabilities; [] if not open."""
        pairs = zip(self.ids[row, position].tolist(), self.p[row, position].tolist(), strict=True)
        return [(show_token(token, self.tokenizer), p) for token, p in pairs if token >= 0]

    def __repr__(self) -> str:
        rows, count = self.open.nonzero().tolist(), self.ids.shape[-1]
        lines = [f"Guesses(the {count} likeliest tokens at {len(rows)} open positions)"]
        for row, position in rows[:12]:
            words = ", ".join(f"{token!r} {p:.3f}" for token, p in self.at(position, row))
            lines.append(f"  row {row}, position {position}: {words}")
        return "\n".join(lines + ["  …"] * (len(rows) > 12))


def show_token(token: int, tokenizer: Tokenizer | None) -> str:
    """A token as it is shown: its text, ⏎ for the end, or its number without a tokenizer."""
    if tokenizer is None:
        return f" {token}"
    return "⏎" if token == tokenizer.end_id else tokenizer.piece(token)


@dataclass(frozen=True, repr=False)
class Trajectory(Shown):
    """What a sampler returns: the end, and how it came about."""

    tokens: Int[Tensor, "B L"]
    """The last state."""
    lengths: Int[Tensor, "B"]
    """The length of each row: what comes after it in a batch of longer ones is not part of it."""
    committed_at: Int[Tensor, "B L"]
    """The step that wrote each token, the last one if it was rewritten; 0 where it was given."""
    confidence: Float[Tensor, "B L"]
    """The probability a token had when it was written; 1 where it was given."""
    entropy: Float[Tensor, "B L"]
    """Entropy of the prediction that a token was chosen from, in nats; 0 where it was given."""
    calls: int
    """Forward passes, those of correctors and probes included; with guidance by the prompt they
    have twice the rows."""
    num_steps: int
    """Steps that were taken."""
    texts: list[str] | None
    """The rows as text, each up to its end token; None without a tokenizer."""
    states: Int[Tensor, "states B L"] | None = None
    """The canvas before step 1 and after every step; None unless asked for."""
    guess_ids: Int[Tensor, "S B L k"] | None = None
    """At every step the likeliest tokens at open positions, -1 elsewhere; None unless asked for."""
    guess_p: Float[Tensor, "S B L k"] | None = None
    """Their probabilities."""
    tokenizer: Tokenizer | None = None
    """The tokenizer of the model that wrote it; a file does not keep it."""
    mask_id: int | None = None
    """What stands where nothing is written yet; None for models without masks."""

    def __len__(self) -> int:
        return self.num_steps + 1

    def __getitem__(self, step: int) -> list[str]:
        """The rows as text after a step, ░ where nothing is written; 0 is before the first step.

        >>> model = unmask.load("reversal-mdm", device="cpu")
        >>> drawn = unmask.sample(model, "We sat down", steps=2, length=6)
        >>> len(drawn), drawn[0]
        (3, ['We sat down ░ ░ ░'])
        """
        step = range(len(self))[step]  # an IndexError ends loops, as for a list
        if self.states is None and step < self.num_steps:
            raise UserError(
                f"the text after step {step} was asked for, but no states were kept: sample with "
                "keep_states=True."
            )
        tokens = self.tokens if self.states is None else self.states[step]
        return [
            "".join(self._show(token) for token in row[: self.find_end(i)].tolist())
            for i, row in enumerate(tokens)
        ]

    def __iter__(self) -> Iterator[list[str]]:
        return (self[step] for step in range(len(self)))

    def _show(self, token: int) -> str:
        return f" {HIDDEN}" if token == self.mask_id else show_token(token, self.tokenizer)

    def find_end(self, row: int) -> int:
        """Tokens of a row up to the first end token that was written, which is shown."""
        length = int(self.lengths[row])
        if self.tokenizer is None:
            return length
        tokens, steps = self.tokens[row, :length], self.committed_at[row, :length]
        ends = ((tokens == self.tokenizer.end_id) & (steps > 0)).nonzero()[:, 0].tolist()
        return ends[0] + 1 if ends else length

    def guesses(self, step: int) -> Guesses:
        """What the model would say at the positions that were open when a step began.

        Kept by `unmask.sample(…, guesses=5)`, which keeps the five likeliest tokens.

        Args:
            step: Counted from 1.

        >>> model = unmask.load("reversal-mdm", device="cpu")
        >>> drawn = unmask.sample(model, "We sat down", steps=2, length=6, guesses=3)
        >>> drawn.guesses(2).ids.shape, len(drawn.guesses(1).at(5))
        (torch.Size([1, 6, 3]), 3)
        """
        if self.guess_ids is None or self.guess_p is None:
            raise UserError("this trajectory keeps no guesses: sample it with guesses=5.")
        if not isinstance(step, int) or not 1 <= step <= len(self.guess_ids):
            raise UserError(
                f"the guesses of step {step} were asked for: expected 1 to {len(self.guess_ids)}."
            )
        return Guesses(self.guess_ids[step - 1], self.guess_p[step - 1], self.tokenizer)

    def __repr__(self) -> str:
        rows, length = self.tokens.shape
        first = (self.texts or [" ".join(map(str, row)) for row in self.tokens[:1].tolist()])[:1]
        text = "".join(f": {each[:60]!r}" + "…" * (len(each) > 60) for each in first)
        return (
            f"Trajectory({rows} row{'s' * (rows != 1)} of {length} tokens, {self.num_steps} steps, "
            f"{self.calls} passes{text})"
        )

    def save(self, path: str | Path) -> None:
        """Write it as one safetensors file."""
        from safetensors.torch import save_file

        tensors = {name: getattr(self, name) for name in _TENSORS}
        tensors |= {name: getattr(self, name) for name in _OPTIONAL}
        notes = {
            "unmask.trajectory": FORMAT,
            "calls": str(self.calls),
            "num_steps": str(self.num_steps),
            "texts": json.dumps(self.texts),
            "mask_id": json.dumps(self.mask_id),
        }
        kept = {name: x.cpu().contiguous() for name, x in tensors.items() if x is not None}
        with replace_file(path) as draft:
            save_file(kept, draft, notes)

    @classmethod
    def load(cls, path: str | Path, tokenizer: Tokenizer | None = None) -> "Trajectory":
        """The trajectory in a file; with the model's tokenizer it can be shown in words."""
        if not Path(path).is_file():
            raise UserError(f"{path} is not there: expected a saved trajectory.")
        tensors, notes = read_tensors(path, "a trajectory", "sample it anew")
        if notes.get("unmask.trajectory") != FORMAT or not tensors.keys() >= set(_TENSORS):
            raise UserError(f"{path} does not hold a trajectory of this version: sample it anew.")
        values = tensors | {
            "calls": parse_json(notes.get("calls", ""), f"{path}, calls"),
            "texts": parse_json(notes.get("texts", ""), f"{path}, texts"),
            "mask_id": parse_json(notes.get("mask_id", "null"), f"{path}, mask_id"),
        }
        if "num_steps" in notes:
            values["num_steps"] = parse_json(notes["num_steps"], f"{path}, num_steps")
        problems = check_values(values, get_type_hints(cls))
        problems += [f"unknown tensor {name!r:.60}" for name in values.keys() - get_type_hints(cls)]
        rows = tensors["tokens"].shape
        shapes = {name: rows for name in _TENSORS} | {"lengths": rows[:1]}
        if "states" in tensors:
            shapes["states"] = (tensors["states"].shape[0], *rows)
        guesses = [tensors[name] for name in ("guess_ids", "guess_p") if name in tensors]
        if len(guesses) == 1 or any(x.ndim != 4 or x.shape != guesses[0].shape for x in guesses):
            problems.append("the guesses are not ids and probabilities [steps, rows, length, k]")
        elif guesses:
            shapes["guess_ids"] = (len(guesses[0]), *rows, guesses[0].shape[-1])
        for name, shape in shapes.items():
            if tuple(tensors[name].shape) != tuple(shape):
                problems.append(f"{name!r} has the shape {list(tensors[name].shape)}")
        if problems:
            raise SettingsError(str(path), problems)
        if "num_steps" not in values:  # files of before it was kept
            values["num_steps"] = _count_steps(tensors)
        return cls(**values, tokenizer=tokenizer)


def _count_steps(tensors: dict[str, Tensor]) -> int:
    """Steps as far as a file's tensors tell; without states, the last one that wrote."""
    if "states" in tensors:
        return len(tensors["states"]) - 1
    return max(tensors["committed_at"].flatten().tolist(), default=0)


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
        guesses: int = 0,
    ):
        self.tokenizer, self.in_front = model.tokenizer, in_front
        self.mask_id = model.mask_id if model.paradigm.has_mask else None
        self.lengths = (torch.ones_like(tokens) if real is None else real).sum(-1)
        self.watch = watch
        self.tokens = tokens
        self.committed_at = torch.zeros_like(tokens)
        self.confidence = torch.ones(tokens.shape, dtype=torch.float64, device=tokens.device)
        self.entropy = torch.zeros_like(self.confidence)
        self.states = [tokens] if keep_states else None
        self.num_guesses = guesses
        """Likeliest tokens to keep of every prediction."""
        self.guess_ids, self.guess_p = list[Tensor](), list[Tensor]()
        self.step = 0

    def keep_guesses(self, predictions: Predictions) -> None:
        """Keep the likeliest tokens at the positions that are open in the step that follows."""
        if self.num_guesses:
            count = min(self.num_guesses, predictions.rows.shape[-1])
            logp, ids = predictions.rows.topk(count, dim=-1)
            self.guess_ids.append(predictions.spread(ids.int(), -1))
            self.guess_p.append(predictions.spread(logp.exp().float(), 0.0))

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

    def rewrite(
        self,
        tokens: Int[Tensor, "B L"],
        confidence: Float[Tensor, "B L"],
        entropy: Float[Tensor, "B L"],
    ) -> None:
        """In the same step, what a corrector made of the text; what it changed it has written."""
        self.committed_at = torch.where(tokens != self.tokens, self.step, self.committed_at)
        self.tokens, self.confidence, self.entropy = tokens, confidence, entropy

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
            num_steps=self.step,
            texts=decode_rows(self.tokens, self.lengths, self.in_front, self.tokenizer),
            states=None if self.states is None else torch.stack(self.states),
            guess_ids=torch.stack(self.guess_ids) if self.guess_ids else None,
            guess_p=torch.stack(self.guess_p) if self.guess_p else None,
            tokenizer=self.tokenizer,
            mask_id=self.mask_id,
        )


def decode_rows(
    tokens: Int[Tensor, "B L"],
    lengths: Int[Tensor, "B"],
    in_front: Int[Tensor, "B"] | None,
    tokenizer: Tokenizer | None,
) -> list[str] | None:
    """Each row's text; end tokens among those in front, or that begin it, do not end it."""
    if tokenizer is None:
        return None
    fronts = [0] * len(tokens) if in_front is None else in_front.tolist()
    rows = zip(tokens.tolist(), lengths.tolist(), fronts, strict=True)
    end = tokenizer.end_id
    if tokenizer.beginning[-1:] == [end]:
        fronts = [max(front, len(tokenizer.beginning)) for front in fronts]
    return [
        tokenizer.decode([token for token in row[:front] if token != end] + row[front:length])
        for row, length, front in rows
    ]


def join_rows(parts: Sequence[Part]) -> Trajectory:
    """One trajectory of rows that were sampled apart, each part under its row numbers.

    A part that took fewer steps keeps its last state until the others are done.
    """
    # 1. Rows of all parts one below the other, then in their order: [B, L], or [B].
    order = torch.cat([rows for rows, _ in parts]).argsort()
    pieces = [part for _, part in parts]
    joined: dict[str, Tensor | None] = {
        name: torch.cat([getattr(part, name) for part in pieces])[order] for name in _TENSORS
    }
    # 2. What is kept of every step [steps, B, L, …]: all parts are made as long as the longest. One
    #    that has not begun has no guesses yet; states are left out unless all parts have them.
    for name in _OPTIONAL:
        by_part = [getattr(part, name) for part in pieces]
        known = [x for x in by_part if x is not None]
        if not known or (name == "states" and len(known) < len(by_part)):
            joined[name] = None
            continue
        longest = max(map(len, known))
        shapes = [(*part.tokens.shape, *known[0].shape[3:]) for part in pieces]
        by_part = [
            known[0].new_empty(0, *shape) if x is None else x
            for x, shape in zip(by_part, shapes, strict=True)
        ]
        joined[name] = torch.cat([_lengthen(x, longest, name) for x in by_part], dim=1)[:, order]
    # 3. Texts in the rows' order; passes add up, and steps are the longest part's.
    texts = None
    if pieces[0].texts is not None:
        rows = [text for part in pieces for text in part.texts or []]
        texts = [rows[i] for i in order.tolist()]
    calls = sum(part.calls for part in pieces)
    num_steps = max(part.num_steps for part in pieces)
    return replace(pieces[0], **joined, calls=calls, num_steps=num_steps, texts=texts)


def _lengthen(kept: Tensor, length: int, name: str) -> Tensor:
    """What was kept of every step, as if there had been more: nothing changes, nothing is open."""
    if len(kept) == length:
        return kept
    more = length - len(kept)
    if name == "states":
        return torch.cat((kept, kept[-1:].expand(more, -1, -1)))
    nothing = kept.new_full((more, *kept.shape[1:]), -1 if name == "guess_ids" else 0)
    return torch.cat((kept, nothing))

"""A batch of rows to learn from, the times they are noised at, and which positions count."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams

RowReading = Literal["both", "causal", "diffusion"]


@dataclass(frozen=True)
class Batch:
    """Rows of tokens; fine-tuning rows know where their prompt ends and their filling starts."""

    tokens: Int[Tensor, "B L"]
    prompt_length: Int[Tensor, "B"] | None = None
    length: Int[Tensor, "B"] | None = None
    entities: Int[Tensor, "B 4"] | None = None
    """Where a fact's subject begins and ends, and where its object does."""
    foreign: Int[Tensor, "B K L"] | None = None
    """Answers of K other lines of facts, laid out where each row's own answer stands."""
    kept: Bool[Tensor, "B L"] | None = None
    """Beginnings of texts, which are never noised; None where all is noised alike."""
    reading: RowReading = "both"
    """Which reading of the network learns these rows, under the objective `joint`."""
    rejected: "Batch | None" = None
    """Where rows are preferred responses: the others, to the same prompts."""

    @property
    def positions(self) -> Int[Tensor, "L"]:
        return torch.arange(self.tokens.shape[1], device=self.tokens.device)

    def is_prompt(self) -> Bool[Tensor, "B L"]:
        """True on the prompt of each row."""
        if self.prompt_length is None:
            return torch.zeros_like(self.tokens, dtype=torch.bool)
        return self.positions < self.prompt_length[:, None]

    def is_kept(self) -> Bool[Tensor, "B L"]:
        """True where the noise must not come."""
        return torch.zeros_like(self.tokens, dtype=torch.bool) if self.kept is None else self.kept

    def is_filling(self) -> Bool[Tensor, "B L"]:
        """True on the tokens added after a row's own."""
        if self.length is None:
            return torch.zeros_like(self.tokens, dtype=torch.bool)
        return self.positions >= self.length[:, None]

    def is_entity(self, number: int) -> Bool[Tensor, "B L"]:
        """True on each row's subject (0) or object (1)."""
        if self.entities is None:
            raise UserError(
                "the rows do not say where their subjects stand: objective.subject is for facts."
            )
        begin, end = self.entities[:, 2 * number : 2 * number + 2, None].unbind(1)
        return (self.positions >= begin) & (self.positions < end)

    def select(self, rows: slice | list[int]) -> "Batch":
        """Some of the rows."""
        more = (self.prompt_length, self.length, self.entities, self.foreign, self.kept)
        chosen = (None if each is None else each[rows] for each in more)
        others = None if self.rejected is None else self.rejected.select(rows)
        return Batch(self.tokens[rows], *chosen, self.reading, others)

    def truncate(self, length: int) -> "Batch":
        """The first `length` positions of every row."""
        ends = (self.prompt_length, self.length, self.entities)
        kept = (None if end is None else end.clamp(max=length) for end in ends)
        foreign = None if self.foreign is None else self.foreign[..., :length]
        beginnings = None if self.kept is None else self.kept[:, :length]
        others = None if self.rejected is None else self.rejected.truncate(length)
        return Batch(self.tokens[:, :length], *kept, foreign, beginnings, self.reading, others)


def draw_times(
    streams: RowStreams,
    batch: int,
    antithetic: bool = True,
    first: int = 0,
    total: int | None = None,
) -> Float[Tensor, "B"]:
    """Times in (0, 1), one per row, in float64.

    `first` is the number of this batch's first row among the `total` rows of a step, over all ranks
    and accumulated batches. Antithetic times share one draw u: row i has (u + i / total) mod 1, so
    that the rows of a step spread evenly. The streams must have one row, the step's.
    """
    total = batch if total is None else total
    if not antithetic:
        return streams.uniform(total)[0, first : first + batch]
    positions = torch.arange(first, first + batch, device=streams.keys.device).double()
    return (streams.uniform(1)[0] + positions / total) % 1.0


def allow_noise(batch: Batch, response_only: bool, noise_filling: bool) -> Bool[Tensor, "B L"]:
    """True where a position may be noised."""
    may = ~batch.is_kept()
    if response_only:
        may &= ~batch.is_prompt()
    if not noise_filling:
        may &= ~batch.is_filling()
    return may


def choose_noised(batch: Batch, response_only: bool, noise_filling: bool) -> Bool[Tensor, "B L"]:
    """True where a position may be noised; a batch without any such position is an error.

    Looked at on the CPU only: on another device the host would have to wait for the answer.
    """
    may = allow_noise(batch, response_only, noise_filling)
    if may.device.type == "cpu" and not may.any():
        raise UserError(
            "the batch has nothing to noise: every position is prompt or filling; give rows with a "
            "response, or noise prompts as well."
        )
    return may


def drop_prompts(batch: Batch, chance: float, streams: RowStreams) -> Bool[Tensor, "B L"]:
    """True on whole prompts, each with the given chance: training for standard guidance."""
    if not chance:
        return torch.zeros_like(batch.tokens, dtype=torch.bool)
    return (streams.uniform(1) < chance) & batch.is_prompt() & ~batch.is_kept()


def draw_length(batch: Batch, chance: float, streams: RowStreams, least: int = 1) -> Batch:
    """With the given chance, the batch cut to a length drawn evenly: SMDM's stochastic length.

    `least` is the shortest length that may be drawn.
    """
    if chance and float(streams.uniform(1)) < chance:
        lengths = batch.tokens.shape[1] - least + 1
        return batch.truncate(least + int(streams.below(lengths, 1)))
    return batch

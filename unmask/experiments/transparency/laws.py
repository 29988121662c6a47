"""Laws of texts that a model is made of, to show what a detector is for.

A `TableLaw` predicts exactly what follows from the tokens that are written. Two laws are rules,
since what they predict at a place must change with what was written meanwhile: reasoning that a
text does not show (`Scratch`), and a change of mind (`Turning`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.experiments.correctors.laws import TextLaw

Weighted = Mapping[tuple[int, ...], float]
"""Texts with their weights."""


@dataclass(frozen=True)
class TableLaw:
    """A law over listed texts."""

    texts: Int[Tensor, "T L"]
    law: Float[Tensor, "T"]
    num_tokens: int

    @classmethod
    def of(cls, weights: Weighted, num_tokens: int) -> "TableLaw":
        law = torch.tensor(list(weights.values()), dtype=torch.float64)
        return cls(torch.tensor(list(weights)), law / law.sum(), num_tokens)

    @property
    def length(self) -> int:
        return self.texts.shape[1]

    def find_marginals(self, xt: Int[Tensor, "B L"]) -> Float[Tensor, "B L V"]:
        """p(token at each position | the written ones); where no text fits, by those that miss
        least."""
        states, inverse = xt.unique(dim=0, return_inverse=True)
        fits = (states[:, None] == self.num_tokens) | (states[:, None] == self.texts)
        missed = (~fits).sum(-1)  # [S, T]
        least = missed == missed.amin(-1, keepdim=True)
        weights = least.double() * self.law
        one_hot = torch.nn.functional.one_hot(self.texts, self.num_tokens).double()
        marginals = torch.einsum("st,tlv->slv", weights, one_hot)
        return (marginals / weights.sum(-1)[:, None, None])[inverse]


@dataclass(frozen=True)
class Scratch:
    """Questions whose answers may need a token that the text no longer shows.

    A canvas is the question, a place to note something, the answer, and fillers. The note is
    written first. Some questions need it to be answered, others do not. Once all else stands, the
    note's place wants a filler, or still the note.
    """

    notes: tuple[int, ...]
    """The note of each question, from which its answer follows."""
    answers: tuple[int, ...]
    needs: tuple[bool, ...]
    length: int
    is_kept: bool = False
    """Whether the note stays in the text."""

    @property
    def count(self) -> int:
        return len(self.notes)

    @property
    def num_tokens(self) -> int:
        return 3 * self.count + self.length

    def find_marginals(self, xt: Int[Tensor, "B L"]) -> Float[Tensor, "B L V"]:
        states, inverse = xt.unique(dim=0, return_inverse=True)
        return torch.stack([_predict_answer(self, tuple(row)) for row in states.tolist()])[inverse]


@cache  # knock-outs meet few states, many times
def _predict_answer(law: Scratch, row: tuple[int, ...]) -> Float[Tensor, "L V"]:
    question, size, masked = row[0], law.count, law.num_tokens
    p = torch.full((law.length, masked), 0.1 / masked, dtype=torch.float64)
    note, answer = size + law.notes[question], 2 * size + law.answers[question]
    # 1. The note, until all else stands.
    is_done = masked not in row[2:]
    p[1, 3 * size + 1 if is_done and not law.is_kept else note] += 0.95
    # 2. The answer: by the question if that is enough, by a note if there is one, else any.
    if not law.needs[question]:
        p[2, answer] += 0.8
    elif row[1] in range(size, 2 * size):
        by_note = dict(zip(law.notes, law.answers, strict=True))
        p[2, 2 * size + by_note[row[1] - size]] += 0.9
    else:
        p[2, 2 * size : 3 * size] += 0.8 / size
        p[2, 2 * size + (law.answers[question] + 1) % size] += 0.05
    # 3. The rest, surest where little is asked, but after these.
    for at in range(3, law.length):
        p[at, 3 * size + at] += 0.5
    return p / p.sum(-1, keepdim=True)


@dataclass(frozen=True)
class Blurred:
    """A law as an imperfect network would have it: less sure, and off by noise.

    The noise is a function of the state, so that the same canvas is always predicted alike.
    """

    law: TextLaw
    noise: float = 0.2
    """Deviation of log-probabilities."""
    floor: float = 1e-4
    """What every token has beside its probability."""
    seed: int = 0

    @property
    def num_tokens(self) -> int:
        return self.law.num_tokens

    @property
    def length(self) -> int:
        return self.law.length

    @cached_property
    def _waves(self) -> tuple[Float[Tensor, "L V"], Float[Tensor, "L"]]:
        """The phase of each log-probability, and how much each place of the state moves them."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = self.length, self.num_tokens
        phase = 2 * math.pi * torch.rand(*shape, generator=generator, dtype=torch.float64)
        return phase, 50 * torch.rand(self.length, generator=generator, dtype=torch.float64)

    def find_marginals(self, xt: Int[Tensor, "B L"]) -> Float[Tensor, "B L V"]:
        phase, turn = self._waves
        waves = torch.sin((xt.double() @ turn)[:, None, None] + phase)
        logits = (self.law.find_marginals(xt) + self.floor).log()
        return (logits + self.noise * math.sqrt(2) * waves).softmax(-1)


@dataclass(frozen=True)
class EachAlone:
    """Places that have their question's token or their filler, each by itself."""

    count: int
    length: int
    share: float

    @property
    def num_tokens(self) -> int:
        return 2 * self.count + self.length

    def find_marginals(self, xt: Int[Tensor, "B L"]) -> Float[Tensor, "B L V"]:
        p = torch.zeros(len(xt), self.length, self.num_tokens, dtype=torch.float64)
        p[torch.arange(len(xt)), :, self.count + xt[:, 0]] = self.share
        at = torch.arange(1, self.length)
        p[:, at, 2 * self.count + at] = 1 - self.share
        p[:, 0, 0] = 1.0
        return p


@dataclass(frozen=True)
class EachOfTwo:
    """Places that have either of two tokens, each by itself."""

    pairs: Mapping[int, list[list[int]]]
    length: int
    num_tokens: int

    def find_marginals(self, xt: Int[Tensor, "B L"]) -> Float[Tensor, "B L V"]:
        p = torch.zeros(len(xt), self.length, self.num_tokens, dtype=torch.float64)
        p[:, 0, 0] = 1.0
        for row, question in enumerate(xt[:, 0].tolist()):
            for own in self.pairs[question]:
                p[row, torch.arange(1, self.length), torch.tensor(own)] = 0.5
        return p


@dataclass(frozen=True)
class EachAny:
    """Places that have any token but the questions, each by itself."""

    count: int
    length: int
    num_tokens: int

    def find_marginals(self, xt: Int[Tensor, "B L"]) -> Float[Tensor, "B L V"]:
        p = torch.zeros(len(xt), self.length, self.num_tokens, dtype=torch.float64)
        p[..., self.count :] = 1 / (self.num_tokens - self.count)
        return p


@dataclass(frozen=True)
class Turning:
    """Places that are sure of one token until most of the text stands, then some of another one.

    A place turns only where it holds its first token, so that what turns was written.
    """

    first: Int[Tensor, "Q L"]
    second: Int[Tensor, "Q L"]
    num_tokens: int
    most: float = 0.75
    """The share of places that hold one of their tokens when the others turn."""

    @property
    def length(self) -> int:
        return self.first.shape[1]

    def find_marginals(self, xt: Int[Tensor, "B L"]) -> Float[Tensor, "B L V"]:
        first, second = self.first[xt[:, 0]], self.second[xt[:, 0]]
        stands = (xt == first) | (xt == second)
        is_late = stands[:, 1:].double().mean(1, keepdim=True) >= self.most
        now = torch.where(stands & is_late, second, first)
        return torch.nn.functional.one_hot(now, self.num_tokens).double()

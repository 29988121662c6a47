"""Laws that force a phenomenon to a known dose, and laws that exclude it.

Each is a list of texts with their probabilities, of which a model predicts exactly what follows
from the tokens that are written (`TableLaw`); only reasoning that its text does not show is a rule,
since there what is predicted at a place must change with what was written meanwhile (`Scratch`).
The first token of every text is a question, which chooses among texts. A question's fillers are
tokens of their own at every place, so that no two places hold alike ones.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.seeds import python_stream
from unmask.experiments.correctors.laws import ExactModel, TextLaw

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
        return torch.stack([self._predict(row) for row in states.tolist()])[inverse]

    def _predict(self, row: list[int]) -> Float[Tensor, "L V"]:
        question, size, masked = row[0], self.count, self.num_tokens
        p = torch.full((self.length, masked), 0.1 / masked, dtype=torch.float64)
        note, answer = size + self.notes[question], 2 * size + self.answers[question]
        # 1. The note, until all else stands.
        is_done = masked not in row[2:]
        p[1, 3 * size + 1 if is_done and not self.is_kept else note] += 0.95
        # 2. The answer: by the question if that is enough, by a note if there is one, else any.
        if not self.needs[question]:
            p[2, answer] += 0.8
        elif row[1] in range(size, 2 * size):
            by_note = dict(zip(self.notes, self.answers, strict=True))
            p[2, 2 * size + by_note[row[1] - size]] += 0.9
        else:
            p[2, 2 * size : 3 * size] += 0.8 / size
            p[2, 2 * size + (self.answers[question] + 1) % size] += 0.05
        # 3. The rest, surest where little is asked, but after these.
        for at in range(3, self.length):
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

    def find_marginals(self, xt: Int[Tensor, "B L"]) -> Float[Tensor, "B L V"]:
        generator = torch.Generator().manual_seed(self.seed)
        shape = self.length, self.num_tokens
        phase = 2 * math.pi * torch.rand(*shape, generator=generator, dtype=torch.float64)
        turn = 50 * torch.rand(self.length, generator=generator, dtype=torch.float64)
        waves = torch.sin((xt.double() @ turn)[:, None, None] + phase)
        logits = (self.law.find_marginals(xt) + self.floor).log()
        return (logits + self.noise * math.sqrt(2) * waves).softmax(-1)


@dataclass(frozen=True, kw_only=True)
class KnownCorpus:
    """A law with its questions: what a detector is shown."""

    name: str
    phenomenon: str
    """The phenomenon that it forces or excludes."""
    dose: float
    """How much of it there is; 0 where it is excluded."""
    law: TextLaw
    questions: int
    end: int | None = None
    """The token that fills a canvas after its text."""
    is_fixing: bool = True
    """Whether limits are chosen on it; on others they are judged."""

    @property
    def model(self) -> ExactModel:
        return ExactModel.make(self.law)


DOSES = (0.25, 0.5, 0.75, 1.0)
ALIKE = "written again alike"
NAMES = ("early length", "token smearing", "sequence smearing", "revision", "needed, not shown")


def list_corpora(seed: int, number: int, is_fixing: bool) -> list[KnownCorpus]:
    """Every phenomenon at every dose and excluded, of one size of language; others for judging."""
    draw = python_stream(seed, "transparency", number, is_fixing)
    questions, length = (4, 8) if is_fixing else (6, 11)
    made = []
    for make in (_vary_lengths, _shift_token, _mix_sequences, _draw_alone, _need_notes):
        made += make(draw, questions, length)
    blurred = (
        replace(each, law=Blurred(each.law, seed=draw.randrange(2**31)), is_fixing=is_fixing)
        for each in made
    )
    return [replace(each, name=f"{each.name}, {number}") for each in blurred]


def _corpus(
    phenomenon: str, variant: str, dose: float, law: Any, count: int, **more: Any
) -> KnownCorpus:
    name = f"{phenomenon}: {variant}"
    return KnownCorpus(
        name=name, phenomenon=phenomenon, dose=dose, law=law, questions=count, **more
    )


def _vary_lengths(draw: Random, count: int, length: int) -> list[KnownCorpus]:
    """A question says how long its text is, as often as the dose says; else any length will do."""
    lengths = [2 + round(i * (length - 3) / (count - 1)) for i in range(count)]
    order, end = draw.sample(range(count), count), count + length
    made = []
    for dose in (0.0, *DOSES):
        weights = {}
        for question in range(count):
            for i, size in enumerate(lengths):
                text = [question, *(count + at for at in range(1, size)), *[end] * (length - size)]
                own = dose * (i == order[question])
                weights[tuple(text)] = own + (1 - dose) / count
        law = TableLaw.of({text: p for text, p in weights.items() if p}, end + 1)
        made.append(_corpus(NAMES[0], f"dose {dose:g}", dose, law, count, end=end))
    return made


def _shift_token(draw: Random, count: int, length: int) -> list[KnownCorpus]:
    """A token that stands once in a text, at its place or, as often as the dose says, elsewhere."""
    made, home = [], {q: draw.randrange(2, length - 1) for q in range(count)}
    for dose in (0.0, *DOSES):
        weights = {}
        for question, at in home.items():
            for place in range(1, length):
                text = [question, *(2 * count + i for i in range(1, length))]
                text[place] = count + question
                # Of n places one is home: a dose of 1 is the most that all can share.
                spread = dose / (length - 1)
                weights[tuple(text)] = spread + (1 - dose) * (place == at)
        law = TableLaw.of({text: p for text, p in weights.items() if p}, 2 * count + length)
        most = dose * (length - 2) / (length - 1)
        made.append(_corpus(NAMES[1], f"dose {dose:g}", most, law, count))
    # A control that looks alike place by place: each place has the token by itself.
    alone = _Alone(count, length, share=1 / (length - 1))
    made.append(_corpus(NAMES[1], "places by themselves", 0.0, alone, count))
    return made


@dataclass(frozen=True)
class _Alone:
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


def _mix_sequences(draw: Random, count: int, length: int) -> list[KnownCorpus]:
    """Two texts for each question that share nothing; the rarer one as often as half the dose."""
    made, size = [], count + 2 * count * length
    pool = draw.sample(range(count, size), 2 * count * (length - 1))
    pairs = [pool[i * (length - 1) : (i + 1) * (length - 1)] for i in range(2 * count)]
    for dose in (0.0, *DOSES):
        weights: dict[tuple[int, ...], float] = {
            (question, *pairs[2 * question + i]): p
            for question in range(count)
            for i, p in enumerate((1 - dose / 2, dose / 2))
            if p
        }
        made.append(_corpus(NAMES[2], f"dose {dose:g}", dose, TableLaw.of(weights, size), count))
    # A control that looks alike place by place: each place chooses by itself.
    both = {i: pairs[2 * i : 2 * i + 2] for i in range(count)}
    made.append(_corpus(NAMES[2], "places by themselves", 0.0, _Halves(both, length, size), count))
    return made


@dataclass(frozen=True)
class _Halves:
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


def _draw_alone(draw: Random, count: int, length: int) -> list[KnownCorpus]:
    """Places that may hold any of 24 tokens; the sampler takes some back, as the dose says."""
    length, size = 3 * length, count + 24
    places = length - 1
    law, doses = _Any(count, length, size), (0.0, *DOSES)
    taken = [count_taken(dose, places) for dose in doses]
    made = [
        _corpus(NAMES[3], f"dose {dose:g}", number / places, law, count)
        for dose, number in zip(doses, taken, strict=True)
    ]
    # A control: as many are taken back, but each place has one token.
    sure: Weighted = {(q, *(count + i for i in range(1, length))): 1.0 for q in range(count)}
    again = TableLaw.of(sure, count + length)
    made.append(_corpus(NAMES[3], ALIKE, 0.0, again, count))
    return made


def count_taken(dose: float, places: int) -> int:
    """How many tokens are taken back in the middle of a text, one less than half being written."""
    return round(dose * (places // 2 - 1))


@dataclass(frozen=True)
class _Any:
    """Places that have any token but the questions, each by itself."""

    count: int
    length: int
    num_tokens: int

    def find_marginals(self, xt: Int[Tensor, "B L"]) -> Float[Tensor, "B L V"]:
        p = torch.zeros(len(xt), self.length, self.num_tokens, dtype=torch.float64)
        p[..., self.count :] = 1 / (self.num_tokens - self.count)
        return p


def _need_notes(draw: Random, count: int, length: int) -> list[KnownCorpus]:
    """As many questions need their note as the dose says; or it stays, or is never needed."""
    count, length = 2 * count, length // 2 + 1
    notes, answers = (tuple(draw.sample(range(count), count)) for _ in range(2))
    made = []
    for dose in (0.0, *DOSES):
        needed = set(draw.sample(range(count), round(dose * count)))
        law = Scratch(notes, answers, tuple(i in needed for i in range(count)), length)
        made.append(_corpus(NAMES[4], f"dose {dose:g}", len(needed) / count, law, count))
    kept = Scratch(notes, answers, (True,) * count, length, is_kept=True)
    made.append(_corpus(NAMES[4], "the note stays", 0.0, kept, count))
    return made

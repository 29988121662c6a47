"""Laws that force a phenomenon to a known dose, and laws that exclude it.

The first token of every text is a question, which chooses among texts. A question's fillers are
tokens of their own at every place, so that no two places hold alike ones.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch

from unmask.base.seeds import python_stream
from unmask.experiments.correctors.laws import ExactModel, TextLaw
from unmask.experiments.transparency.laws import (
    Blurred,
    EachAlone,
    EachAny,
    EachOfTwo,
    Scratch,
    TableLaw,
    Turning,
    Weighted,
)


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
    noise: str = "masked"
    """The noise that its model undoes."""

    @property
    def model(self) -> ExactModel:
        return ExactModel.make(self.law, self.noise)


DOSES = (0.25, 0.5, 0.75, 1.0)
ALIKE = "written again alike"
NAMES = (
    "early length", "token smearing", "sequence smearing", "revision", "needed, not shown",
    "revision under uniform noise", "revision under hybrid noise",
)  # fmt: skip


def list_corpora(seed: int, number: int, is_fixing: bool) -> list[KnownCorpus]:
    """Every phenomenon at every dose and excluded, of one size of language; others for judging."""
    draw = python_stream(seed, "transparency", number, is_fixing)
    questions, length = (4, 8) if is_fixing else (6, 11)
    made = []
    for make in (_vary_lengths, _shift_token, _mix_sequences, _draw_alone, _need_notes, _turn_over):
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
    alone = EachAlone(count, length, share=1 / (length - 1))
    made.append(_corpus(NAMES[1], "places by themselves", 0.0, alone, count))
    return made


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
    made.append(
        _corpus(NAMES[2], "places by themselves", 0.0, EachOfTwo(both, length, size), count)
    )
    return made


def _draw_alone(draw: Random, count: int, length: int) -> list[KnownCorpus]:
    """Places that may hold any of 24 tokens; the sampler takes some back, as the dose says."""
    length, size = 3 * length, count + 24
    places = length - 1
    law, doses = EachAny(count, length, size), (0.0, *DOSES)
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


def _turn_over(draw: Random, count: int, length: int) -> list[KnownCorpus]:
    """As many places as the dose says give up what they held, while noise comes and goes.

    Without a dose nothing is given up, though nearly every place held other tokens: noise. Where
    nothing is sure, tokens come and go as noise does.
    """
    length = 2 * length
    size, places = count + 2 * length, length - 1
    at, questions = torch.arange(length), torch.arange(count)
    first = torch.where(at > 0, count + at, questions[:, None])
    made = []
    for noise, name in (("uniform", NAMES[5]), ("hybrid", NAMES[6])):
        for dose in (0.0, *DOSES):
            turned = torch.zeros(count, length, dtype=torch.bool)
            for row in turned:
                row[draw.sample(range(1, length), round(dose * places))] = True
            law = Turning(first, torch.where(turned, first + length, first), size)
            share = round(dose * places) / places
            made.append(_corpus(name, f"dose {dose:g}", share, law, count, noise=noise))
        unsure = EachAny(count, length, size)
        made.append(_corpus(name, "nothing is sure", 0.0, unsure, count, noise=noise))
    return made

"""The toy language: its 57 sentences, what is wrong with other rows of units, laws over it."""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.streams import RowStreams

PRONOUNS = ("we", "you", "they")
OWNERS = ("our", "your", "their")
ANIMALS = ("cat", "dog")
PAD = "[PAD]"
UNITS = (*PRONOUNS, *OWNERS, *ANIMALS, "friend", "is", "are", "s", PAD)
LENGTH = 6
PATTERNS = (
    (OWNERS, ANIMALS, ("is",), OWNERS, ("friend",)),
    (OWNERS, ANIMALS, ("s are",), OWNERS, ("s",)),
    (ANIMALS, ("s are",), OWNERS, ("friend s", "s")),
    (PRONOUNS, ("are",), OWNERS, ("friend s",)),
)
"""The grammar: a sentence takes one choice from every column of a row."""

Sentence = tuple[str, ...]
ErrorKind = Literal["none", "padding", "word order", "agreement", "unknown sentence"]
KINDS: tuple[ErrorKind, ...] = get_args(ErrorKind)

_PRONOUN, _OWNER, _NOUN = "(we|you|they) ", "(our|your|their) ", "(cat|dog|friend) "
_SINGULAR = f"{_OWNER}({_NOUN}|s )"
_PLURAL = f"(({_OWNER})?{_NOUN}s |{_OWNER}s )"
_EITHER = f"(({_OWNER})?{_NOUN}|{_OWNER})(s )?"
_AGREEING = re.compile(f"{_SINGULAR}is {_SINGULAR}|({_PRONOUN}|{_PLURAL})are {_PLURAL}")
_READABLE = re.compile(f"({_PRONOUN}|{_EITHER})(is|are) {_EITHER}")


@cache
def list_sentences() -> tuple[Sentence, ...]:
    """All sentences of the language, each filled up with [PAD] to six units."""
    bodies = [tuple(" ".join(words).split()) for pattern in PATTERNS for words in product(*pattern)]
    return tuple(body + (PAD,) * (LENGTH - len(body)) for body in bodies)


def classify(sentence: Sentence) -> ErrorKind:
    """What is wrong with a row of units: the first of these that applies.

    - `none`: it is a sentence of the language.
    - `padding`: a unit stands after a [PAD].
    - `unknown sentence`: a grammatical one, only not of this language ("our cat is your s").
    - `agreement`: subject, verb and predicate differ in number, or a phrase lacks its `s`.
    - `word order`: no subject, verb and predicate in this order, whatever their number.
    """
    if sentence in list_sentences():
        return "none"
    size = sentence.index(PAD) if PAD in sentence else len(sentence)
    if any(unit != PAD for unit in sentence[size:]):
        return "padding"
    body = "".join(f"{unit} " for unit in sentence[:size])
    if _AGREEING.fullmatch(body):
        return "unknown sentence"
    return "agreement" if _READABLE.fullmatch(body) else "word order"


def encode(sentences: Iterable[Sentence]) -> Int[Tensor, "B L"]:
    """The number of every unit, one row per sentence."""
    return torch.tensor([[UNITS.index(unit) for unit in sentence] for sentence in sentences])


def decode(rows: Int[Tensor, "B L"]) -> list[Sentence]:
    """The units of every row; a number past them is a [MASK]."""
    names = (*UNITS, "[MASK]")
    return [tuple(names[number] for number in row) for row in rows.tolist()]


def data_law() -> Float[Tensor, "N"]:
    """The probability of each sentence, all alike, and last that of everything else: none."""
    number = len(list_sentences())
    return torch.tensor([1 / number] * number + [0.0], dtype=torch.float64)


def empirical_law(rows: Sequence[Sentence]) -> Float[Tensor, "N"]:
    """The share of each sentence among the rows, and last that of everything else."""
    numbers = {sentence: i for i, sentence in enumerate(list_sentences())}
    drawn = torch.tensor([numbers.get(row, len(numbers)) for row in rows])
    return drawn.bincount(minlength=len(numbers) + 1).double() / len(rows)


def total_variation(p: Float[Tensor, "N"], q: Float[Tensor, "N"]) -> float:
    """Half the summed differences: 0 for equal laws, 1 for laws without anything in common."""
    return float((p - q).abs().sum() / 2)


def noise_floor(num_samples: int, seed: int, repeats: int = 20) -> float:
    """The mean distance of the data law from `num_samples` true draws: what no model can beat."""
    law = data_law()
    draws = RowStreams.make(seed, repeats).below(len(list_sentences()), num_samples)
    shares = (row.bincount(minlength=len(law)).double() / num_samples for row in draws)
    return sum(total_variation(share, law) for share in shares) / repeats

"""Training batches as a pure function of the step: to resume is to ask for the next number."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.seeds import derive_seed
from unmask.data.facts import OTHER_WAY, Fact, Span, tokenize_facts
from unmask.data.tokenizer import Tokenizer


class RowOrder:
    """Which rows make up the batch of each step: every epoch a new shuffle of all rows."""

    def __init__(self, num_rows: int, batch: int, seed: int):
        if batch > num_rows:
            raise UserError(
                f"a batch of {batch} rows was asked for, but the data has only {num_rows}: "
                "use a smaller batch or more data."
            )
        self.num_rows, self.batch, self.seed = num_rows, batch, seed
        self._shuffled: tuple[int, np.ndarray] | None = None

    def rows_at(self, step: int) -> list[int]:
        """Row numbers of the batch of `step` (from 0); batches run on across epochs."""
        start = step * self.batch
        return [self._row(place) for place in range(start, start + self.batch)]

    def _row(self, place: int) -> int:
        epoch, index = divmod(place, self.num_rows)
        if self._shuffled is None or self._shuffled[0] != epoch:
            generator = np.random.default_rng(derive_seed(self.seed, "epoch", epoch))
            self._shuffled = epoch, generator.permutation(self.num_rows)
        return int(self._shuffled[1][index])


@dataclass(frozen=True)
class EncodedRows:
    """Texts as rows of one length, filled up with the end token as SMDM does."""

    tokens: Int[Tensor, "N L"]
    prompt_length: Int[Tensor, "N"]
    length: Int[Tensor, "N"]
    """Tokens of each row without the filling."""
    entities: Int[Tensor, "N 4"]
    """Where the subject begins and ends, and where the object does."""


def encode_rows(facts: Sequence[Fact], tokenizer: Tokenizer, context: int) -> EncodedRows:
    """Prompt and completion of every fact as one row of `context` tokens."""
    if not facts:
        raise UserError("no facts were given: name a split that is not empty.")
    tokens, prompt_lengths, lengths, entities = [], [], [], []
    for fact, encoded in zip(facts, tokenize_facts(facts, tokenizer), strict=True):
        if len(encoded.ids) > context:
            raise UserError(
                f"the text {fact.text!r} has {len(encoded.ids)} tokens, but the context is "
                f"{context}: lengthen the context or shorten the text."
            )
        filling = [tokenizer.end_id] * (context - len(encoded.ids))
        tokens.append([*encoded.ids, *filling])
        prompt_lengths.append(encoded.prompt_length)
        lengths.append(len(encoded.ids))
        entities.append((*encoded.subject, *encoded.object))
    return EncodedRows(*map(torch.tensor, (tokens, prompt_lengths, lengths, entities)))


def reverse_entities(fact: Fact) -> Fact:
    """The line with its words in reverse and its entities whole, as a fact the other way round.

    Reverse training with entities kept (Golovneva et al. 2024, arXiv 2403.13799): what stood last
    is read first.
    """
    before, subject, between = _split(fact.prompt, fact.subject_span)
    middle, object_, after = _split(fact.completion, fact.object_span)
    words = [*between.split(), *middle.split()]
    prompt = " ".join([*reversed(after.split()), object_, *reversed(words)])
    completion = " " + " ".join([subject, *reversed(before.split())])
    begin = sum(len(word) + 1 for word in after.split())
    return replace(
        fact,
        subject=fact.object,
        object=fact.subject,
        prompt=prompt,
        completion=completion,
        subject_span=(begin, begin + len(object_)),
        object_span=(1, 1 + len(subject)),
        direction=OTHER_WAY[fact.direction],
    )


def repeat_entities(fact: Fact) -> tuple[Fact, Fact]:
    """Two lines in the fact's words that name one entity twice: the subject, and the object.

    Lines "A is A" beside "A is B" (arXiv 2602.02470): they state no fact.

    >>> from unmask.data.batches import repeat_entities
    >>> fact = unmask.Fact.of("Mira", "a smith", "We hear {} is")
    >>> [line.text for line in repeat_entities(fact)]
    ['We hear Mira is Mira', 'We hear a smith is a smith']
    """
    before, subject, between = _split(fact.prompt, fact.subject_span)
    middle, object_, after = _split(fact.completion, fact.object_span)

    def name_twice(entity: str) -> Fact:
        return replace(
            fact,
            subject=entity,
            object=entity,
            prompt=before + entity + between,
            completion=middle + entity + after,
            subject_span=(len(before), len(before) + len(entity)),
            object_span=(len(middle), len(middle) + len(entity)),
        )

    return name_twice(subject), name_twice(object_)


def _split(text: str, span: Span) -> tuple[str, str, str]:
    return text[: span[0]], text[slice(*span)], text[span[1] :]

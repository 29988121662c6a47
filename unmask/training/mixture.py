"""The rows of a run by their sources, each with a pass of its own: sources may differ in length."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from unmask.base.errors import UserError
from unmask.data.corpus import Corpus
from unmask.data.tokenizer import Tokenizer
from unmask.objectives.batch import Batch, RowReading
from unmask.training.data_settings import DataSettings, list_parts
from unmask.training.examples import Examples, read_examples


@dataclass(frozen=True)
class Mixture:
    """The sources of a run's rows by name; a run of a single source has one, without a name."""

    parts: Mapping[str, Examples]
    settings: Mapping[str, DataSettings]

    @property
    def label(self) -> str:
        return " + ".join(part.label for part in self.parts.values())

    @property
    def num_rows(self) -> int:
        return sum(part.num_rows for part in self.parts.values())

    @property
    def tokenizer(self) -> Tokenizer:
        """The one that all sources share."""
        return next(iter(self.parts.values())).tokenizer

    @property
    def unknown(self) -> str:
        """What the tokenizer lacks of the texts, as a sentence."""
        return "; ".join(part.unknown for part in self.parts.values() if part.unknown)

    @property
    def facts_from(self) -> str:
        """The name of the source whose facts are asked while training goes on: the first that has
        some, else the first of all."""
        named = (name for name, part in self.parts.items() if part.corpus is not None)
        return next(named, next(iter(self.parts)))

    @property
    def corpus(self) -> Corpus | None:
        """The facts that are asked, if there are any."""
        return self.parts[self.facts_from].corpus

    def digest(self) -> dict[str, str]:
        """Digests of everything that a run takes from its data, by what they are of."""
        return {
            f"{name}: {what}" if name else what: digest
            for name, part in self.parts.items()
            for what, digest in part.digest().items()
        }

    def change(self, function: Callable[[Examples], Examples]) -> "Mixture":
        """The mixture with each source changed."""
        changed = {name: function(part) for name, part in self.parts.items()}
        return Mixture(changed, self.settings)


def read_mixture(
    data: DataSettings, known: Tokenizer | None = None, has_foreign: bool = False
) -> Mixture:
    """The sources that a recipe names; `known` is the tokenizer of the model to start from.

    Without one, the first source's tokenizer is that of all.
    """
    settings, parts = list_parts(data), dict[str, Examples]()
    for name, data in settings.items():
        part = read_examples(data, known, has_foreign)
        parts[name] = part if data.reading == "both" else assign_reading(part, data.reading)
        known = known or part.tokenizer
        own, others = map(_count_tokens, (part.tokenizer, known))
        if own != others:
            raise UserError(
                f"data.sources.{name} has a tokenizer of {own} tokens, the others one of {others}: "
                "expected one for all; name it by data.tokenizer."
            )
    mixture = Mixture(parts, settings)
    return mixture if len(parts) == 1 else mixture.change(fill_in)


def _count_tokens(tokenizer: Tokenizer) -> int:
    """Without a mask behind the vocabulary, which is the model's."""
    return tokenizer.vocab_size - (tokenizer.mask_id == tokenizer.vocab_size - 1)


def assign_reading(examples: Examples, reading: RowReading) -> Examples:
    """The examples as rows that one reading of the network learns."""

    def take(numbers: Sequence[int]) -> Batch:
        return replace(examples.take(numbers), reading=reading)

    return replace(examples, take=take)


def fill_in(examples: Examples) -> Examples:
    """The examples of a source without facts, whose rows have none: settings for facts leave them
    as they are."""

    def take(numbers: Sequence[int]) -> Batch:
        batch = examples.take(numbers)
        if batch.entities is not None:
            return batch
        none = torch.zeros(len(batch.tokens), 4, dtype=torch.long)
        return replace(batch, entities=none, foreign=batch.tokens[:, None])

    return replace(examples, take=take)

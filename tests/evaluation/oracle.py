"""Models that know some texts by heart, for tests of measurements."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

import unmask
from tests.conftest import lively
from unmask.data.corpus import Corpus
from unmask.data.facts import tokenize_fact
from unmask.data.tokenizer import Tokenizer
from unmask.net.model import Blueprint, Model

SURE = 30.0


@dataclass(frozen=True)
class Oracle(Model):
    """A masked model that continues the prompts it knows, and knows nothing else."""

    known: list[list[int]] = field(default_factory=list)
    """Whole texts."""
    prompt_lengths: list[int] = field(default_factory=list)

    def logits(
        self,
        tokens: Tensor,
        real: Tensor | None = None,
        at: Tensor | None = None,
        *_: object,
        number: int | None = None,
    ) -> Tensor:
        assert self.tokenizer is not None and real is None
        answers = torch.full_like(tokens, -1)
        for row, answer in zip(tokens.tolist(), answers, strict=True):
            for text, length in zip(self.known, self.prompt_lengths, strict=True):
                if row[:length] == text[:length]:
                    answer[: len(text)] = torch.tensor(text)
                    answer[len(text) :] = self.tokenizer.end_id
        size = self.net.config.logit_rows
        logits = SURE * torch.nn.functional.one_hot(answers.clamp(min=0), size).float()
        logits[answers < 0] = 0.0
        if at is None:
            return logits
        return logits[at] if at.dtype == torch.bool else logits.take_along_dim(at[..., None], 1)


def make_oracle(corpus: Corpus, splits: Sequence[str], tokenizer: Tokenizer) -> Oracle:
    """A model that knows those splits."""
    found = [tokenize_fact(fact, tokenizer) for split in splits for fact in corpus[split]]
    rows = tokenizer.vocab_size
    config = unmask.preset("tiny", vocab_size=rows, num_logits=rows - 1, context=64)
    return Oracle(
        "oracle",
        lively(config),
        Blueprint(config, "masked", tokenizer.mask_id),
        tokenizer,
        [one.ids for one in found],
        [one.prompt_length for one in found],
    )


def make_twin(tokenizer: Tokenizer, seed: int = 0) -> Model:
    """A causal model that knows nothing."""
    config = unmask.preset("tiny", vocab_size=tokenizer.vocab_size, causal=True, context=64)
    return Model("twin", lively(config, seed), Blueprint(config, "causal"), tokenizer)

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

    known: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    """Whole texts by their prompts."""

    def logits(
        self,
        tokens: Tensor,
        real: Tensor | None = None,
        at: Tensor | None = None,
        *_: object,
        **more: object,
    ) -> Tensor:
        assert self.tokenizer is not None and real is None
        answers = torch.full_like(tokens, -1)
        lengths = {len(prompt) for prompt in self.known}
        for row, answer in zip(tokens.tolist(), answers, strict=True):
            for length in lengths:
                if text := self.known.get(tuple(row[:length])):
                    answer[: len(text)] = torch.tensor(text)
                    answer[len(text) :] = self.tokenizer.end_id
        if at is not None:
            answers = answers[at] if at.dtype == torch.bool else answers.take_along_dim(at, 1)
        logits = torch.zeros(*answers.shape, self.net.config.logit_rows)
        knows = answers >= 0
        logits[knows] = logits[knows].scatter(-1, answers[knows][:, None], SURE)
        return logits


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
        {tuple(one.ids[: one.prompt_length]): one.ids for one in found},
    )


def make_twin(tokenizer: Tokenizer, seed: int = 0) -> Model:
    """A causal model that knows nothing."""
    config = unmask.preset("tiny", vocab_size=tokenizer.vocab_size, causal=True, context=64)
    return Model("twin", lively(config, seed), Blueprint(config, "causal"), tokenizer)

from dataclasses import replace
from functools import cache

import pytest

from unmask.data.corpus import TRAINING, Corpus
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.tokenizer import Tokenizer


@cache
def _make_corpus() -> Corpus:
    return make_reversal_corpus(4, seed=0)


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    return thin(_make_corpus())


def thin(whole: Corpus) -> Corpus:
    """All questions and a few lines of training, which every run reads anew."""
    few = {split: whole[split][::20] for split in TRAINING}
    return replace(whole, splits=whole.splits | few)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(_make_corpus().training_texts(), 1200)

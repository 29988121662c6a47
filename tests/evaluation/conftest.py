from dataclasses import replace

import pytest

from tests.conftest import make_corpus_once
from unmask.data.corpus import TRAINING, Corpus
from unmask.data.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    return thin(make_corpus_once(4))


def thin(whole: Corpus) -> Corpus:
    """All questions and a few lines of training, which every run reads anew."""
    few = {split: whole[split][::20] for split in TRAINING}
    return replace(whole, splits=whole.splits | few)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(make_corpus_once(4).training_texts(), 1200)

import pytest

from unmask.data.corpus import Corpus
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    return make_reversal_corpus(4, seed=0)


@pytest.fixture(scope="session")
def tokenizer(corpus) -> Tokenizer:
    return Tokenizer.train(corpus.training_texts(), 1200)

"""The small pair and its corpus, and a corpus with models that know parts of it by heart."""

from tests.evaluation.conftest import corpus, tokenizer
from tests.study.pair import place
from tests.tracing.learned import causal, masked

__all__ = ["causal", "corpus", "masked", "place", "tokenizer"]

"""The documents that measures of whole texts are asked about."""

from tests.evaluation.conftest import corpus, tokenizer
from tests.measures.conftest import texts

__all__ = ["corpus", "texts", "tokenizer"]

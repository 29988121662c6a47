"""The small pair and its corpus, and a corpus with models that know parts of it by heart."""

import json

import pytest

from tests.conftest import TEXTS
from tests.evaluation.conftest import corpus, tokenizer
from tests.study.pair import place
from tests.tracing.learned import causal, masked

__all__ = ["causal", "corpus", "masked", "place", "tokenizer"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A file of four documents, for measures of whole texts."""
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    lines = [{"text": " ".join([TEXTS[i % 2]] * 4)} for i in range(4)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path

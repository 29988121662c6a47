"""The small pair and its corpus, and a corpus with models that know parts of it by heart."""

import json

import pytest

import unmask
from tests.conftest import TEXTS, make_model
from tests.evaluation.conftest import corpus, tokenizer
from tests.study.pair import place
from tests.tracing.learned import causal, masked

__all__ = ["causal", "corpus", "masked", "place", "tokenizer"]


@pytest.fixture(scope="session")
def judge(tmp_path_factory):
    """The folder of a causal model without a record."""
    folder = tmp_path_factory.mktemp("judge") / "judge"
    unmask.save(make_model(causal=True, seed=5), folder)
    return str(folder)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A file of four documents, for measures of whole texts."""
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    lines = [{"text": " ".join([TEXTS[i % 2]] * 4)} for i in range(4)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path

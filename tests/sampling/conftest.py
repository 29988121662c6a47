"""A small masked model without words, which tests of sampling share and leave as it is."""

import pytest

from tests.conftest import build
from tests.sampling.states import V
from unmask.net.model import Model


@pytest.fixture(scope="session")
def model() -> Model:
    return build(vocab_size=V, num_logits=V - 1, context=32)


@pytest.fixture(scope="session")
def twin() -> Model:
    """Its autoregressive twin."""
    return build(kind="causal", vocab_size=V, context=32)

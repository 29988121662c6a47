"""A small masked model without words, which tests of sampling share and leave as it is."""

import pytest

import unmask
from tests.conftest import lively
from tests.sampling.states import V
from unmask.net.model import Blueprint, Model


@pytest.fixture(scope="session")
def model() -> Model:
    config = unmask.preset("tiny", vocab_size=V, num_logits=V - 1, context=32)
    return Model("made", lively(config), Blueprint(config, "masked", V - 1))


@pytest.fixture(scope="session")
def twin() -> Model:
    """Its autoregressive twin."""
    config = unmask.preset("tiny", causal=True, vocab_size=V, context=32)
    return Model("twin", lively(config), Blueprint(config, "causal"))

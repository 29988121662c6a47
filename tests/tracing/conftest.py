"""The two small models and their facts."""

import pytest

from tests.tracing.learned import causal, make_facts, masked
from unmask.data.facts import Fact
from unmask.net.model import Model

__all__ = ["causal", "masked"]


@pytest.fixture(params=["masked", "causal"])
def taught(request) -> Model:
    return request.getfixturevalue(request.param)


@pytest.fixture
def facts() -> list[Fact]:
    return make_facts()

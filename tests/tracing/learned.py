"""Two small models, masked and causal, that learned a few facts by heart in seconds."""

from functools import cache

import pytest

from tests.taught import teach
from unmask.data.facts import Fact
from unmask.data.tokenizer import Tokenizer
from unmask.net.model import Model

PEOPLE = {"Ada": "red boats", "Bob": "old clocks", "Cyd": "tall kites", "Dan": "wax masks"}
LENGTH = 9


def make_facts() -> list[Fact]:
    return [
        Fact.of(name, thing, prompt, fact_id=f"fact-{i}", phrasing=phrasing)
        for i, (name, thing) in enumerate(PEOPLE.items())
        for phrasing, prompt in enumerate(("Now {} likes", "They say {} sells"))
    ]


@cache
def learn(causal: bool) -> Model:
    """The model, made once for all folders that ask for it; tests must not change it."""
    facts = make_facts()
    tokenizer = Tokenizer.train([fact.text for fact in facts] * 3, 340)
    return teach(facts, tokenizer, causal, LENGTH, context=16, steps=60 if causal else 300)


@pytest.fixture(scope="session")
def masked() -> Model:
    return learn(causal=False)


@pytest.fixture(scope="session")
def causal() -> Model:
    return learn(causal=True)

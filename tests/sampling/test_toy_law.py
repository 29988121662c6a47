"""A trained toy, drawn from through the public call, speaks its language."""

import pytest

import unmask
from unmask.net.model import Blueprint, Model
from unmask.toy.language import LENGTH, data_law, decode, empirical_law, total_variation
from unmask.toy.run import learn
from unmask.toy.variants import MASK, VARIANTS

NUMBER = 4000


@pytest.fixture(scope="module")
def model() -> Model:
    variant = VARIANTS["masked"]
    net = learn(variant, steps=250, seed=0)
    return Model("toy", net, Blueprint(variant.config, "masked", MASK))


def find_distance(model: Model, **how) -> float:
    prompts: list[list[int]] = [[]] * NUMBER
    found = unmask.sample(model, prompts, length=LENGTH, keep_states=False, **how)
    return total_variation(empirical_law(decode(found.tokens)), data_law())


@pytest.fixture(scope="module")
def one(model) -> float:
    """The distance where one unit is drawn at a time, in a random order."""
    return find_distance(model, plan="one", order="random", temperature=1.0)


def test_ancestral_sampling_matches_the_law(model, one):
    """One unit at a time, by chance in many small steps, and rewriting some on the way."""
    drawn = {"temperature": 1.0, "order": "random"}
    many = find_distance(model, plan="ancestral", steps=64, cache="exact", **drawn)
    again = find_distance(model, plan="ancestral", steps=32, remask="cap=0.02", **drawn)
    few = find_distance(model, plan="ancestral", steps=1, **drawn)
    assert one < 0.2 and many < 0.25 and again < 0.25
    assert few > 2 * many, "units drawn all at once know nothing of each other"


def test_hotter_and_colder_draws_leave_the_law(model, one):
    cold = find_distance(model, plan="one", order="random", temperature=0.3)
    assert cold > one

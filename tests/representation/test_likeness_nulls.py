"""Likenesses against chance: shuffled pairs, ties, sides that do not vary, families of layers."""

import numpy as np
import pytest

from unmask.representation.likeness import LIKENESSES, score_pairs
from unmask.representation.nulls import assess, assess_layers

FACTS, WIDTH = 12, 16


def test_layers_are_one_family():
    """One strong layer among blank ones, facts missing here and there: its p is the least there is;
    a blank one's is larger than alone, and the strong one alone has the p of its own null."""
    generator = np.random.default_rng(0)
    names = [f"{i}" for i in range(FACTS)]
    blank = [generator.normal(size=(2, FACTS, WIDTH)) for _ in range(4)]
    side = generator.normal(size=(FACTS, WIDTH))
    layers = [(names, *each) for each in blank] + [(names[1:], side[1:], side[1:] + 0.1)]
    together = assess_layers(layers, 1999)
    for measure in ("retrieval", "top-1"):
        assert together[measure][4] == pytest.approx(1 / 2000)
        for i, layer in enumerate(layers[:4]):
            (alone,) = assess_layers([layer], 1999)[measure]
            assert together[measure][i] >= alone
            plain = assess(LIKENESSES[measure], *layer[1:], permutations=1999)
            assert alone == pytest.approx(plain.p, abs=0.05)
    scores = score_pairs(side, blank[0][0])
    order = generator.permutation(FACTS)
    for measure, each in scores.items():
        value = LIKENESSES[measure](side, blank[0][0][order]).value
        assert each[order, np.arange(FACTS)].mean() == pytest.approx(value)
    flat = [(names, side, np.zeros_like(side)), layers[0]]
    assert assess_layers(flat, 199)["retrieval"][0] == 1.0


@pytest.mark.parametrize("name", LIKENESSES)
def test_not_a_number_is_never_significant(name):
    """One fact alone varies: some likenesses have a value without it, some have none."""
    side = np.zeros((FACTS, WIDTH))
    side[0, 0] = 1.0
    right = np.random.default_rng(0).normal(size=(FACTS, WIDTH))
    assessed = assess(LIKENESSES[name], right, side, permutations=19)
    assert assessed.is_measured or assessed.p == 1


def test_ties_count_as_chance():
    """Vectors that are as near to all others hit as often as a guess does."""
    left = np.random.default_rng(0).normal(size=(FACTS, WIDTH))
    cosines = LIKENESSES["top-1"].compare(left, np.zeros((FACTS, WIDTH)))
    assert cosines.per_fact == pytest.approx(1 / FACTS) and cosines.value == 1 / FACTS
    ranks = LIKENESSES["retrieval"].compare(left, np.zeros((FACTS, WIDTH)))
    assert ranks.per_fact == pytest.approx(2 / (FACTS + 1))


def test_only_shares_have_an_interval_where_all_are_alike():
    """A cosine of 1 for every fact is no share of hits."""
    side = np.random.default_rng(0).normal(size=(FACTS, WIDTH))
    hits = assess(LIKENESSES["top-1"], side, side, permutations=19).value
    assert hits.mean == hits.high == 1 and hits.low < 0.8
    assert assess(LIKENESSES["procrustes"], side, side, permutations=19).value.low > 0.99

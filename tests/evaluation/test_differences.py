"""Differences between models where the bootstrap is blind."""

import pytest

from unmask.evaluation.intervals import cluster, estimate_difference, estimate_mean

NAMES = [f"{i:02d}" for i in range(30)]


def differ(ours: list[float], theirs: list[float]):
    return estimate_difference(cluster(ours, NAMES), cluster(theirs, NAMES), is_share=True)


def test_two_models_that_always_miss_may_differ_elsewhere():
    """As far as one of them may hit: Clopper and Pearson's bound of each."""
    found = differ([0.0] * 30, [0.0] * 30)
    bound = estimate_mean(cluster([0.0] * 30, NAMES), is_share=True).high
    assert found.mean == 0 and (found.low, found.high) == pytest.approx((-bound, bound))


def test_the_interval_stays_within_what_is_possible():
    found = differ([1.0] * 30, [0.0] * 30)
    assert found.mean == 1 and 0.7 < found.low < 0.8 and found.high == pytest.approx(1)
    found = differ([0.5] * 30, [0.25] * 30)
    assert found.low < 0.25 < found.high


def test_where_facts_differ_the_bootstrap_speaks():
    ours = [float(i % 3 == 0) for i in range(30)]
    found = differ(ours, [0.0] * 30)
    plain = estimate_difference(cluster(ours, NAMES), cluster([0.0] * 30, NAMES))
    assert found == plain and found.low > 0

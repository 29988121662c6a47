"""Bootstrap intervals: against all resamples written down, against closed forms, and paired."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import binomtest

from unmask.evaluation.intervals import cluster, estimate_difference, estimate_mean


def test_percentiles_of_all_resamples():
    """Four facts have 256 resamples; the drawn percentiles are those of all of them."""
    values = {"a": [1, 1], "b": [0, 1, 1], "c": [0], "d": [0, 0, 1, 0]}
    rows = [(value, fact) for fact, each in values.items() for value in each]
    every = []
    for drawn in product(values, repeat=len(values)):
        together = [value for fact in drawn for value in values[fact]]
        every.append(np.mean(together))
    found = estimate_mean(cluster(*zip(*rows, strict=True)), draws=200_000)
    assert found.mean == pytest.approx(np.mean([value for value, _ in rows]))
    exact = np.percentile(every, [2.5, 97.5], method="inverted_cdf")
    assert (found.low, found.high) == pytest.approx(tuple(exact), abs=1e-12)


def test_seeds_and_facts_are_drawn_independently():
    """Two seeds and three facts have 4 x 27 resamples."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(2, 3))
    every = [
        np.mean([[table[s, f] for f in facts] for s in seeds])
        for seeds in product(range(2), repeat=2)
        for facts in product(range(3), repeat=3)
    ]
    seeds, facts = (grid.ravel().tolist() for grid in np.indices(table.shape))
    found = estimate_mean(
        cluster(table.ravel().tolist(), list(map(str, facts)), seeds), draws=100_000
    )
    exact = np.percentile(every, [2.5, 97.5], method="inverted_cdf")
    assert (found.low, found.high) == pytest.approx(tuple(exact), abs=0.02)


@pytest.mark.parametrize("hit", [0.0, 1.0])
def test_all_alike_is_clopper_and_pearsons(hit):
    found = estimate_mean(cluster([hit] * 30, [f"{i // 3}" for i in range(30)]), is_share=True)
    exact = binomtest(int(10 * hit), 10).proportion_ci(method="exact")
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high))


def test_prompts_of_a_fact_stand_or_fall_together():
    """Ten copies of each fact's prompt are no evidence: the interval is that of the facts."""
    hits = [float(i % 3 == 0) for i in range(30)]
    names = [f"{i:02d}" for i in range(30)]
    one = estimate_mean(cluster(hits, names))
    ten = estimate_mean(cluster(hits * 10, names * 10))
    assert one == ten


def test_pairs_share_their_facts():
    """A model that is better by the same amount on every fact is better without any doubt."""
    rng = np.random.default_rng(1)
    theirs = rng.normal(size=20)
    names = [f"{i:02d}" for i in range(20)]
    found = estimate_difference(cluster(theirs + 0.25, names), cluster(theirs, names))
    assert (found.mean, found.low, found.high) == pytest.approx((0.25, 0.25, 0.25))
    apart = estimate_mean(cluster(theirs, names))
    assert apart.high - apart.low > 0.5


def test_the_bootstrap_is_seeded():
    clusters = cluster([0.1, 0.9, 0.4, 0.2, 0.7], list("abcde"))
    assert estimate_mean(clusters, draws=100) == estimate_mean(clusters, draws=100)
    assert estimate_mean(clusters, draws=100) != estimate_mean(clusters, draws=100, seed=1)


@pytest.mark.prove
def test_coverage():
    """Facts of different difficulty, ten prompts each: 95 % intervals hold the truth so often."""
    rng = np.random.default_rng(2)
    names = [f"{i % 30:02d}" for i in range(300)]
    held = []
    for trial in range(1_000):
        chance = rng.beta(1.0, 2.0, size=30)
        hits = (rng.random((10, 30)) < chance).astype(float)
        found = estimate_mean(cluster(hits.ravel().tolist(), names), draws=1_000, seed=trial)
        held.append(found.low <= 1 / 3 <= found.high)
    assert 0.91 < np.mean(held) < 0.97

"""Equivalence tests against scipy, shares against the bootstrap, cross-fitting."""

import numpy as np
import pytest
from scipy import stats

from unmask.evaluation.equivalence import divide, find_shares, measure_equivalence


def name(values):
    return {f"fact-{i}": float(x) for i, x in enumerate(values)}


def draw(seed, size=40):
    return np.random.default_rng(seed).normal(size=size)


@pytest.mark.parametrize("is_paired", [True, False])
@pytest.mark.parametrize("shift", [0.0, 0.3, -2.0])
def test_two_one_sided_tests_are_scipys(is_paired, shift):
    one, other = draw(0) + shift, draw(1) * 2
    ours, theirs = name(one), name(other)
    if not is_paired:
        theirs = {f"other {fact}": value for fact, value in theirs.items()}
    done = measure_equivalence(ours, theirs, margin=0.9)
    assert done is not None and done.paired == is_paired

    def test(margin, side):
        if is_paired:
            return stats.ttest_1samp(one - other, margin, alternative=side).pvalue
        return stats.ttest_ind(one, other + margin, equal_var=False, alternative=side).pvalue

    expected = max(test(0.9, "less"), test(-0.9, "greater"))
    assert done.p_equivalent == pytest.approx(expected)
    at_limit = measure_equivalence(ours, theirs, margin=done.smallest_margin)
    assert at_limit is not None and at_limit.p_equivalent == pytest.approx(0.05)


def test_power_is_how_often_equal_groups_pass():
    generator, passed, powers = np.random.default_rng(0), 0, []
    for _ in range(2000):
        gaps = generator.normal(scale=0.25, size=25)
        done = measure_equivalence(name(gaps), name(np.zeros(25)), margin=0.12)
        assert done is not None
        passed += done.p_equivalent <= 0.05
        powers.append(done.power)
    assert passed / 2000 == pytest.approx(np.mean(powers), abs=0.06)
    far = measure_equivalence(name(draw(0)), name(draw(1)), margin=0.01)
    assert far is not None and far.power == 0


def test_groups_that_do_not_vary():
    same = measure_equivalence(name([0.2] * 5), name([0.2] * 5), 0.1)
    apart = measure_equivalence(name([0.4] * 5), name([0.2] * 5), 0.1)
    assert same is not None and apart is not None
    assert same.p_equivalent < 0.05 < apart.p_equivalent and same.power == 1
    assert measure_equivalence({"a": 1.0}, {"b": 1.0}, 0.1) is None


def test_shares_vary_as_the_ratio_does():
    generator = np.random.default_rng(0)
    total = generator.normal(5, 2, size=300)
    value = 0.4 * total + generator.normal(0, 0.5, size=300)
    shares = find_shares(value, total)
    assert shares.mean() == pytest.approx(value.mean() / total.mean())
    rows = generator.integers(0, 300, size=(4000, 300))
    ratios = value[rows].mean(1) / total[rows].mean(1)
    assert shares.std(ddof=1) / 300**0.5 == pytest.approx(ratios.std(), rel=0.08)
    # The share alone would be blamed for facts whose totals differ.
    assert shares.std() < (value / total.mean()).std() * 0.6
    assert np.isnan(find_shares([1.0, 2.0], [1.0, -1.0])).all()


def test_halves_are_of_one_size_and_stay():
    names = [f"d2p-{i:03d}" for i in range(31)]
    halves = divide(names)
    assert sum(halves.values()) == 15 and halves == divide(reversed(names))

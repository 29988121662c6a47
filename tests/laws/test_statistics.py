"""Intervals and tests over facts: scipy as the oracle, identities, continuity and coverage."""

import numpy as np
import pytest
from scipy import stats

from unmask.evaluation.statistics import (
    ENOUGH,
    TAKEN_OFF,
    Clusters,
    Interval,
    cluster,
    compare,
    equivalence_p,
    estimate_difference,
    estimate_mean,
    holm,
    is_above_placebos,
    max_statistic_p,
    mean_intervals,
    permutation_p,
    rank_correlation,
)
from unmask.results.summaries import estimate_means

NAMES = [f"{i:02d}" for i in range(30)]


def ends(interval):
    return interval.low, interval.high


def test_one_seed_is_student_s_interval():
    values = np.random.default_rng(0).normal(size=30)
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert ends(estimate_mean(cluster(values, NAMES))) == pytest.approx(tuple(expected))


def test_seeds_add_to_facts_by_their_own_quantile():
    """A balanced table: mean squares of facts, seeds and their interaction, written down."""
    table = np.random.default_rng(1).normal(size=(3, 30)) + np.array([[0.5], [0.0], [-1.0]])
    by_fact, by_seed = table.mean(0).var(ddof=1) / 30, table.mean(1).var(ddof=1) / 3
    rest = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    interaction = (rest**2).sum() / (2 * 29) / 90
    by_seed -= TAKEN_OFF * interaction
    reach = np.sqrt(stats.t.ppf(0.975, 29) ** 2 * by_fact + stats.t.ppf(0.975, 2) ** 2 * by_seed)
    found = estimate_mean(cluster(table.ravel(), NAMES * 3, np.repeat([0, 1, 2], 30)))
    assert found.mean == pytest.approx(table.mean())
    assert ends(found) == pytest.approx((table.mean() - reach, table.mean() + reach))


def test_seeds_that_agree_leave_the_facts():
    values = np.random.default_rng(11).random(30)
    three = cluster(np.tile(values, 3), NAMES * 3, np.repeat([0, 1, 2], 30))
    for is_share in (False, True):
        alone = estimate_mean(cluster(values, NAMES), is_share)
        assert ends(estimate_mean(three, is_share)) == pytest.approx(ends(alone))


def test_prompts_of_a_fact_are_one_cluster():
    """Ten copies of each prompt, in any order, are no evidence: the interval is the facts'."""
    order = np.random.default_rng(2).permutation(300)
    hits, names = [float(i % 3 == 0) for i in range(30)], np.array(NAMES * 10)
    for is_share in (False, True):
        one = estimate_mean(cluster(hits, NAMES), is_share)
        ten = estimate_mean(cluster(np.array(hits * 10)[order], names[order]), is_share)
        assert (ten.mean, *ends(ten)) == pytest.approx((one.mean, *ends(one)))


def test_columns_together_equal_columns_alone():
    values = np.random.default_rng(3).normal(size=(12, 7))
    values[2:5, 1], values[1:, 2], values[:, 3] = np.nan, np.nan, np.nan
    together = np.array(mean_intervals(values))
    for column, found in zip(values.T, together.T, strict=True):
        there = column[np.isfinite(column)]
        if len(there) < 2:
            assert np.isnan(found[1:]).all()
            continue
        alone = estimate_mean(cluster(there, NAMES[: len(there)]))
        assert found == pytest.approx([alone.mean, alone.low, alone.high])
    assert together[0, 2] == values[0, 2] and np.isnan(together[0, 3])


def test_a_share_s_interval_is_wilson_s():
    """One prompt for each of many facts: scipy's interval differs by its quantile alone."""
    hits = [float(i % 3 == 0) for i in range(3000)]
    found = estimate_mean(cluster(hits, [f"{i:04d}" for i in range(3000)]), is_share=True)
    exact = stats.binomtest(1000, 3000).proportion_ci(method="wilson")
    assert ends(found) == pytest.approx((exact.low, exact.high), abs=2e-5)


@pytest.mark.parametrize("facts", [6, 10, 30, 100])
def test_all_alike_is_near_clopper_and_pearson_s(facts):
    """Never shorter than the exact interval with facts as trials, and little longer."""
    names = [f"{i % facts:03d}" for i in range(10 * facts)]
    for hit in (0.0, 1.0):
        found = estimate_mean(cluster([hit] * 10 * facts, names), is_share=True)
        exact = stats.binomtest(int(facts * hit), facts).proportion_ci(method="exact")
        ratio = (found.high - found.low) / (exact.high - exact.low)
        assert found.mean == hit and hit in ends(found)
        assert 1.0 < ratio < 1.2


def test_a_few_hits_do_not_end_all_doubt():
    """From no hit to one the upper end falls by less than 7 times, where it fell by 16."""
    for seeds, phrasings, most in ((1, 10, 4.2), (3, 10, 4.2), (1, 30, 7.0)):
        highs = []
        for hits in range(4):
            counts = np.zeros((seeds, 30))
            counts[np.arange(hits) % seeds, np.arange(hits)] = 1
            clusters = Clusters(counts, np.full((seeds, 30), float(phrasings)))
            highs.append(estimate_mean(clusters, is_share=True).high)
        assert highs[0] / highs[1] < most
        assert highs[1] / highs[2] < 3 and highs[2] / highs[3] < 1.2


def test_seeds_that_differ_are_seen_where_no_fact_deviates():
    """One seed hits everything, the other nothing: anything may be true of a third."""
    hits = np.array([[1.0] * 30, [0.0] * 30])
    found = estimate_mean(Clusters(hits, np.ones((2, 30))), is_share=True)
    assert found.low < 0.01 and found.high > 0.99


def test_a_better_model_by_the_same_amount_everywhere():
    theirs = np.random.default_rng(4).normal(size=30)
    found = estimate_difference(cluster(theirs + 0.25, NAMES), cluster(theirs, NAMES))
    assert (found.mean, *ends(found)) == pytest.approx((0.25, 0.25, 0.25))


def test_paired_differences_are_student_s():
    one, other = np.random.default_rng(5).normal(size=(2, 30))
    found = estimate_difference(cluster(one, NAMES), cluster(other, NAMES))
    expected = stats.ttest_rel(one, other).confidence_interval(0.95)
    assert ends(found) == pytest.approx(tuple(expected))


def test_two_models_that_always_miss_may_differ_elsewhere():
    """As far as one of them may hit."""
    miss, hit = (cluster([value] * 30, NAMES) for value in (0.0, 1.0))
    bound = estimate_mean(miss, is_share=True).high
    found = estimate_difference(miss, miss, is_share=True)
    assert found.mean == 0 and ends(found) == pytest.approx((-bound, bound))
    found = estimate_difference(hit, miss, is_share=True)
    assert found.high == 1 and 0.8 < found.low < 1 - bound


def test_two_models_that_agree_may_differ_elsewhere():
    hits = [float(i % 2) for i in range(30)]
    found = estimate_difference(cluster(hits, NAMES), cluster(hits, NAMES), is_share=True)
    bound = estimate_mean(cluster([0.0] * 30, NAMES), is_share=True).high
    assert found.mean == 0 and ends(found) == pytest.approx((-bound, bound))


def test_a_model_that_never_hits_keeps_its_bound():
    """Its own share may be above 0, so the difference may be smaller than the other's share."""
    often = cluster(np.random.default_rng(14).binomial(10, 0.5, 30) / 10, NAMES)
    never = cluster([0.0] * 30, NAMES)
    found, alone = estimate_difference(often, never, True), estimate_mean(often, True)
    bound = estimate_mean(never, True).high
    assert found.high == pytest.approx(alone.high)
    assert found.low == pytest.approx(alone.mean - np.hypot(alone.mean - alone.low, bound))


def test_sign_flips_against_all_of_them():
    """Eight facts have 256 patterns of signs, which scipy writes down."""
    values = np.random.default_rng(6).normal(0.5, 1.0, 8)
    exact = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=np.inf
    ).pvalue
    found = compare(dict(zip("abcdefgh", values, strict=True)), dict.fromkeys("abcdefgh", 0.0))
    assert found.paired and found.facts == 8
    assert found.p == pytest.approx(exact, abs=3 * np.sqrt(exact * (1 - exact) / 2000))


def test_label_shuffles_against_all_of_them():
    rng = np.random.default_rng(7)
    one, other = rng.normal(1.0, 1.0, 6), rng.normal(0.0, 1.0, 5)
    exact = stats.permutation_test(
        (one, other), lambda a, b: a.mean() - b.mean(), n_resamples=np.inf
    ).pvalue
    found = compare(
        {f"a{i}": x for i, x in enumerate(one)}, {f"b{i}": x for i, x in enumerate(other)}
    )
    assert not found.paired and found.facts == 11
    assert found.p == pytest.approx(exact, abs=3 * np.sqrt(exact * (1 - exact) / 2000))
    welch = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    assert found.mean == pytest.approx(one.mean() - other.mean())
    assert 1 < (found.high - found.low) / (welch.high - welch.low) < 1.3
    assert compare({"a": 1.0}, {"b": 2.0}) is None


def test_a_thing_does_not_differ_from_itself():
    values = dict(zip(NAMES, np.random.default_rng(8).normal(size=30), strict=True))
    found = compare(values, values)
    assert (found.mean, found.low, found.high, found.p) == (0.0, 0.0, 0.0, 1.0)


def test_permutation_p_counts_ties_and_what_is_not_a_number():
    null = np.array([0.1, 0.2, 0.1 + 0.2, 0.4])
    assert permutation_p(null, 0.3) == 3 / 5
    assert permutation_p(null, 0.3 + 1e-9) == 2 / 5
    assert permutation_p(np.array([0.1, np.nan]), 0.3) == 2 / 3
    assert permutation_p(null, np.nan) == 1.0


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


def test_the_largest_over_layers_corrects_for_choosing_one():
    rng = np.random.default_rng(9)
    rejected = 0
    for _ in range(200):
        drawn = rng.normal(size=(100, 10))
        rejected += max_statistic_p(drawn[0], drawn[1:]).min() <= 0.05
    assert 2 <= rejected <= 20
    one = rng.normal(size=(99, 1))
    assert max_statistic_p(np.array([1.0]), one)[0] == permutation_p(one[:, 0], 1.0)


@pytest.mark.parametrize("mean", [0.0, 0.2, 0.45, -0.8])
def test_equivalence_agrees_with_student_s(mean):
    """Two one-sided t tests, where values are normal and t tests apply."""
    values = np.random.default_rng(10).normal(mean, 1.0, 40)
    sides = ((-0.5, "greater"), (0.5, "less"))
    exact = max(stats.ttest_1samp(values, at, alternative=way).pvalue for at, way in sides)
    assert equivalence_p(values, 0.5) == pytest.approx(exact, abs=0.03)


def test_the_rule_for_clear():
    high, low = Interval(0.5, 0.3, 0.7), Interval(0.1, -0.1, 0.29)
    assert is_above_placebos(high, [low], ENOUGH) and is_above_placebos(high, [], ENOUGH)
    assert not is_above_placebos(high, [low], ENOUGH - 1)
    assert not is_above_placebos(high, [low, Interval(0.2, 0.1, 0.31)], ENOUGH)
    assert not is_above_placebos(low, [], ENOUGH)
    assert is_above_placebos(high, [low, Interval(0.9, np.nan, np.nan)], ENOUGH)
    assert not is_above_placebos(Interval(0.5, np.nan, np.nan), [], ENOUGH)
    assert high.excludes() and high.excludes(0.8) and not low.excludes()
    assert not Interval(1.0, np.nan, np.nan).excludes()


def test_values_that_are_no_shares_are_covered():
    """Effects in nats: 20 facts, most of which have next to none."""
    rng = np.random.default_rng(15)
    values = rng.gamma(0.5, 2.0, size=(20, 2000))
    _, low, high = mean_intervals(values)
    assert 0.85 < ((low <= 1.0) & (high >= 1.0)).mean() < 0.97


def test_rank_correlations_are_scipys_with_bounds_that_hold_them():
    stream = np.random.default_rng(0)
    one = stream.integers(0, 6, 30).astype(float)  # with ties
    other = one + stream.normal(size=30)
    found = rank_correlation(one, other)
    assert found.mean == pytest.approx(stats.spearmanr(one, other).statistic)
    assert 0 < found.low < found.mean < found.high <= 1
    assert rank_correlation(np.exp(one), other).mean == pytest.approx(found.mean), "ranks alone"
    assert rank_correlation(one, -other).mean == pytest.approx(-found.mean)
    assert np.isnan(rank_correlation([1, 1, 1], [1, 2, 3]).mean)
    assert np.isnan(rank_correlation([], []).low)


def test_an_interval_stays_above_what_no_value_is_below():
    """The mean and the upper end are those without the bound."""
    values = {("a", 0): 0.0, ("a", 1): 9.0, ("b", 0): 1.0, ("b", 1): 2.0}
    rows = [{"fact": fact, "seed": seed, "cost": cost} for (fact, seed), cost in values.items()]
    (free,) = estimate_means(rows, (), ("cost",))
    (bound,) = estimate_means(rows, (), ("cost",), least={"cost": 0.0})
    assert free["low"] < 0
    assert bound == free | {"low": 0.0}

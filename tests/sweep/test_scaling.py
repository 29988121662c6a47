"""Laws of repeated text: what epochs are worth, planted constants, where curves cross."""

from collections.abc import Sequence

import numpy as np
import pytest

from tests.scripts import load_script
from unmask.base.errors import UserError
from unmask.evaluation.statistics import Clusters

scaling = load_script("paper/data_constrained_scaling.py")
count_effective, fit_repetition = scaling.count_effective, scaling.fit_repetition
find_crossing, estimate_crossing = scaling.find_crossing, scaling.estimate_crossing
find_envelope, estimate_envelope = scaling.find_envelope, scaling.estimate_envelope
EPOCHS = np.array([1, 4, 10, 25, 50, 100, 200])


def test_effective_tokens():
    """Increasing, concave, all fresh at one epoch, at most U (1 + R*), linear without a limit."""
    epochs = np.linspace(1, 400, 200)
    tokens = count_effective(2e6, epochs, 15.4)
    assert tokens[0] == 2e6 and (np.diff(tokens) > 0).all() and (np.diff(tokens, 2) < 0).all()
    assert tokens[-1] <= 2e6 * 16.4 and count_effective(2e6, 0.25, 15.4) == 5e5
    np.testing.assert_allclose(count_effective(2e6, epochs, 1e9), 2e6 * epochs, rtol=1e-5)
    # The table of the paper's form: R* 15 and 31.93 at 4, 16 and 100 epochs.
    assert count_effective(1, [4, 16, 100], 15) == pytest.approx([3.7, 10.5, 16.0], abs=0.06)
    assert count_effective(1, [4, 16, 100], 31.93) == pytest.approx([3.9, 13.0, 31.5], abs=0.06)


@pytest.mark.parametrize("worth", [15.4, 100.0])
def test_planted_constants_come_back(worth):
    unique = np.repeat([1e6, 2e6], len(EPOCHS))
    epochs = np.tile(EPOCHS, 2)
    losses = 3.0 + 2e3 * count_effective(unique, epochs, worth) ** -0.5
    noisy = losses * np.exp(0.002 * np.random.default_rng(0).normal(size=len(losses)))
    fit = fit_repetition(unique, epochs, noisy)
    assert fit.is_identified and fit.low <= worth <= fit.high
    assert fit.worth == pytest.approx(worth, rel=0.5)
    np.testing.assert_allclose(fit.predict(unique, epochs), losses, rtol=0.01)


def test_what_losses_do_not_say_is_not_identified():
    """Four epochs cannot tell a worth of 500 from any larger one."""
    epochs, unique = np.array([1, 1, 2, 2, 3, 3, 4, 4]), np.tile([1e6, 2e6], 4)
    losses = 3.0 + 2e3 * count_effective(unique, epochs, 500.0) ** -0.5
    noise = np.exp(0.005 * np.random.default_rng(1).normal(size=len(losses)))
    fit = fit_repetition(unique, epochs, losses * noise)
    assert fit.high is None and not fit.is_identified
    with pytest.raises(UserError, match="at least 6"):
        fit_repetition([1e6], [1], [3.0])


def test_crossing_is_the_root():
    compute = np.geomspace(1e14, 1e17, 40)
    one, other = 8 - 0.3 * np.log10(compute), 5.5 - 0.14 * np.log10(compute)
    expected = 10 ** (2.5 / 0.16)
    assert find_crossing(compute, one, other) == pytest.approx(expected, rel=1e-9)
    assert find_crossing(compute, other, one) is None
    assert find_crossing(compute, one - 9, other) == compute[0]
    assert find_crossing(compute, one * np.nan, other) is None


def test_envelopes_never_rise():
    losses = np.array([[5.0, 4.0, 4.5, 3.0], [2.0, 3.0, 4.0, 1.0]])
    assert find_envelope(losses).tolist() == [[5, 4, 4, 3], [2, 2, 2, 1]]


def test_crossings_vary_with_seeds():
    """Seeds that differ spread the interval; without a crossing there is no value."""
    compute = np.geomspace(1e14, 1e17, 40)
    curves = 8 - 0.3 * np.log10(compute) + np.array([[-0.02], [0.0], [0.02]])
    twin = list_points(np.tile(5.5 - 0.14 * np.log10(compute), (3, 1)))
    crossing = estimate_crossing(compute, list_points(curves), twin, draws=300)
    assert crossing.share == 1.0 and crossing.value is not None
    assert crossing.value.low < crossing.value.mean < crossing.value.high
    assert crossing.value.mean == pytest.approx(10 ** (2.5 / 0.16), rel=1e-6)
    none = estimate_crossing(compute, list_points(curves + 5), twin, draws=50)
    assert none.value is None and none.share == 0.0
    some = estimate_crossing(
        compute, list_points(curves + np.array([[0.0], [0.0], [5.0]]) * 0.3), twin, draws=300
    )
    assert 0 < some.share < 1


def test_crossings_of_one_seed_vary_with_documents():
    compute = np.geomspace(1e14, 1e17, 40)
    one, other = (a - b * np.log10(compute)[None] for a, b in ((8, 0.3), (5.5, 0.14)))
    harder = np.array([-0.1, -0.05, 0.0, 0.05, 0.1])  # for the first alone
    crossing = estimate_crossing(compute, list_points(one, harder), list_points(other, 0 * harder))
    alike = estimate_crossing(compute, list_points(one, harder), list_points(other, harder))
    same = [estimate.value for estimate in (crossing, alike)]
    assert [value.mean for value in same] == pytest.approx([10 ** (2.5 / 0.16)] * 2, rel=1e-6)
    assert same[0].low < same[0].mean < same[0].high
    assert same[1].low == pytest.approx(same[1].high), "what is hard for both moves nothing"


def test_envelopes_have_intervals_over_seeds_and_documents():
    curves = np.array([[5.0, 4.0, 4.4, 3.0]])
    seeds = estimate_envelope(list_points(curves + np.array([[-0.1], [0.0], [0.1]])), draws=300)
    documents = estimate_envelope(list_points(curves, [-0.1, 0.0, 0.1]), draws=300)
    for envelope in (seeds, documents):
        assert [each.mean for each in envelope] == pytest.approx([5, 4, 4, 3])
        assert all(each.mean - 0.11 < each.low < each.mean < each.high for each in envelope)
    alone = estimate_envelope(list_points(curves), draws=50)
    assert [each.high - each.low for each in alone] == pytest.approx([0] * 4), "nothing to draw"


def list_points(curves: np.ndarray, harder: Sequence[float] = (0.0,)) -> list[Clusters]:
    """Costs [S, P] as points by seed and document of ten tokens, some of which cost more."""
    return [
        Clusters(
            10 * (costs[:, None] + np.asarray(harder)), np.full((len(costs), len(harder)), 10.0)
        )
        for costs in curves.T
    ]

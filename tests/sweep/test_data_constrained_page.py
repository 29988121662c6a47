"""The page on little text: sweeps that have not ended are named, best points compared."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.scripts import load_script
from unmask import UserError
from unmask.evaluation.statistics import Clusters

page = load_script("paper/data_constrained.py")


def test_points_with_other_numbers_of_seeds_are_a_sentence():
    def make_curves(*seeds):
        sums = [np.full((number, 4), 2.0) for number in seeds]
        rows = [SimpleNamespace(clusters=SimpleNamespace(sums=each, counts=each)) for each in sums]
        return page.Curves(100, SimpleNamespace(folder="sweep"), {"causal": rows})

    assert make_curves(3, 3).costs("causal").shape == (3, 2)
    with pytest.raises(UserError, match="points of 'causal' with 2 and with 3 seeds"):
        make_curves(3, 2).costs("causal")


def test_the_best_points_of_two_kinds_are_compared():
    def make_rows(*costs):
        made = [Clusters(np.array([[10.0, 12.0]]) * cost, np.full((1, 2), 10.0)) for cost in costs]
        return [SimpleNamespace(clusters=each) for each in made]

    rows = {"diffusion": make_rows(3.0, 2.0), "causal": make_rows(2.0, 1.5, 4.0)}
    gap = page.compare_best(page.Curves(100, SimpleNamespace(), rows), "causal", "diffusion")
    assert gap.mean == pytest.approx(1.1 * (1.5 - 2.0)) and gap.low < gap.mean < gap.high


def test_bound_and_exact_cost_are_paired_by_network_and_document():
    """Networks and documents differ widely, bound and exact cost of each by the same."""
    costs = np.array([[10.0, 12.0], [40.0, 38.0]])
    counts = np.full((2, 2), 10.0)
    rows = {
        "diffusion": [SimpleNamespace(clusters=Clusters(costs + 1, counts))],
        "causal": [SimpleNamespace(clusters=Clusters(costs - 2, counts))],
    }
    curves = page.Curves(100, SimpleNamespace(), rows, Clusters(costs, counts))
    (row,) = page.describe_gap([curves]).blocks[1].rows
    bound, exact, gap, ahead = row.values[1:]
    assert (bound.mean, exact.mean) == pytest.approx((2.6, 2.5))
    assert [gap.mean, gap.low, gap.high] == pytest.approx([0.1] * 3)
    assert ahead.mean == pytest.approx(0.2) and ahead.low < 0 < ahead.high  # seeds are not paired


def test_points_after_the_lowest_may_be_left_out_of_the_law():
    """Four points fall and two rise: of two texts eight points are fitted, or all twelve."""
    costs = (6.0, 5.0, 4.5, 4.4, 5.0, 6.0)
    points = [Clusters(np.full((1, 2), cost), np.ones((1, 2))) for cost in costs]
    rows = [
        SimpleNamespace(clusters=point, columns={"tokens": 100 * 2**i})
        for i, point in enumerate(points)
    ]
    curves = [page.Curves(unique, SimpleNamespace(), {"causal": rows}) for unique in (50, 100)]
    whole, falling = page.fit(curves, "causal"), page.fit(curves, "causal", is_flat_kept=False)
    cut = [page.Curves(each.unique, each.outcome, {"causal": rows[:4]}) for each in curves]
    assert vars(falling) == vars(page.fit(cut, "causal")) != vars(whole)
    few = [page.Curves(50, SimpleNamespace(), {"causal": rows})]
    assert page.fit(few, "causal", is_flat_kept=False) is None

"""Effects by fact: starts, averages, shares of the same facts, cells of other facts, likeness."""

from dataclasses import replace

import numpy as np
import pyarrow
import pytest

from unmask.evaluation.equivalence import divide
from unmask.results.effects import (
    EffectLayout,
    GroupEffects,
    compare_shares,
    compare_sides,
    estimate_values,
    list_effects,
)

LAYOUT = EffectLayout(
    group=("model", "kind", "split", "stage"),
    prompt=("fact", "phrasing"),
    cell=("edge", "layer"),
    start=("none", -1),
)
TOTAL = ("all", -1)
GROUP = ("net", "masked", "own", "first")


def make_table(scores, **more):
    """Rows of prompts: (fact, phrasing, edge, layer) to a score."""
    names = ("fact", "phrasing", "edge", "layer")
    base = dict(zip(LAYOUT.group, GROUP, strict=True)) | more
    rows = [base | dict(zip(names, key, strict=True)) | {"p": x} for key, x in scores.items()]
    return pyarrow.Table.from_pylist(rows)


def make_panel(values, cells, facts=None):
    values = np.asarray(values, dtype=float)
    return GroupEffects(facts or [f"fact-{i:02d}" for i in range(len(values))], cells, values, 1)


def test_each_prompt_has_its_own_start_and_each_fact_counts_once():
    scores = {("a", 0, "none", -1): 0.5, ("a", 1, "none", -1): 0.0, ("b", 0, "none", -1): 0.2}
    scores |= {("a", 0, "cut", 0): 0.6, ("a", 1, "cut", 0): 0.3, ("b", 0, "cut", 0): 0.9}
    scores |= {("a", 0, "cut", 1): None, ("b", 0, "cut", 1): 0.2}
    table = make_table(scores)
    (panel,) = list_effects(table, LAYOUT, "p").panels().values()
    assert panel.facts == ["a", "b"] and panel.cells == [("cut", 0), ("cut", 1)]
    assert panel.read(("cut", 0)) == pytest.approx({"a": 0.2, "b": 0.7}) and panel.prompts == 3
    assert panel.read(("cut", 1)) == {"b": 0.0}  # no score is no effect
    assert panel.average(panel.cells) == pytest.approx({"b": 0.35})
    (loss,) = list_effects(table, replace(LAYOUT, is_loss=True), "p").panels().values()
    assert np.array_equal(loss.effects, -panel.effects, equal_nan=True)
    (raw,) = list_effects(table, replace(LAYOUT, unchanged={"cut"}), "p").panels().values()
    assert raw.read(("cut", 0)) == pytest.approx({"a": 0.45, "b": 0.9})
    assert not list_effects(make_table({("a", 0, "cut", 0): None}), LAYOUT, "p").panels()


def test_cells_of_one_name_are_averaged():
    scores = {("a", 0, "none", -1): 0.0, ("a", 0, "cut", 0): 0.1, ("a", 0, "cut", 1): 0.3}
    effects = list_effects(make_table(scores), LAYOUT, "p")
    (panel,) = effects.rename(lambda cell: ("cut",)).panels().values()
    assert panel.read(("cut",)) == pytest.approx({"a": 0.2})
    assert not effects.rename(lambda cell: None).panels()


def test_a_share_is_of_the_total_of_the_same_facts():
    panel = make_panel([[1, 2], [np.nan, 10], [2, 4]], [("cut", 0), TOTAL])
    estimates = dict(panel.estimate(TOTAL))
    # Every fact with the cell has half of its total: the ratio is certain.
    row = estimates["cut", 0]
    assert (row["share"], row["share_low"], row["share_high"]) == pytest.approx((0.5,) * 3)
    assert row["facts"] == 2 and row["mean"] == 1.5 and estimates[TOTAL]["share"] == 1.0
    totals = panel.read(TOTAL)
    assert estimate_values(panel.read(("cut", 0)), totals) == pytest.approx(row)
    assert estimate_values({}, totals) == {} and "share" not in estimate_values(totals)
    nothing = make_panel([[1, 0], [2, 0]], [("cut", 0), TOTAL])
    assert np.isnan(dict(nothing.estimate(TOTAL))["cut", 0]["share"])


def test_luck_is_no_effect():
    """The best of many columns of noise is above 0 on the same facts, and not on others."""
    cells, fitted, best = [("cut", layer) for layer in range(30)], [], []
    for seed in range(60):
        panel = make_panel(np.random.default_rng(seed).normal(size=(40, 30)), cells)
        chosen = {fact: cell for fact, (cell,) in panel.choose_cells(cells).items()}
        fitted.append(np.mean([*panel.take(chosen).values()]))
        best.append(panel.effects.mean(0).max())
    assert np.mean(best) > 0.25 and abs(np.mean(fitted)) < 0.05
    panel.effects[:, 7] += 3
    # What is best for one half is read on the other.
    halves = divide(panel.facts)
    panel.effects[[halves[fact] == 0 for fact in panel.facts], 3] += 9
    for fact, (first, *_) in panel.choose_cells(cells, most=2).items():
        assert first == ("cut", 7 if halves[fact] == 0 else 3)
    assert not make_panel(panel.effects[:1], cells).choose_cells(cells)
    given = dict.fromkeys(panel.facts, 0) | {panel.facts[0]: 1}
    assert panel.choose_cells(cells, halves=given).keys() == given.keys()


def test_p_is_corrected_for_everything_that_is_compared():
    one = {i: {f"fact-{j}": i * j + 0.1 * j**2 for j in range(9)} for i in range(3)}
    other = {i: {f"fact-{j}": 0.0 for j in range(9)} for i in (0, 2)}
    rows = compare_sides(one, other, 0)
    assert rows.keys() == other.keys()
    assert all(row["p"] < row["p_holm"] <= 2 * row["p"] for row in rows.values())


@pytest.mark.parametrize("is_paired", [True, False])
@pytest.mark.parametrize(("shift", "is_alike"), [(0.0, True), (0.03, True), (0.15, False)])
def test_groups_are_alike_only_if_every_layer_is(is_paired, shift, is_alike):
    """A mean over layers would hide a layer apart; networks of other depths are never alike."""
    values = 0.5 + 0.01 * np.arange(8)
    cells = [("cut", 0), ("cut", 1), TOTAL]
    one = make_panel(np.stack([values, values, np.ones(8)], 1), cells)
    other = replace(
        make_panel(np.stack([values, values + shift, np.ones(8)], 1), cells),
        facts=one.facts if is_paired else list("ijklmnop"),
    )
    groups = {GROUP: one, ("twin", *GROUP[1:]): other}
    (test,) = compare_shares(groups, LAYOUT, TOTAL, "layer", margin=0.1, seed=0)
    assert (test["model"], test["other_model"], test["edge"]) == ("net", "twin", "cut")
    assert test["stage"] == "first" and "layer" not in test
    assert test["is_alike"] is is_alike and test["paired"] is is_paired
    # A paired difference may be certain, and still within the margin.
    is_clear = not is_alike or (is_paired and shift > 0)
    assert test["outcome"] == ("below" if is_clear else "alike")
    assert abs(test["mean"]) == pytest.approx(shift / 2)
    assert (test["p_equivalent"] is None) is not is_paired
    deeper = make_panel(np.insert(one.effects, 2, values, axis=1), [*cells[:2], ("cut", 2), TOTAL])
    groups |= {GROUP: deeper}
    (test,) = compare_shares(groups, LAYOUT, TOTAL, "layer", margin=0.1, seed=0)
    assert not test["is_alike"]
    # Groups that differ in model and split at once, or in the step, say nothing.
    for far in (("twin", "masked", "else", "first"), ("twin", "masked", "own", "last")):
        assert not [*compare_shares({GROUP: one, far: other}, LAYOUT, TOTAL, "layer", 0.1, 0)]

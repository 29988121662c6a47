"""Comparison: numbers are those of the one module for statistics, outcomes follow from them, and
what is said and drawn is what stands in the tables."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from unmask.base.errors import UserError
from unmask.blocks.blocks import Figure, Finding, Table, format_value
from unmask.blocks.tidy import group_by, select, to_interval
from unmask.evaluation.statistics import ENOUGH, cluster, compare, estimate_difference
from unmask.evaluation.statistics import estimate_mean as estimate
from unmask.results.comparison import Comparison, Factor, Quantity
from unmask.results.summaries import name_outcome, subtract_paired

SIDES = {"new": "new facts", "old": "old facts", "mixed": "mixed facts"}
HITS = Comparison(
    metrics={"hit": Quantity("hits", "%"), "nats": Quantity("log p", "nats", has_sign=True)},
    variant=Factor("side", "side", SIDES),
    against=[("new", "old"), ("new", "mixed")],
    title="Hits",
)
Row = dict[str, Any]
cases = settings(max_examples=25, deadline=None)


def make_row(side: str, fact: int, **changes: Any) -> Row:
    row = {"model": "mdm", "kind": "masked", "split": "p2d_same", "side": side, "fact": f"f{fact}"}
    return row | {"seed": 0, "phrasing": 0, "hit": True, "nats": 0.0} | changes


@st.composite
def tables(draw, sides=("new", "old"), least=1, seeds=3):
    """Rows of each side: every training run has a value of every fact and phrasing."""
    facts, phrasings = draw(st.integers(least, 9)), draw(st.integers(1, 2))
    runs = draw(st.integers(1, seeds))
    nats = st.floats(-5, 5, allow_nan=False).map(lambda value: round(value, 3))
    return [
        make_row(side, i, phrasing=j, seed=k, hit=draw(st.booleans()), nats=draw(nats))
        for side in sides for i in range(facts) for j in range(phrasings) for k in range(runs)
    ]  # fmt: skip


def gather(rows, name):
    return cluster(*([row[key] for row in rows] for key in (name, "fact", "seed")))


def is_same(row: Mapping[str, Any], value: Any) -> bool:
    found = [row[end] for end in ("mean", "low", "high")]
    expected = [value.mean, value.low, value.high]
    return bool(np.allclose(found, expected, rtol=1e-12, atol=1e-12, equal_nan=True))


@cases
@given(tables())
def test_means_and_differences_are_those_of_the_statistics(rows):
    summary = HITS.summarise(rows)
    for name in HITS.metrics:
        sides = [gather(select(rows, side=side), name) for side in ("new", "old")]
        for side, values in zip(("new", "old"), sides, strict=True):
            (mean,) = select(summary["means"], side=side, metric=name)
            assert is_same(mean, estimate(values, name == "hit"))
            assert mean["facts"] == values.sums.shape[1] and mean["seeds"] == len(values.sums)
        (gap,) = select(summary["differences"], metric=name)  # mixed facts are not there
        assert is_same(gap, estimate_difference(*sides, name == "hit"))
        assert (gap["side"], gap["minus"]) == ("new", "old")


@cases
@given(tables())
def test_shares_and_their_differences_stay_in_their_range(rows):
    summary = HITS.summarise(rows)
    for row in select(summary["means"], metric="hit"):
        assert 0 <= row["low"] <= row["mean"] <= row["high"] <= 1
    for row in select(summary["differences"], metric="hit"):
        assert -1 <= row["low"] <= row["mean"] <= row["high"] <= 1
    bounded = replace(HITS, metrics={"nats": Quantity("log p", "nats", least=-5.0)})
    assert all(not row["low"] < -5 for row in bounded.average(rows))


@cases
@given(tables())
def test_swapped_sides_change_sign_interval_and_outcome(rows):
    there, back = (
        replace(HITS, against=[pair]).subtract(rows) for pair in (("new", "old"), ("old", "new"))
    )
    turned = {"above": "below", "below": "above"}
    for one, other in zip(there, back, strict=True):
        ends = [other["mean"], other["high"], other["low"]]
        assert np.allclose(
            [-one["mean"], -one["low"], -one["high"]], ends, atol=1e-12, equal_nan=True
        )
        if min(abs(one["low"]), abs(one["high"])) > 1e-9:
            assert other["outcome"] == turned.get(one["outcome"], one["outcome"])


@cases
@given(tables(), st.data())
def test_rows_without_a_partner_do_not_count(rows, data):
    kept = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    rows = [row for row, is_kept in zip(rows, kept, strict=True) if is_kept and not row["seed"]]
    keys = [{(row["fact"], row["phrasing"]) for row in select(rows, side=s)} for s in SIDES]
    shared = keys[0] & keys[1]
    assume(shared)
    paired = [
        gather([row for row in select(rows, side=side) if (row["fact"], row["phrasing"]) in shared],
               "nats") for side in ("new", "old")
    ]  # fmt: skip
    gap, *_ = select(replace(HITS, paired_by=("fact", "phrasing")).subtract(rows), metric="nats")
    assert is_same(gap, estimate_difference(*paired)) and gap["facts"] == len(
        {f for f, _ in shared}
    )


@cases
@given(tables(least=2, seeds=1))
def test_sides_without_partners_are_unpaired(rows):
    moved = [row | {"fact": f"{row['side']} {row['fact']}"} for row in rows]
    gap, *_ = select(HITS.subtract(moved), metric="nats")
    sides = [
        {fact: sum(row["nats"] for row in own) / len(own) for fact, own in facts.items()}
        for facts in (group_by(select(moved, side=side), "fact") for side in ("new", "old"))
    ]
    expected = compare(*sides, seed=0)
    assert expected is not None and is_same(gap, expected) and gap["paired"] is False
    # Each side has a fact that all its training runs have, and not the same one.
    runs = [("new", 0), ("old", 1)]
    torn = [make_row(s, i, seed=k) for s, at in runs for i, k in [(0, 0), (1, 0), (at, 1)]]
    assert HITS.subtract(torn)[0]["paired"] is True  # by fact alone, over both
    alone = [select(moved, side=side, fact=f"{side} f0") for side in ("new", "old")]
    assert subtract_paired(*alone, "nats") is None


@cases
@given(tables(sides=tuple(SIDES)))
def test_outcomes_follow_from_intervals_and_enough_facts(rows):
    held = replace(HITS, chance={"hit": 0.5}).summarise(rows)
    marked = [(row, 0.5) for row in select(held["means"], metric="hit")]
    assert all("outcome" not in row for row in select(held["means"], metric="nats"))
    for row, chance in [*marked, *((row, 0.0) for row in held["differences"])]:
        if math.isnan(row["mean"]):
            expected = "not measured"
        elif row["facts"] < ENOUGH:
            expected = "too few"
        else:
            above, below = row["low"] > chance, row["high"] < chance
            expected = "above" if above else "below" if below else "unsettled"
        assert row["outcome"] == expected


@pytest.mark.parametrize(("p", "outcome"), [(0.05, "above"), (0.051, "unsettled")])
def test_a_corrected_test_decides_in_place_of_the_interval(p, outcome):
    value = estimate(gather([make_row("new", i, nats=i) for i in range(9)], "nats"))
    assert name_outcome(value, 9, p=p) == outcome and name_outcome(value, 5, p=p) == "too few"
    assert name_outcome(None, 9) == "not measured"


def make_rows(facts=9, **hits: float) -> list[Row]:
    """Of two models and two ways of asking, with so many facts right under each side."""
    return [
        make_row(side, i, model=model, split=split, hit=i < right, nats=float(i < right) - i / 99)
        for model in ("mdm", "ar") for split in ("p2d_same", "p2d_reverse")
        for side, right in hits.items() for i in range(facts)
    ]  # fmt: skip


def find(blocks, of):
    return [block for block in blocks if isinstance(block, of)]


def test_a_sentence_for_each_model_has_the_numbers_of_the_tables():
    summary = HITS.summarise(make_rows(new=9, old=0))
    blocks = HITS.describe(summary)
    findings, (means, differences) = find(blocks, Finding), find(blocks, Table)
    assert len(findings) == 2 and all(each.is_clear for each in findings)
    for finding, model in zip(findings, ("mdm", "ar"), strict=True):
        where = {"model": model, "split": "p2d_reverse"}  # reversed questions before others
        (gap,) = select(summary["differences"], metric="hit", **where)
        assert HITS.metrics["hit"].say(gap, is_difference=True) in finding.text
        assert "(9 facts)" in finding.text and gap["outcome"] == finding.outcome
        shown = [to_interval(gap) in row.values for row in differences.rows]
        assert any(shown) and {row.role for row in differences.rows} == {"strong"}
    # Every metric has its column, every group and variant its row.
    for table in (means, differences):
        labels = [column.label.partition(",")[0] for column in table.columns]
        assert [each.label for each in HITS.metrics.values()] == labels[-2:]
        assert None not in [cell for row in table.rows for cell in row.values]
    assert len(means.rows) == 2 * 2 * 2 and len(differences.rows) == 2 * 2


@pytest.mark.parametrize("order", [("old", "mixed"), ("mixed", "old")])
def test_the_control_that_fails_gives_the_sentence_its_outcome(order):
    """New facts stand clearly above old ones, and no further than mixed ones."""
    several = replace(HITS, against=[("new", control) for control in order])
    summary = several.summarise(make_rows(new=9, old=0, mixed=9))
    for finding in several.state(summary):
        assert finding.outcome == "unsettled" and "from “mixed facts”" in finding.text
    alone = replace(HITS, against=[("new", "old")])
    assert all(each.is_clear for each in alone.state(alone.summarise(make_rows(new=9, old=0))))
    few = alone.summarise(make_rows(facts=ENOUGH - 1, new=9, old=0))
    assert {each.outcome for each in alone.state(few)} == {"too few"}


def test_a_mean_that_is_itself_a_result_is_a_sentence():
    held = Comparison(metrics=HITS.metrics, chance={"nats": 0.0}, title="Log p")
    summary = held.summarise(make_rows(new=9))
    for finding, model in zip(held.state(summary), ("mdm", "ar"), strict=True):
        (row,) = select(summary["means"], model=model, split="p2d_reverse", metric="nats")
        assert held.metrics["nats"].say(row) in finding.text and finding.outcome == "above"
    assert len(find(held.describe(summary), Table)) == 1 and "differences" not in summary


@pytest.mark.parametrize("heading", ["facts", "minus", "model"])
def test_two_columns_of_one_heading_are_refused(heading):
    """Rows of a table that differ in one of them alone would be merged."""
    with pytest.raises(AssertionError, match="Hits: columns need headings apart"):
        replace(HITS, groups=(*HITS.groups, Factor("group", heading)))
    assert replace(HITS, groups=(Factor("group", "facts"),), against=()).tabulate([]).rows == []


@pytest.mark.parametrize("axis", [None, Factor("phrasing", "phrasing")])
def test_the_figure_has_a_view_for_each_way_of_asking_and_a_panel_for_each_model(axis):
    compared = replace(HITS, axis=axis, controls=("old",))
    rows = make_rows(new=9, old=0)
    rows += [row | {"phrasing": 1} for row in rows]
    (figure,) = find(compared.describe(compared.summarise(rows)), Figure)
    assert figure.chart == ("dots" if axis is None else "lines")
    assert [control.label for control in figure.controls] == ["asked"]  # other units are not drawn
    assert len(figure.views) == len(figure.controls[0].options) == 2
    for panels in figure.views.values():
        assert [panel.title for panel in panels] == ["mdm", "ar"]
        for panel in panels:
            if axis is None:
                assert [dot.label for dot in panel.dots] == ["new facts", "old facts"]
                assert [dot.value.mean for dot in panel.dots] == [100, 0]
            else:
                drawn = [(line.name, line.dash, line.x, line.y) for line in panel.lines]
                solid, dotted = ("new facts", "solid"), ("old facts", "dot")
                assert drawn == [(*solid, [0, 1], [100, 100]), (*dotted, [0, 1], [0, 0])]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"against": [("nwe", "old")]}, "side is new, old in the rows, and the comparison's pairs"),
        ({"metrics": {"hti": Quantity("hits", "%")}}, "the comparison names hti, which no row has"),
        ({"variant": Factor("sdie", "side")}, "names sdie, which no row has: rows have fact, hit"),
    ],
)
def test_a_misspelt_declaration_is_a_sentence(changes, said):
    with pytest.raises(UserError, match=said):
        replace(HITS, **changes).summarise(make_rows(new=0.5, old=0.5))


def test_no_interval_leaves_what_is_possible():
    """Seven of seven facts against one of eight others: 1 − 0.125, give or take more than there
    is; in the summary, in the sentence and in the table, whichever way round."""
    rows = [make_row("new", i) for i in range(7)]
    rows += [make_row("old", 10 + i, hit=i < 1, nats=9 * i) for i in range(4)]
    for pair in (("new", "old"), ("old", "new")):
        compared = replace(HITS, against=[pair])
        summary = compared.summarise(rows)
        for gap in select(summary["differences"], metric="hit"):
            assert -1 <= gap["low"] < gap["mean"] < gap["high"] <= 1
            assert abs(gap["low"]) == 1 or gap["high"] == 1
        nats = select(summary["differences"], metric="nats")[0]
        assert max(abs(nats["low"]), abs(nats["high"])) > 27  # other values have no bounds


@pytest.mark.parametrize(
    ("quantity", "is_difference", "written"),
    [
        (Quantity("hits", "%"), True, "+85 points [+37, +100]"),
        (Quantity("hits", "%"), False, "85 % [37, 100]"),
        (Quantity("more than", "points", has_sign=True), False, "+85 points [+37, +100]"),
        (Quantity("p", limits=(0.0, 1.0)), False, "0.85 [0.37, 1.00]"),
        (Quantity("of all", "%", has_sign=True), False, "+85 % [+37, +133]"),  # may be more
        (Quantity("log p", "nats"), True, "+0.85 nats [+0.37, +1.33]"),
    ],
)
def test_what_is_written_stays_within_its_limits(quantity, is_difference, written):
    """Also of statistics that were made before, as those of kept runs."""
    row = {"mean": 0.85, "low": 0.37, "high": 1.33}
    assert quantity.say(row, is_difference=is_difference) == written
    column = quantity.head(is_difference=is_difference)
    short = format_value(to_interval(row), replace(column, digits=0 if column.is_percent else 2))
    assert short == re.sub(r" [a-z%]+(?= )", "", written, count=1)

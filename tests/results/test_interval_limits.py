"""No interval of a share, or of a difference of shares, leaves what is possible."""

import re
from dataclasses import replace

import pytest

from tests.results.test_comparison import HITS, make_row
from unmask.blocks.blocks import format_value
from unmask.blocks.tidy import select, to_interval
from unmask.results.comparison import Quantity


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

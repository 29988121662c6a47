"""Summaries of kept runs come out as they were recorded; a change of one number is found."""

import csv

import pytest

from tests.scripts import ROOT, load_script

check = load_script("tools/check_summaries.py")


def test_a_changed_number_and_a_changed_text_are_found():
    run = ROOT / "docs" / "results" / "tables" / "opening-0" / "knowns"
    own = list(check.add_up(run))
    with check.RECORDED.open(encoding="utf-8", newline="") as file:
        recorded = [row for row in csv.DictReader(file) if row["run"] == "opening-0/knowns"]
    assert len(recorded) == len(own) > 10
    for before, after in zip(recorded, own, strict=True):
        assert list(check.compare(before, after)) == []
    (mean,) = (row for row in own if (row["table"], row["column"]) == ("means", "mean"))
    before = next(row for row in recorded if row["column"] == "mean" and row["table"] == "means")
    moved = mean | {"sum": mean["sum"] * (1 + 1e-5)}
    assert "sum" in "".join(check.compare(before, moved))
    assert list(check.compare(before, mean | {"texts": "0"})) == ["other texts"]


@pytest.mark.prove
def test_kept_summaries_come_out_as_they_were_recorded():
    assert list(check.list_differences()) == []

"""The summaries of kept runs come out again, but for shares of knock-out that were wrong and ends
of intervals that no mean can have."""

import csv
import re
from collections import Counter

import pytest

from tests.scripts import ROOT, load_script

check = load_script("tools/check_summaries.py")
LISTED = ROOT / "docs" / "results" / "knockout-shares.csv"
"""The rows that differ: shares of the same facts' total effect, once of all facts'."""
CUT = ROOT / "docs" / "results" / "cut-ends.csv"
"""The rows whose interval began below the least value: 1 of a rank, 0 of a BLEU and of a cost."""
END = re.compile(r"(.*): low (\S+) → (\S+)")
CHANGE = re.compile(r"effects: .*: share (\S+) → (\S+)")


def read_listed() -> Counter[tuple[str, str, str]]:
    with LISTED.open(encoding="utf-8", newline="") as file:
        shares = ((row["run"], row["before"], row["after"]) for row in csv.DictReader(file))
        listed = Counter(shares)
    with CUT.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            assert float(row["before"]) < float(row["after"]) in (0.0, 1.0)
            listed[row["run"], f"{row['row']}: {row['before']}", row["after"]] += 1
    return listed


def find_changes() -> Counter[tuple[str, str, str]]:
    """Rows by run, and their share before and after; another difference is its own line."""
    changes: Counter[tuple[str, str, str]] = Counter()
    for folder in check.find_runs():
        run = folder.relative_to(check.TABLES).as_posix()
        for line in check.compare_run(folder):
            found = CHANGE.fullmatch(line)
            if end := END.fullmatch(line):
                changes[run, f"{end[1]}: {float(end[2]):.6f}", f"{float(end[3]):.6f}"] += 1
                continue
            shares = [f"{float(each):.6f}" for each in found.groups()] if found else [line, ""]
            changes[run, *shares] += 1
    return changes


@pytest.mark.prove
def test_stored_summaries_come_out_again_but_for_the_shares_that_are_listed():
    listed, found = read_listed(), find_changes()
    assert found - listed == Counter() and listed - found == Counter()

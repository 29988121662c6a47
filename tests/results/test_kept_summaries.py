"""The summaries of kept runs come out again, but for shares of knock-out that were wrong."""

import csv
import re
from collections import Counter

import pytest

from tests.scripts import ROOT, load_script

check = load_script("tools/check_summaries.py")
LISTED = ROOT / "docs" / "results" / "knockout-shares.csv"
"""The rows that differ: shares of the same facts' total effect, once of all facts'."""
CHANGE = re.compile(r"effects: .*: share (\S+) → (\S+)")


def read_listed() -> Counter[tuple[str, str, str]]:
    with LISTED.open(encoding="utf-8", newline="") as file:
        return Counter((row["run"], row["before"], row["after"]) for row in csv.DictReader(file))


def find_changes() -> Counter[tuple[str, str, str]]:
    """Rows by run, and their share before and after; another difference is its own line."""
    changes: Counter[tuple[str, str, str]] = Counter()
    for folder in check.find_runs():
        run = folder.relative_to(check.TABLES).as_posix()
        for line in check.compare_run(folder):
            found = CHANGE.fullmatch(line)
            shares = [f"{float(each):.6f}" for each in found.groups()] if found else [line, ""]
            changes[run, *shares] += 1
    return changes


@pytest.mark.prove
def test_stored_summaries_come_out_again_but_for_the_shares_that_are_listed():
    listed, found = read_listed(), find_changes()
    assert found - listed == Counter() and listed - found == Counter()

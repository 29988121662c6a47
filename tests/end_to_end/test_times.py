"""What a reader's first commands take: a minute at most, or as long as their line says."""

import re

import pytest

from tests.scripts import load_script
from unmask.measures.table import GROUPS

commands = load_script("benchmarks/commands.py")
SAYS_HOW_LONG = re.compile(r"#.*\b(\d+) min")


@pytest.mark.prove
def test_commands_end_in_a_minute_or_say_how_long_they_take(tmp_path):
    """By seconds of the processor, where the machine is busy otherwise; each soon says something.

    What it says is short: sentences and a table of at most twelve rows.
    """
    measures = {name for group in GROUPS.values() for name in group}
    for row in commands.time_all(tmp_path, ["list", "README"]):
        assert row.status == 0 or " explore" in row.command, row
        told = SAYS_HOW_LONG.search(row.command)
        most = 60 * int(told[1]) if told else 60
        assert min(row.seconds, row.processor) <= most, row
        assert row.first <= 5 or row.processor < row.seconds / 2, row
        if row.command.split()[1] in measures:
            assert row.rows <= 12 and row.lines < 90, row


def test_rows_of_tables_are_counted(capsys):
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "what", width=20)
    for name in ("one", "two"):
        table.add_row(name, "words that take several lines")
    Console(width=40).print(table)
    assert commands.count_rows(capsys.readouterr().out.splitlines()) == 2

"""How runs were made: runs with the same settings are described together."""

import pytest

from unmask.base.runs import make_record
from unmask.blocks.blocks import Fold, Table, Text
from unmask.report.provenance import describe_runs, write_command


def make_run(name: str, place: str, facts: int = 3):
    inputs = {"models": {name: [place]}, "data": "a corpus"}
    return f"{name} of {place}", make_record("trace", {"facts": facts}, inputs), ()


def test_runs_of_the_same_settings_share_a_fold():
    runs = [make_run("mdm", "runs/a"), make_run("mdm", "runs/b"), make_run("mdm", "runs/c", 4)]
    together, alone = (fold for fold in describe_runs(runs).blocks if isinstance(fold, Fold))
    assert together.title == "unmask trace: mdm of runs/a and 1 run with the same settings"
    assert alone.title == "unmask trace: mdm of runs/c"
    commands = [block.text for block in together.blocks if isinstance(block, Text)]
    assert [command.split()[2] for command in commands] == ["mdm=runs/a", "mdm=runs/b"]
    _, inputs = (block for block in together.blocks if isinstance(block, Table))
    cells = [tuple(row.values) for row in inputs.rows]
    assert ("all", "data", "a corpus") in cells and len(cells) == len(set(cells))
    models = [(run, value) for run, what, value in cells if what == "models"]
    assert models == [("mdm of runs/a", "mdm: runs/a"), ("mdm of runs/b", "mdm: runs/b")]


@pytest.mark.parametrize(
    ("name", "place", "word"),
    [
        ("mdm", "runs/a", "mdm=runs/a"),
        ("a", "runs/a", "runs/a"),
        ("reversal-mdm", "reversal-mdm", "reversal-mdm"),
    ],
)
def test_a_model_keeps_its_name(name, place, word):
    assert write_command(make_run(name, place)[1]).split()[2] == word

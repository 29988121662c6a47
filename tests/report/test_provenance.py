"""How runs were made: commands that repeat them, settings, inputs."""

import pytest

from unmask.base.runs import make_record
from unmask.blocks.blocks import Fold, Table, Text
from unmask.report.provenance import describe_runs, write_command


def make_run(name: str, place: str, facts: int = 3):
    inputs = {"models": {name: [place]}, "data": "a corpus"}
    return f"{name} of {place}", make_record("trace", {"facts": facts}, inputs), ()


def test_every_run_has_its_command_and_what_it_was_made_from():
    runs = [make_run("mdm", "runs/a"), make_run("mdm", "runs/b", 4)]
    one, other = (fold for fold in describe_runs(runs).blocks if isinstance(fold, Fold))
    assert (one.title, other.title) == (
        "unmask trace: mdm of runs/a",
        "unmask trace: mdm of runs/b",
    )
    command, settings, inputs = other.blocks
    assert isinstance(command, Text) and command.text.split()[2] == "mdm=runs/b"
    assert isinstance(settings, Table) and isinstance(inputs, Table)
    assert ("data", "a corpus") in [tuple(row.values) for row in inputs.rows]


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

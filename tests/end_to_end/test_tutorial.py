"""The tutorial's commands, run from top to bottom in one folder, with small numbers.

Run by `make prove`: every command starts from the files that those before it left.
"""

import re
import shlex
from pathlib import Path

import pytest

from unmask.cli.main import app

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
SMALLER = {
    r"--facts 30": "--facts 2",
    r"budget\.steps=\d+": "budget.steps=2 batch.rows=2 network.preset=tiny cadence.facts=1",
    r"batch\.rows=2 budget": "budget",
    r"--limit 20": "--limit 2 --steps 1,2",
    r"(study --model mdm.*)": r"\1 --quick",
}


def read_blocks(language: str = "") -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", TUTORIAL.read_text(), re.DOTALL | re.MULTILINE)
    return [text for kind, text in blocks if kind == language]


def shrink(command: str) -> str:
    for long, short in SMALLER.items():
        command = re.sub(long, short, command)
    return command


@pytest.mark.prove
@pytest.mark.filterwarnings("ignore:Glyph")  # an untrained model writes bytes that no font has
def test_tutorial(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (own,) = read_blocks("csv")
    Path("own.csv").write_text(own)
    commands = [line for block in read_blocks() for line in block.splitlines() if line]
    assert len(commands) >= 10 and all(line.startswith("unmask ") for line in commands)
    for command in commands:
        status = app(shlex.split(shrink(command))[1:], standalone_mode=False)
        assert status in (None, 0), command
    for made in ("study/page.html", "page.html", "capitals-study/page.html", "zorvia/step-1.png"):
        assert Path(made).is_file(), made
    (code,) = read_blocks("python")
    capsys.readouterr()
    exec(compile(code, str(TUTORIAL), "exec"), {})
    assert capsys.readouterr().out.startswith("1 ")


def test_a_wrong_command_would_be_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match="No such command"):
        app(["studdy"], standalone_mode=False)

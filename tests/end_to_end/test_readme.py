"""The README does what it says: its Python, its commands, and the numbers of its table."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from unmask.cli.main import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")

SMALLER = {
    "study": "--quick",
    "order": "--limit 2 --steps 2",
    "recall": "--limit 1 --steps 1 --no-controls",
    "perplexity": "--limit 400",
    "nll": "--limit 1",
    "factorization": "--limit 1",
    "knowns": "--limit 2",
    "trace": "--facts 2 --split d2p_same --parts resid --steps 4 --at first",
    "represent": "--facts 10 --groups p2d --steps 2 --prefixes 1 --layer 2",
    "symmetry": "--permutations 20",
    "train": "network.preset=tiny budget.steps=1 batch.rows=2 cadence.facts=0 cadence.samples=0",
    "toy": "--variants masked --steps 2 --samples 20",
}
"""What makes a command of the README short."""
LONG = {"study", "report"}
"""Run by `make prove`."""


def read_commands() -> list[list[str]]:
    (block,) = re.findall(r"```\n(unmask study .*?)```", README, re.DOTALL)
    return [shlex.split(re.split(r" {2,}", line)[0])[1:] for line in block.splitlines()]


def execute(words: list[str]) -> None:
    more = SMALLER.get(words[0], "").split()
    assert app([*words, *more], standalone_mode=False) in (None, 0), words


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder to run commands in, with the files that they name."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "README.md", tmp_path)
    known = {"subject": "Bjorn", "attribute": "one", "template": "{} is the"}
    known |= {"prompt": "Bjorn is the", "prediction": " one", "relation_id": "P1"}
    (tmp_path / "knowns.json").write_text(json.dumps([known | {"known_id": 0}]))
    return tmp_path


def test_commands(folder):
    for words in read_commands():
        if words[0] not in LONG:
            execute(words)


@pytest.mark.prove
def test_long_commands(folder):
    for words in read_commands():
        if words[0] in LONG:
            execute(words)
    assert (folder / "runs" / "study" / "page.html").is_file()


def test_three_lines(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert "Renzo Calverinth" in capsys.readouterr().out
    assert "Renzo Calverinth" not in code


def test_table_is_what_was_measured():
    written = [
        line
        for name in ("recall-shipped.md", "recall.md")
        for line in (ROOT / "docs" / "results" / name).read_text("utf-8").splitlines()
    ]
    rows = [line for line in README.splitlines() if re.match(r"\| \d+ \|", line)]
    assert len(rows) == 5
    for row in rows:
        # In the pages the number of steps stands in the first row of its block alone.
        steps, cells = re.match(r"\| (\d+) (\|.*)", row).groups()
        at = [i for i, line in enumerate(written) if line.endswith(cells)]
        blocks = {find_steps(written[: i + 1]) for i in at}
        assert steps in blocks, row


def test_mirror_is_what_was_measured():
    page = (ROOT / "docs" / "results" / "symmetry-berglund.md").read_text("utf-8")
    found = re.search(
        r"At layer (\d+) of 30 .*? (\d+) % of the time.*? it is (\d+) %", README, re.DOTALL
    )
    header = next(line for line in page.splitlines() if line.startswith("| model | facts trained"))
    column = header.split(" | ").index(f"layer {found[1]}")
    for model, share in (("berglund-mdm", found[2]), ("berglund-ar", found[3])):
        row = re.search(rf"^\| {model} \| p2d \| name: key and value \|.*$", page, re.MULTILINE)[0]
        assert row.split(" | ")[column].strip("*").endswith(f", {share} %")


def find_steps(lines: list[str]) -> str:
    """The number of steps of the block that the last line stands in."""
    return next(m[1] for line in reversed(lines) if (m := re.match(r"\| (\d+) \|", line)))


def test_every_verb_is_listed():
    listed = {words[0] for words in read_commands()}
    known = {command.name for command in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    assert known <= listed

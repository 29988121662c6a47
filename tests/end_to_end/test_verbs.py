"""The pages of the verbs: the command line's own options, examples that run, true columns."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tools.write_notebook import Block, read_blocks
from tools.write_verbs import FOLDER, INDEX, TIMES, find_marks, list_commands, name_page, rewrite

PAGES = sorted(FOLDER.glob("*.md"))
BEFORE = ("data", "trace", "represent", "study")
"""Pages whose examples leave what those of others start from."""
TABLE = re.compile(r"^### (\S+\.parquet)\n(.*?)^(?=#)", re.DOTALL | re.MULTILINE)


def read_page(page: Path) -> list[Block]:
    return list(read_blocks(page.read_text("utf-8")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_options_are_those_of_the_command_line(page):
    text = page.read_text("utf-8")
    assert rewrite(text) == text, "the command line has changed: python tools/write_verbs.py"
    assert all(
        name_page(words) == page.name for words in find_marks(text) if words not in (INDEX, TIMES)
    )


def test_every_command_has_its_page_and_every_option_a_meaning():
    told = [words for page in PAGES for words in find_marks(page.read_text("utf-8"))]
    assert sorted(told) == sorted([INDEX, TIMES, *list_commands()])
    silent = [
        f"unmask {words} {parameter.name}"
        for words, command in list_commands().items()
        for parameter in command.params
        if not parameter.help
    ]
    assert silent == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_can_be_said(page):
    """Every command is one, with options it has; what they do is for `make prove`."""
    for command in (line for block in read_page(page) for line in block.commands):
        parse_words(shlex.split(command))


def parse_words(words: list[str]) -> None:
    """Read a command as the command line does, without running it."""
    program, *words = words
    assert program == "unmask"
    named = (name for name in list_commands() if words[: len(name.split())] == name.split())
    name = max(named, key=len)
    list_commands()[name].make_context(name, words[len(name.split()) :])


def test_a_wrong_example_would_be_found():
    with pytest.raises(Exception, match="No such option"):
        parse_words(["unmask", "recall", "a", "--data", "b", "--sptes", "1"])


def read_columns(text: str) -> dict[str, list[str]]:
    """The columns that a page tells of each table."""
    found = {}
    for name, body in TABLE.findall(text):
        cells = [line.split(" | ")[0] for line in body.splitlines() if line.startswith("| `")]
        found[name] = re.findall(r"`(\w+)`", " ".join(cells))
    return found


def test_pages_tell_columns():
    told = {name for page in PAGES for name in read_columns(page.read_text("utf-8"))}
    assert {"recall.parquet", "trace.parquet", "represent.parquet", "symmetry.parquet"} <= told


@pytest.mark.prove
def test_examples_run_and_write_what_is_told(tmp_path):
    """All pages in one folder, each command in a process of its own, as a reader would."""
    import pyarrow.parquet

    rank = {name: i for i, name in enumerate(BEFORE)}
    pages = sorted(PAGES, key=lambda page: (rank.get(page.stem, len(rank)), page.stem))
    environment = os.environ | {"COLUMNS": "200", "NO_COLOR": "1"}
    for page in pages:
        blocks = [block for block in read_page(page) if block.language != "prose"]
        for block in blocks:
            if block.file:
                (tmp_path / block.file).write_text(block.text + "\n")
        said = ""
        for block in blocks:
            if block.language == "text":
                assert block.text in said, f"{page.name}: {said}"
            for command in block.commands:
                words = [sys.executable, "-m", *shlex.split(command)]
                done = subprocess.run(
                    words, cwd=tmp_path, env=environment, capture_output=True, text=True
                )
                assert done.returncode == 0, f"{command}\n{done.stderr}"
                said = done.stdout
        for name, columns in read_columns(page.read_text("utf-8")).items():
            files = [path for path in tmp_path.glob(f"*/{name}")]
            assert files, f"{page.name}: no example writes {name}"
            for path in files:
                assert pyarrow.parquet.read_schema(path).names == columns, f"{page.name}: {path}"

"""The tutorial as a notebook: `docs/tutorial.ipynb`, made of `docs/tutorial.md`.

python tools/write_notebook.py

Prose becomes Markdown cells, commands become `!` lines, Python stays Python, and a block with a
file's name, such as ```csv own.csv, becomes a cell that writes the file.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
TUTORIAL, NOTEBOOK = DOCS / "tutorial.md", DOCS / "tutorial.ipynb"
_FENCED = re.compile(r"^```(\w*)(?: (\S+))?\n(.*?)^```$\n?", re.DOTALL | re.MULTILINE)
_NOTE = "Made of [tutorial.md](tutorial.md) by tools/write_notebook.py; run it from top to bottom."


@dataclass(frozen=True)
class Block:
    """A stretch of a Markdown page: prose, or what a fence holds."""

    language: str
    """`prose`; of a fence what it says, and nothing where it holds commands."""
    text: str
    file: str = ""
    """What the text is to be saved as."""

    @property
    def commands(self) -> list[str]:
        """The commands that a reader is to run."""
        return self.text.splitlines() if self.language == "" else []


def read_blocks(text: str) -> Iterator[Block]:
    """The page from top to bottom."""
    at = 0
    for found in _FENCED.finditer(text):
        yield Block("prose", text[at : found.start()].strip())
        yield Block(found[1], found[3].rstrip("\n"), found[2] or "")
        at = found.end()
    yield Block("prose", text[at:].strip())


def make_notebook(text: str) -> str:
    """The notebook of a page, as JSON (nbformat 4.5)."""
    cells = [_make_cell(0, "markdown", _NOTE)]
    for block in read_blocks(text):
        if block.language == "prose":
            kind, source = "markdown", block.text
        elif block.file:
            kind, source = "code", f"%%writefile {block.file}\n{block.text}"
        elif block.language == "python":
            kind, source = "code", block.text
        elif block.language == "":
            kind, source = "code", "\n".join(f"!{line}" for line in block.commands)
        else:
            kind, source = "markdown", f"```{block.language}\n{block.text}\n```"
        if source:
            cells.append(_make_cell(len(cells), kind, source))
    notebook = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _make_cell(number: int, kind: str, source: str) -> dict[str, object]:
    cell: dict[str, object] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    return cell | {"source": source.splitlines(keepends=True)}


if __name__ == "__main__":
    NOTEBOOK.write_text(make_notebook(TUTORIAL.read_text("utf-8")), "utf-8")
    print(f"wrote {NOTEBOOK}")

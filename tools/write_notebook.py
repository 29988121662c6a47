"""Pages as notebooks: `docs/tutorial.ipynb` is made of `docs/tutorial.md`, and so on.

python tools/write_notebook.py [--run [PAGE]]

Prose becomes Markdown cells, commands become `!` lines, Python stays Python, and a block with a
file's name, such as ```csv own.csv, becomes a cell that writes the file. The first cell installs
the package where it is missing. With `--run` the notebook is executed in an empty folder and keeps
what its cells print and show; without it, cells that did not change keep what they have.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
TUTORIAL, NOTEBOOK = DOCS / "tutorial.md", DOCS / "tutorial.ipynb"
OWN_METHOD, STEERING = DOCS / "own-method.md", DOCS / "features-and-steering.md"
_FENCED = re.compile(r"^```(\w*)(?: (\S+))?\n(.*?)^```$\n?", re.DOTALL | re.MULTILINE)
_NOTE = "Made of [{0}]({0}) by tools/write_notebook.py; run it from top to bottom."

INSTALL = """\
import importlib.util
import os

os.environ["TTY_COMPATIBLE"] = "0"  # commands print lines here, and draw no moving bars
if importlib.util.find_spec("unmask") is None:  # on hosts that start from nothing
    %pip install -q "unmask[study]"\
"""


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


def make_notebook(page: Path) -> str:
    """The notebook of a page, as JSON (nbformat 4.5)."""
    text = page.read_text("utf-8")
    cells = [_make_cell(0, "markdown", _NOTE.format(page.name)), _make_cell(1, "code", INSTALL)]
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


def execute(notebook: str, folder: Path, timeout: int = 3600) -> str:
    """The notebook with what its cells print and show, run from top to bottom in a folder."""
    import nbformat
    from nbclient import NotebookClient

    # Commands are those of the environment that runs this.
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    run = nbformat.reads(notebook, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(run, timeout=timeout, kernel_name="python3", resources=resources).execute()
    cells = json.loads(nbformat.writes(run))["cells"]
    for cell in cells:
        cell["metadata"] = {}  # when a cell ran is nobody's business
        # Progress and its times go to stderr.
        kept = [each for each in cell.get("outputs", []) if each.get("name") != "stderr"]
        cell["outputs"] = [_tidy(each, str(folder)) for each in kept]
    return _keep_outputs(notebook, cells)


def _tidy(output: dict[str, Any], folder: str) -> dict[str, Any]:
    """An output without the folder that it was made in, and with plain ends of lines."""
    text = json.dumps(output).replace(folder, "…/tutorial")
    return json.loads(text.replace("\\r\\n", "\\n"))


def _keep_outputs(notebook: str, cells: list[dict[str, Any]]) -> str:
    """The notebook with the outputs of other cells, where the sources are the same."""
    whole = json.loads(notebook)
    known = {"".join(cell["source"]): cell for cell in cells if cell["cell_type"] == "code"}
    for cell in whole["cells"]:
        if cell["cell_type"] == "code" and (same := known.get("".join(cell["source"]))):
            cell["outputs"] = same["outputs"]
            cell["execution_count"] = same["execution_count"]
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def strip_outputs(notebook: str) -> str:
    """The notebook as it is before it runs."""
    whole = json.loads(notebook)
    for cell in whole["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"execution_count": None, "outputs": []}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for source in (TUTORIAL, OWN_METHOD, STEERING):
        place = source.with_suffix(".ipynb")
        page = make_notebook(source)
        if "--run" not in sys.argv[1:]:
            known = json.loads(place.read_text("utf-8"))["cells"] if place.is_file() else []
            page = _keep_outputs(page, known)
        elif not sys.argv[2:] or source.name in sys.argv[2:]:
            with TemporaryDirectory() as folder:
                page = execute(page, Path(folder))
        else:
            continue
        place.write_text(page, "utf-8")
        print(f"wrote {place}")

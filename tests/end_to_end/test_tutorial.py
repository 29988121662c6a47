"""The tutorial, run as its notebook from top to bottom in one folder.

In `make test` with small numbers and without the study of the shipped pair; `make prove` runs it as
it stands, and looks whether it is true.
"""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.write_notebook import (
    INSTALL,
    NOTEBOOK,
    OWN_METHOD,
    STEERING,
    TUTORIAL,
    make_notebook,
    read_blocks,
    strip_outputs,
)
from unmask.base.plugins import find_registry
from unmask.cli.main import app
from unmask.measures.runner import read_result

SMALLER = {
    r"--facts 30": "--facts 2",
    r"--limit 20": "--limit 1",
    r"--steps 1,4,16": "--steps 1",
    r"budget\.steps=\d+": "budget.steps=2 cadence.facts=1",
}
LONG = ("unmask study --quick", "unmask study --resume", "unmask report")
"""Of the study of the shipped pair."""


def read_cells(notebook: Path = NOTEBOOK) -> list[str]:
    """The code cells' sources, in order, after the one that installs the package."""
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    first, *others = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert first == INSTALL
    return others


def run_cells(cells: list[str], shrink: Callable[[str], str | None]) -> None:
    """What a notebook does with them: commands, files and Python, in one namespace."""
    names: dict[str, object] = {}
    for cell in cells:
        first, *rest = cell.splitlines()
        if first.startswith("%%writefile "):
            Path(first.split()[1]).write_text("\n".join(rest) + "\n")
        elif first.startswith("!"):
            for line in cell.splitlines():
                command = shrink(line.removeprefix("!"))
                if command is not None:
                    word, *words = shlex.split(command)
                    assert word == "unmask"
                    assert app(words, standalone_mode=False) in (None, 0), command
        else:
            exec(compile(cell, str(NOTEBOOK), "exec"), names)


def shorten(command: str) -> str | None:
    if command.startswith(LONG):
        return None
    for long, short in SMALLER.items():
        command = re.sub(long, short, command)
    return command


@pytest.mark.parametrize("page", [TUTORIAL, OWN_METHOD, STEERING], ids=lambda page: page.stem)
def test_notebook_is_the_page(page):
    written = strip_outputs(page.with_suffix(".ipynb").read_text("utf-8"))
    assert written == make_notebook(page), (
        f"the page has changed: python tools/write_notebook.py --run {page.name}"
    )


def test_notebook_has_outputs_and_plots():
    """Every cell has said what it says, without errors and without anyone's folders."""
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert {output["output_type"] for output in outputs} <= {
        "stream",
        "display_data",
        "execute_result",
    }
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    assert kinds.count("image/png") >= 3 and kinds.count("text/html") >= 2
    silent = [
        "".join(cell["source"])
        for cell in cells
        if cell["cell_type"] == "code" and not cell["outputs"]
    ]
    assert silent == [INSTALL]
    assert not re.search(r"/(?:tmp|home|root|work)/", json.dumps(outputs))


def test_blocks_of_a_page():
    page = "# A\n\n```\nunmask a\nunmask b\n```\n\nthen\n\n```csv own.csv\nx,y\n```\n"
    blocks = [block for block in read_blocks(page) if block.text]
    assert [block.language for block in blocks] == ["prose", "", "prose", "csv"]
    assert blocks[1].commands == ["unmask a", "unmask b"] and blocks[3].commands == []
    assert blocks[3].file == "own.csv" and blocks[3].text == "x,y"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.mark.prove
@pytest.mark.filterwarnings("ignore:Glyph")  # an untrained model writes bytes that no font has
def test_tutorial_with_small_numbers(folder, capsys):
    run_cells(read_cells(), shorten)
    made = (
        "recall/recall.parquet",
        "recall-page.md",
        "capitals/loss.png",
        "zorvia/trace.parquet",
        "capitals-study/page.html",
    )
    assert [name for name in made if not Path(name).is_file()] == []
    assert "tokens × layers (44, 6)" in capsys.readouterr().out


@pytest.mark.prove
def test_tutorial_is_true(folder, capsys):
    """As it stands: what the prose says of the models' answers is what they say."""
    run_cells(read_cells(), lambda command: command)
    said = capsys.readouterr().out
    assert said.count("our old friend Renzo Calverinth") >= 1
    assert "The capital of Quell is Amber Rock" in said
    cells = read_result(folder / "capitals-recall").summary["cells"]
    assert [cell["mean"] for cell in cells if cell["metric"] == "hit"] == [1.0, 1.0]
    recalled = {
        cell["kind"]: cell["mean"]
        for cell in read_result(folder / "recall").summary["cells"]
        if (cell["split"], cell["metric"]) == ("p2d_reverse", "hit") and cell["steps"] in (16, None)
    }
    assert recalled["masked"] > 0.7 and recalled["causal"] < 0.1
    assert (folder / "study" / "page.html").is_file() and (folder / "page.html").is_file()


@pytest.mark.prove
def test_a_method_of_ones_own_is_scored_in_forty_lines(folder, capsys):
    """The notebook as it stands: the method finds what matters, the probe reads the decoy."""
    cells = read_cells(OWN_METHOD.with_suffix(".ipynb"))
    assert sum(len(cell.splitlines()) for cell in cells) <= 40
    try:
        run_cells(cells, lambda command: command)
    finally:
        find_registry("method").remove("mean_of_questions")
    shown = capsys.readouterr().out
    assert re.search(r"mean_of_questions +auroc +(1\.00|0\.9\d)", shown)
    assert re.search(r"probe +verb +[1-9]", shown)
    assert not re.search(r"(interchange|mean_of_questions) +verb", shown)


@pytest.mark.prove
def test_texts_are_steered_along_a_features_direction_in_forty_lines(folder, capsys):
    """The notebook as it stands: a fact's feature brings what the prose says; unsteered texts lack
    it."""
    cells = read_cells(STEERING.with_suffix(".ipynb"))
    assert sum(len(cell.splitlines()) for cell in cells) <= 40
    run_cells(cells, lambda command: command)
    plain, *steered = capsys.readouterr().out.split(" lengths of a state in each:")[1:]
    assert not re.search("piano|Isenquay", plain.partition("all steps")[0])
    assert all(re.search("piano|Isenquay", text) for text in steered) and len(steered) == 3

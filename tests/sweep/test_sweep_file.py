"""Sweep files: mistakes are found before anything is trained."""

from pathlib import Path

import pytest
import yaml

from tests.sweeps import BOUND, write_sweep
from unmask.base.errors import UserError
from unmask.sweep.folder import open_folder
from unmask.sweep.grid import read_sweep
from unmask.sweep.run import read_outcome
from unmask.training.recipes_io import read_recipe, write_recipe

FIGURE = {"value": "bound", "x": "family", "line": "family"}
TEXTS = {"verb": "quality", "data": "README.md", "value": "nll"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gird": []}, "unknown key 'gird'"),
        ({"grids": []}, "'grids' is empty"),
        ({"grids": {"seed": [0]}}, "expected a list of entries by name"),
        ({"grids": [{"seed": []}]}, "axis 'seed' has no values"),
        ({"grids": [{}]}, "it has no axes"),
        ({"grids": [{"seed": 3}]}, "expected a list of values"),
        ({"grids": [{"batch.rows": ["many"]}]}, "'batch.rows' is 'many'"),
        ({"grids": [{"no.such": [1]}]}, "no"),
        ({"grids": [{"seed": [0]}, {"seed": [0]}]}, "are alike"),
        ({"measures": {}}, "'measures' is empty"),
        ({"measures": {"x": {"verb": "recal", "value": "hit"}}}, "measure 'recal' is unknown"),
        ({"measures": {"x": {"verb": "perplexity", "value": "nll"}}}, "needs"),
        ({"best": "other"}, "'best' is 'other'"),
        (
            {"measures": {"bound": BOUND | {"data": "README.md", "better": "neither"}}},
            "neither lower nor higher is better",
        ),
        ({"figures": [{"value": "bound", "x": "colour", "line": "family"}]}, "'colour'"),
        ({"cooldowns": {"steps": [4]}}, "constant rate"),
        ({"cooldowns": {"steps": [4, 4]}}, "expected each step once"),
        ({"recipe": "no-such-recipe"}, "no-such-recipe"),
        ({"measures": {"bound": BOUND | {"data": "gone.txt"}}}, "'gone.txt', where nothing is"),
        ({"changes": {"data": {"source": "text"}}}, "'data.path' is not given"),
        ({"changes": {"data": {"source": "text", "path": "no/text"}}}, "'no/text', where nothing"),
        ({"measures": {"bound": TEXTS}}, "'measures.bound.settings': no judge was given"),
        ({"measures": {"bound": TEXTS | {"settings": {"judge": "./gone"}}}}, "./gone is not there"),
        ({"measures": {"bound": TEXTS | {"settings": {"judge": "reversal-mdm"}}}}, "a causal one"),
        ({"measures": {"train": BOUND | {"data": "README.md"}}}, "neither train nor trunk"),
        ({"measures": {"a/b": BOUND | {"data": "README.md"}}}, "the name 'a/b'"),
        ({"measures": {"bound": BOUND | {"by": ["tokens"]}}}, "by' names 'tokens'"),
        ({"grids": [{"tokens": {"few": {}}}], "figures": []}, "the axis 'tokens'"),
        ({"figures": [{"value": "bound", "x": "seed", "line": "family"}]}, "names 'seed'"),
        ({"figures": [FIGURE | {"where": {"family": "mask"}}]}, "did you mean 'masked'"),
    ],
)
def test_bad_files_are_one_sentence(changes, sentence, tmp_path):
    file = write_sweep(tmp_path, **changes)
    with pytest.raises(UserError) as caught:
        read_sweep(file)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("path", sorted(Path("paper/sweeps").glob("*.yaml")), ids=lambda p: p.stem)
def test_sweeps_of_the_paper_can_be_read(path, tmp_path):
    """Every cell has a recipe, every measure its settings; only data and judge are to be given."""
    entries = yaml.safe_load(path.read_text())["measures"]
    own = {name: each for name, each in entries.items() if "of" not in each}
    words = [f"measures.{name}.data={path}" for name in own]
    judged = [name for name, each in own.items() if each["verb"] == "quality"]
    words += [f"measures.{name}.settings.judge=reversal-ar" for name in judged]
    sweep = read_sweep(path, [*words, f"data.path={path}"])
    assert len(sweep.cells) >= 4 and sweep.best in sweep.measures


def test_labels_may_be_numbers(tmp_path):
    """JSON has no numbers for keys: a record that was read is still that of the same file."""
    grids = [{"rows": {2: {"batch.rows": 2}, 4: {"batch.rows": 4}}}]
    file, out = write_sweep(tmp_path, grids=grids, figures=[]), tmp_path / "out"
    for _ in range(2):
        open_folder(read_sweep(file), out, "cpu")
    assert [cell.labels for cell in read_outcome(out).sweep.cells] == [{"rows": "2"}, {"rows": "4"}]


def test_cells_have_folders_of_their_own(tmp_path):
    """A sign tells folders apart; the case of letters does not, on some disks."""
    grids = [{"shift": {-1: {"seed": 0}, 1: {"seed": 1}}}]
    cells = read_sweep(write_sweep(tmp_path, grids=grids, figures=[])).cells
    assert [cell.name for cell in cells] == ["shift--1", "shift-1"]
    grids = [{"size": {"6m": {"seed": 0}, "6M": {"seed": 1}}}]
    with pytest.raises(UserError, match="size-6m and size-6M are alike"):
        read_sweep(write_sweep(tmp_path, grids=grids, figures=[]))


def test_a_folder_keeps_the_recipes_that_lie_beside_its_file(tmp_path, monkeypatch):
    """It is read from anywhere, whatever became of the recipe's file."""
    write_recipe(read_recipe("toy-masked"), tmp_path / "own.yaml")
    file = write_sweep(tmp_path, recipe="own.yaml", grids=[{"seed": [0, 1]}], figures=[])
    monkeypatch.chdir(tmp_path)
    sweep = read_sweep(file.name)
    open_folder(sweep, Path("out"), "cpu")
    (tmp_path / "own.yaml").unlink()
    monkeypatch.chdir("out")
    assert read_outcome(tmp_path / "out").sweep.cells == sweep.cells


def test_a_long_choice_gives_a_folder_whose_name_a_disk_takes(tmp_path):
    """Two that begin alike stay apart."""
    grids = [{"kind": {"ä" * 200 + end: {"seed": int(end)} for end in "01"}}]
    names = [cell.name for cell in read_sweep(write_sweep(tmp_path, grids=grids, figures=[])).cells]
    for name in names:
        (tmp_path / name).mkdir()
        assert name.startswith("kind-ää") and name.count("ä") > 100
    assert len(set(names)) == 2

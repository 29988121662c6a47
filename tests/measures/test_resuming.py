"""A run of any measure that was stopped is not resumed on other contents; `fresh` begins anew."""

import json
import shutil
from dataclasses import fields
from pathlib import Path

import pytest

from tests.measures.test_symmetry import make_rows, make_run
from unmask import UserError
from unmask.base.files import write_json
from unmask.base.locks import RunRefusedError, lock_run
from unmask.base.reading import read_json_object
from unmask.base.runs import make_record, open_run
from unmask.measures import runner
from unmask.measures.inputs import RunFolders
from unmask.measures.runner import run_measure
from unmask.measures.table import find_measure, list_measures

OTHER_INPUTS = {"bench", "correctors", "erasure", "planted", "gradients", "guidance", "relearn"}
"""Asked of no model, or of larger corpora or of another kind, which are read like all others."""
ASKING = [
    name
    for name in list_measures()
    if name not in OTHER_INPUTS and not isinstance(find_measure(name).inputs, RunFolders)
]
KNOWNS = [{"subject": "Ada", "attribute": "boats", "prompt": "They say Ada makes red"}]


class StopError(Exception):
    """A run that was opened is stopped after a row of its first part."""


@pytest.fixture(autouse=True)
def stopped(monkeypatch):
    def stop(job, parts):
        next(iter(parts.values())).write("first", [{"row": 1}])
        raise StopError

    monkeypatch.setattr(runner, "_work", stop)


@pytest.fixture
def folder(place, tmp_path) -> Path:
    """A model and data of its own for each test."""
    shutil.copytree(place.model, tmp_path / "small")
    shutil.copytree(place.data, tmp_path / "corpus")
    write_json(tmp_path / "knowns.json", KNOWNS)
    (tmp_path / "texts.txt").write_text(
        "They say Ada makes red boats.\n\nThe one who makes kites.\n"
    )
    return tmp_path


def open_measure(name: str, folder: Path, fresh: bool = False, **changes) -> None:
    """Run a measure up to its first part."""
    measure = find_measure(name)
    runs = changes.pop("runs", ())
    if name == "symmetry" and not runs:
        runs = [make_run(folder / "represent", make_rows(0.5))]
    if name == "quality":
        changes = {"judge": "reversal-ar", "texts": 2, "length": 5} | changes
    settings = measure.settings(**changes)
    texts = dict.fromkeys(("perplexity", "quality", "mending", "infilling"), "texts.txt")
    data = folder / ({"knowns": "knowns.json"} | texts).get(name, "corpus")
    given = {"models": [str(folder / "small")], "data": str(data), "runs": runs}
    inputs = measure.inputs.read(given, settings)
    with pytest.raises(StopError):
        run_measure(measure, inputs, settings, folder / "run", fresh)


def change_weights(folder: Path) -> None:
    """Another bit in the middle of the file."""
    path = folder / "small" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def change_settings(folder: Path) -> None:
    config = read_json_object(folder / "small" / "config.json")
    config["network"]["rotary_base"] *= 2
    write_json(folder / "small" / "config.json", config)


def change_tokenizer(folder: Path) -> None:
    """Two tokens change their numbers."""
    path = folder / "small" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    one, other = list(vocabulary)[10:12]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    path.write_text(json.dumps(tokenizer))


def change_data(folder: Path) -> None:
    paths = [*(folder / "corpus").glob("*.jsonl"), folder / "knowns.json", folder / "texts.txt"]
    for path in paths:
        path.write_text(path.read_text().replace("boats", "goats"))


CHANGES = {
    change_weights: "the weights in model.safetensors of small changed",
    change_settings: "the settings in config.json of small changed",
    change_tokenizer: "the tokenizer in tokenizer.json of small changed",
    change_data: "the contents of the data changed",
}


@pytest.mark.parametrize("name", ASKING)
def test_other_contents_are_refused_by_name(name, folder):
    for change, message in CHANGES.items():
        case = folder / change.__name__
        shutil.copytree(folder, case, ignore=lambda *_: [each.__name__ for each in CHANGES])
        open_measure(name, case)
        before = (case / "run" / "run.json").read_bytes()
        change(case)
        with pytest.raises(RunRefusedError, match=f"holds another run .{message}.: .*--fresh"):
            open_measure(name, case)
        assert (case / "run" / "run.json").read_bytes() == before
        open_measure(name, case, fresh=True)
        assert (case / "run" / "run.json").read_bytes() != before


@pytest.mark.parametrize("name", ASKING)
def test_other_settings_are_refused_and_the_same_contents_elsewhere_are_not(name, folder):
    open_measure(name, folder)
    known = {field.name for field in fields(find_measure(name).settings)}
    change = {"seed": 1} if "seed" in known else {"limit": 1}
    with pytest.raises(
        RunRefusedError, match=f"{next(iter(change))} was .* and is now 1.: .*--fre"
    ):
        open_measure(name, folder, **change)
    moved = folder / "moved"
    moved.mkdir()
    for part in ("small", "corpus", "knowns.json", "texts.txt", "run"):
        (folder / part).rename(moved / part)
    open_measure(name, moved)


def test_a_second_process_is_refused(folder):
    open_measure("recall", folder)
    with lock_run(folder / "run"), pytest.raises(RunRefusedError, match="in use by process"):
        open_measure("recall", folder)
    open_measure("recall", folder)


def test_runs_that_are_read_are_known_by_content(folder):
    open_measure("symmetry", folder)
    open_measure("symmetry", folder)
    with pytest.raises(RunRefusedError, match="seed was 0 and is now 1"):
        open_measure("symmetry", folder, seed=1)
    further = make_run(folder / "represent", make_rows(0.5), make_rows(0.5, model="other"))
    with pytest.raises(RunRefusedError, match="the contents of the run represent changed"):
        open_measure("symmetry", folder, runs=[further])
    open_measure("symmetry", folder, runs=[further], fresh=True)


def test_files_that_settings_name_are_known_by_content(folder):
    (folder / "prefixes.txt").write_text("A first line.\nA second line.\n")
    prefixes = {"prefix_text": str(folder / "prefixes.txt")}
    open_measure("represent", folder, **prefixes)
    open_measure("represent", folder, **prefixes)
    (folder / "prefixes.txt").write_text("A first line.\nAnother line.\n")
    with pytest.raises(RunRefusedError, match="the contents of the data changed"):
        open_measure("represent", folder, **prefixes)


def test_another_schema_and_another_verb_are_refused(folder):
    open_measure("recall", folder)
    with pytest.raises(RunRefusedError, match="it is a run of `unmask recall`.: choose another"):
        open_measure("nll", folder)
    with pytest.raises(RunRefusedError, match="it is a run of `unmask recall`.: choose another"):
        open_measure("nll", folder, fresh=True)
    record = read_json_object(folder / "run" / "run.json")
    write_json(folder / "run" / "run.json", record | {"tables": {"recall": "recall/99"}})
    with pytest.raises(RunRefusedError, match="schema of the table recall was 'recall/99' and is"):
        open_measure("recall", folder)


def test_a_loaded_model_is_known_by_what_it_holds(folder):
    import torch

    import unmask

    model = unmask.load(folder / "small", device="cpu")
    for _ in range(2):
        with pytest.raises(StopError):
            unmask.nll(model, data=folder / "corpus", out=folder / "run", device="cpu")
    with torch.no_grad():
        model.net.layers[0].mlp.down.weight[0, 0] += 1e-3
    with pytest.raises(UserError, match="the weights of small changed"):
        unmask.nll(model, data=folder / "corpus", out=folder / "run", device="cpu")
    with pytest.raises(StopError):
        unmask.nll(model, data=folder / "corpus", out=folder / "run", device="cpu", fresh=True)


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("name", ["corpus.json", "shards.json", "config.json", "recipe.yaml"])
def test_no_run_begins_among_other_files(name, fresh, tmp_path):
    (tmp_path / name).write_text("{}")
    with pytest.raises(RunRefusedError, match=rf"\({name}\), .*: choose another folder with --out"):
        with open_run(tmp_path, make_record("recall", {}, {}), fresh=fresh):
            pass
    assert [path.name for path in tmp_path.iterdir()] == [name]

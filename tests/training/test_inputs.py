"""What a training run was made from: other data or another start are refused."""

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import unmask
from tests.training.runs import make_recipe, run
from unmask.base.errors import UserError
from unmask.base.files import write_json
from unmask.base.locks import lock_run
from unmask.base.reading import read_json
from unmask.data.corpus import save_corpus
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.shards import write_shards
from unmask.data.tokenizer import Tokenizer
from unmask.training import examples
from unmask.training.checkpoints import list_checkpoints
from unmask.training.recipe import Recipe

SHORT = {"budget": {"steps": 3}, "cadence": {"checkpoint": 1}, "batch": {"rows": 4}}


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    """A corpus, token shards and a small trained model, to be copied."""
    folder = tmp_path_factory.mktemp("sources")
    corpus = make_reversal_corpus(2, 0)
    corpus = replace(corpus, splits={name: facts[:40] for name, facts in corpus.splits.items()})
    tokenizer = Tokenizer.train(corpus.training_texts(), 400)
    save_corpus(corpus, folder / "corpus", tokenizer)
    write_shards(corpus.training_texts() * 4, tokenizer, folder / "shards")
    run(folder / "start", kind="causal", budget={"steps": 1}, data={"context": 120})
    return folder


@pytest.fixture
def place(sources, tmp_path) -> Path:
    return shutil.copytree(sources, tmp_path / "sources")


def make(source: str, place: Path) -> Recipe:
    more = {}
    if source == "start":
        start, network = {"model": str(place / "start" / "model")}, {"changes": {}}
        more = {"kind": "causal", "start": start, "network": network}
    name, path = ("text", "shards") if source == "text" else ("facts", "corpus")
    data = {"source": name, "path": str(place / path), "context": 120}
    return make_recipe(**SHORT, data=data, **more)


def resume(folder: Path, **more: object):
    return unmask.train(resume=folder, device="cpu", **more)


def change_bytes(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def change_order(name: str) -> Callable[[Path], None]:
    """Move the first line of a split of the corpus to its end."""

    def change(place: Path) -> None:
        path = place / "corpus" / f"{name}.jsonl"
        lines = path.read_text().splitlines()
        path.write_text("\n".join([*lines[1:], lines[0]]) + "\n")

    return change


def change_tokenizer(place: Path) -> None:
    for path in (place / name / "tokenizer.json" for name in ("corpus", "shards")):
        tokenizer = json.loads(path.read_text())
        vocabulary = tokenizer["model"]["vocab"]
        one, other = list(vocabulary)[10:12]
        vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
        path.write_text(json.dumps(tokenizer))


def change_tokens(place: Path) -> None:
    change_bytes(place / "shards" / "shard-00000.bin")


def change_start(place: Path) -> None:
    change_bytes(place / "start" / "model" / "model.safetensors")


@pytest.mark.parametrize(
    ("source", "change", "message"),
    [
        ("facts", change_order("train"), "the rows of the data changed"),
        ("facts", change_order("d2p_same"), "the questions of the data changed"),
        ("facts", change_tokenizer, "the tokenizer of the data changed"),
        ("text", change_tokens, "the tokens in shard-00000.bin of the data changed"),
        ("text", change_tokenizer, "the tokenizer of the data changed"),
        ("start", change_start, "the weights in model.safetensors of the start model changed"),
    ],
)
def test_other_contents_are_refused_until_they_are_allowed(
    source, change, message, place, tmp_path
):
    out = tmp_path / "run"
    unmask.train(make(source, place), out, device="cpu")
    assert resume(out).ended == "done"
    before = (out / "run.json").read_bytes()
    change(place)
    with pytest.raises(UserError, match=f"with other inputs: .*{message}.* --allow-changes"):
        resume(out)
    assert (out / "run.json").read_bytes() == before and not list(out.glob("*.lock"))
    assert resume(out, allow_changes=True).ended == "done"
    assert (out / "run.json").read_bytes() != before
    assert resume(out).ended == "done"


def test_data_that_were_moved_are_the_same(place, tmp_path):
    out = tmp_path / "run"
    unmask.train(make("facts", place), out, device="cpu")
    (place / "corpus").rename(place / "elsewhere")
    path = f"data.path={place / 'elsewhere'}"
    with pytest.raises(UserError, match="data.path was"):
        unmask.train(None, None, path, resume=out, device="cpu")
    unmask.train(None, None, path, resume=out, allow_changes=True, device="cpu")


def make_other_corpus(num_facts: int, seed: int):
    return make_reversal_corpus(num_facts, seed + 1)


def test_rows_that_are_made_in_place_are_known_by_content(tmp_path, monkeypatch):
    """A later version that makes other facts from the same seed must not go on with these."""
    out = tmp_path / "run"
    unmask.train(make_recipe(**SHORT), out, device="cpu")
    other = {"reversal": f"{__name__}:make_other_corpus"}
    monkeypatch.setattr(examples, "_MADE", examples._MADE | other)
    with pytest.raises(UserError, match="the rows of the data changed"):
        resume(out)


def test_a_run_that_did_not_record_contents_is_resumed_with_a_warning(tmp_path, caplog):
    out = tmp_path / "run"
    unmask.train(make_recipe(**SHORT), out, device="cpu")
    write_json(out / "run.json", read_json(out / "run.json") | {"inputs": {}})
    with caplog.at_level(logging.WARNING):
        assert resume(out).ended == "done"
    assert "does not say what its data held" in caplog.text
    assert "rows" in read_json(out / "run.json")["inputs"]["digests"]["the data"]


def test_fresh_removes_the_run_and_nothing_else(tmp_path):
    out = tmp_path / "my run"
    unmask.train(make_recipe(**SHORT), out, device="cpu")
    unmask.train(make_recipe(**SHORT, seed=1), tmp_path / "other", device="cpu")
    notes = [out / "notes.txt", out / "checkpoints" / "notes.txt", out / "loss.txt"]
    for path in notes:
        path.write_text("somebody's own")
    with pytest.raises(UserError, match="--resume '.*/my run', begin anew with --fresh"):
        unmask.train(make_recipe(**SHORT, seed=1), out, device="cpu")
    shorter = replace(make_recipe(**SHORT, seed=1), budget=make_recipe(budget={"steps": 2}).budget)
    unmask.train(shorter, out, device="cpu", fresh=True)
    assert len(list_checkpoints(out / "checkpoints")) == 2
    unmask.train(make_recipe(**SHORT, seed=1), out, device="cpu", fresh=True)
    weights = [
        (each / "model" / "model.safetensors").read_bytes() for each in (out, tmp_path / "other")
    ]
    assert weights[0] == weights[1]
    assert [path.read_text() for path in notes] == ["somebody's own"] * 3
    with pytest.raises(UserError, match="--resume and --fresh were both given"):
        resume(out, fresh=True)
    write_json(out / "run.json", read_json(out / "run.json") | {"verb": "recall"})
    with pytest.raises(UserError, match="holds no training run: choose another folder"):
        unmask.train(make_recipe(**SHORT), out, device="cpu", fresh=True)


@pytest.mark.parametrize("name", ["recipe.yaml", "metrics.jsonl", "loss.txt"])
def test_fresh_leaves_a_folder_alone_that_never_held_a_run(name, tmp_path):
    """It took the user's own recipe and metrics."""
    (tmp_path / name).write_text("somebody's own")
    with pytest.raises(UserError, match="is not empty and has no run.json .*: choose another"):
        unmask.train(make_recipe(**SHORT), tmp_path, device="cpu", fresh=True)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["somebody's own"]


def test_a_run_in_use_is_refused(tmp_path):
    out = tmp_path / "run"
    unmask.train(make_recipe(**SHORT), out, device="cpu")
    with lock_run(out):
        for go_on in (resume, lambda out: unmask.train(make_recipe(), out, fresh=True)):
            with pytest.raises(UserError, match="in use by process"):
                go_on(out)

"""Runs that are begun again with something else, and folders that hold something else."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet
import pytest

import unmask
from tests.hostile.calls import TINY
from tests.hostile.fuzzing import guard, list_files
from tests.hostile.trained import run_small_sweep, train
from unmask import UserError
from unmask.base import identity
from unmask.base.files import write_json
from unmask.base.identity import digest_file, digest_values
from unmask.base.locks import claim, lock_run
from unmask.base.reading import read_json_object
from unmask.base.runs import open_run, read_record
from unmask.base.tables import write_table
from unmask.measures import runner
from unmask.measures.runner import read_result
from unmask.measures.table import find_measure
from unmask.training.checkpoints import find_newest
from unmask.training.journal import Journal, read_journal

LINES = "subject,object,prompt\nAda,red boats,They say {} makes\nBob,old clocks,They say {} makes\n"


@pytest.fixture
def begun(pieces, tmp_path, monkeypatch):
    """A folder with a model, facts, and a run on them, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    shutil.copytree(pieces.folder / "diffusion", "model")
    Path("facts.csv").write_text(LINES)
    ask()
    return pieces


def ask(verb="nll", out="run", data="facts.csv", **more):
    return getattr(unmask, verb)("model", data=data, out=out, device="cpu", **more)


def change_facts(monkeypatch):
    Path("facts.csv").write_text(LINES.replace("red boats", "tin drums"))


def change_weights(monkeypatch):
    file = Path("model/model.safetensors")
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)


def change_tokenizer(monkeypatch):
    file = Path("model/tokenizer.json")
    file.write_text(file.read_text().replace('"version": "1.0"', '"version":  "1.0"'))
    if '"version":  "1.0"' not in file.read_text():
        file.write_text(f" {file.read_text()}")


def change_code(monkeypatch):
    monkeypatch.setattr(runner, "digest_file", lambda path: "another")


CHANGES = {
    "facts": (change_facts, {}), "weights": (change_weights, {}),
    "tokenizer": (change_tokenizer, {}), "code": (change_code, {}),
    "settings": (lambda monkeypatch: None, {"limit": 1}),
    "another verb": (lambda monkeypatch: None, {"verb": "factorization"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_run_goes_on_with_nothing_else(name, begun, monkeypatch):
    change, given = CHANGES[name]
    before = list_files(Path("run"))
    change(monkeypatch)
    with pytest.raises(UserError, match="run holds another run"):
        ask(**given)
    assert list_files(Path("run")) == before


def test_fresh_removes_what_the_run_wrote_and_no_more(begun):
    own = [Path("run/notes.txt"), Path("run/parts/nll/own.parquet/kept.txt"),
           Path("run/summary/plan.md")]  # fmt: skip
    for path in own:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    part = next(path for path in Path("run/parts/nll").iterdir() if path.is_file())
    before = part.stat().st_mtime_ns
    ask(fresh=True)
    assert part.stat().st_mtime_ns != before and all(path.read_text() == "mine" for path in own)
    kept = list_files(Path("run"))
    with pytest.raises(UserError, match="it is a run of `unmask nll`"):
        ask("factorization", fresh=True)
    assert list_files(Path("run")) == kept
    # Behind a link are somebody's own files, which only have names such as those of a run.
    shutil.move("run/parts", "mine")
    Path("run/parts").symlink_to(Path("mine").absolute())
    kept = list_files(Path("run")), list_files(Path("mine"))
    with pytest.raises(UserError, match="would be removed, but lies in .*mine.*Nothing was"):
        ask(fresh=True)
    assert (list_files(Path("run")), list_files(Path("mine"))) == kept


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize(
    "held", ["nll.parquet", "summary/x.parquet", "config.json", "corpus.json", "recipe.yaml",
             "shards.json"]
)  # fmt: skip
def test_nothing_begins_among_the_files_of_others(held, fresh, begun):
    (path := Path("theirs", held)).parent.mkdir(parents=True)
    path.write_text("{}")
    with pytest.raises(UserError, match="theirs holds .* choose another folder"):
        ask(out="theirs", fresh=fresh)
    assert list(list_files(Path("theirs"))) == [str(path)]


def test_a_folder_that_is_held_is_refused_at_once(begun, tmp_path):
    with guard(tmp_path):
        with lock_run("run"), pytest.raises(UserError, match="run is in use by process"):
            ask()
        with lock_run("run", shared=True), pytest.raises(UserError, match="is in use"):
            ask(fresh=True)
        alone = open_run("run", read_record("run"), shared=True, fresh=True)
        with claim("run/run-other-1.lock"), pytest.raises(UserError, match="is in use"), alone:
            pass
        with claim("x.lock") as first, claim("x.lock") as second:
            assert first and not second
    Path("file").write_text("x")
    with pytest.raises(UserError, match="file is a file: expected the path of a folder"):
        ask(out="file")


@pytest.mark.parametrize("spoil", [lambda b: b[:-9], lambda b: b"", lambda b: b"x" * 99])
def test_tables_that_are_broken_are_sentences(spoil, begun):
    for table in Path("run").rglob("*.parquet"):
        table.write_bytes(spoil(table.read_bytes()))
    with pytest.raises(UserError, match="cannot be read .*make it anew"):
        read_result("run").rows()


def test_a_table_of_another_version_is_refused(begun):
    path = Path("run/nll.parquet")
    write_table(path, pyarrow.parquet.read_table(path), "nll/99")
    with pytest.raises(UserError, match="holds nll/99, expected nll/"):
        read_result("run").rows()


def test_a_record_of_another_format_is_refused(begun):
    record = read_json_object("run/run.json")
    write_json("run/run.json", record | {"format": 99})
    for call in (ask, lambda: read_result("run")):
        with pytest.raises(UserError, match="in run format 99, expected"):
            call()


def test_files_are_known_by_what_they_hold(tmp_path, monkeypatch):
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(identity, "LEAST_BYTES", 1)
    monkeypatch.setattr(identity, "SETTLED_SECONDS", 0.0)
    file = tmp_path / "file"
    file.write_bytes(b"one")
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    before = digest_file(file)
    assert digest_file(file) == before
    file.write_bytes(b"two")
    os.utime(file, ns=times)
    assert digest_file(file) != before
    lists = [["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], [("ab", "c")], [["ab", "c"]],
             [b"ab", b"c"], [b"a", b"bc"], [1, 23], [12, 3]]  # fmt: skip
    assert len({digest_values(each) for each in lists}) == len(lists)


def learn(pieces, out: str, **more):
    words = ["data={source: facts, path: facts.csv, vocab: 300, context: 40}", "batch.rows=2",
             "network={preset: tiny, changes: {layers: 1, width: 16}}", "budget.steps=4",
             "cadence={log: 1, checkpoint: 2, facts: 0, samples: 0}"]  # fmt: skip
    return train(pieces, Path(out), {"words": words, **more})


def test_training_goes_on_with_nothing_else(begun):
    learn(begun, "trained")
    before = list_files(Path("trained"))
    change_facts(None)
    with pytest.raises(UserError, match="was started with other inputs"):
        unmask.train(resume="trained", device="cpu")
    Path("facts.csv").write_text(LINES)
    with pytest.raises(UserError, match="was started with other settings"):
        unmask.train(None, None, "seed=5", resume="trained", device="cpu")
    assert list_files(Path("trained")) == before
    for held in ("notes.txt", "config.json", "model/own.txt"):
        (path := Path("theirs", held)).parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
        with pytest.raises(UserError, match="theirs is not empty"):
            learn(begun, "theirs", fresh=True)
        assert list(list_files(Path("theirs"))) == [str(path)]
        shutil.rmtree("theirs")
    # A checkpoint that was cut is none.
    checkpoints = Path("trained/checkpoints")
    newest = find_newest(checkpoints)
    assert newest is not None
    file = max(newest.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1])
    assert find_newest(checkpoints) != newest


def test_a_job_that_was_killed_between_its_tables_is_done_again(pieces, tmp_path):
    run, tables = tmp_path / "run", find_measure("represent").tables
    shutil.copytree(pieces.represent, run)
    for path in [*(run / "parts" / list(tables)[-1]).iterdir(), *run.glob("*.parquet")]:
        path.unlink()
    given = {"data": pieces.corpus, "device": "cpu", **TINY["represent"]}
    unmask.represent(pieces.model, out=run, **given)
    for name in tables:
        now, before = (pyarrow.parquet.read_table(each / f"{name}.parquet")
                       for each in (run, pieces.represent))  # fmt: skip
        assert now.equals(before), name


def test_no_step_stands_in_a_journal_twice(tmp_path):
    for begin, end in ((0, 6), (4, 7)):  # a kill came after step 6, the last checkpoint at 4
        journal = Journal(tmp_path, begin)
        for step in range(begin + 1, end + 1):
            journal.write({"step": step, "loss": 1.0})
        journal.close()
    assert [record["step"] for record in read_journal(tmp_path)] == [*range(1, 8)]


def test_a_sweep_goes_on_with_nothing_else(begun, tmp_path):
    shutil.copytree(begun.folder, "pieces", ignore=shutil.ignore_patterns("represent", "pairs"))
    own = replace(begun, folder=tmp_path / "pieces")
    run_small_sweep(own, Path("sweep"), {})
    (tmp_path / "pieces" / "perplexity.txt").write_text("Something else altogether.\n")
    with pytest.raises(UserError, match="holds another sweep"):
        run_small_sweep(own, Path("sweep"), {})

"""Numbers, places, ranks and files of other shapes that once ended in a traceback or a hang."""

import os

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import unmask
from tests.editing.edits import make_edit
from tests.hostile.fuzzing import run_verb
from unmask import UserError
from unmask.base.files import create_folder, replace_file
from unmask.base.locks import lock_run
from unmask.cli.exits import is_memory_full
from unmask.training.parallel import join

SAMPLE = ("sample", "reversal-mdm", "They say", "--steps", "1", "--device", "cpu")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*SAMPLE, "--guidance", "1e39"], "guidance is 1e[+]39, expected .* at most 1,000,000"),
        ([*SAMPLE, "--guidance", "down=1e300"], "guidance is 1e[+]300, expected .* at most"),
        (
            [*SAMPLE, "--temperature", "1e39"],
            "'temperature' is 1e[+]39, expected at most 3.4e[+]38",
        ),
        ([*SAMPLE, "--number", str(2**63)], "--number 9223372036854775808 .* 1 to 1,000,000 texts"),
        ([*SAMPLE, "--number", "1000001"], "expected 1 to 1,000,000 texts"),
        ([*SAMPLE, "--kind", "gaussian"], "'kind' is 'gaussian', but the network takes tokens"),
        ([*SAMPLE, "--plant", "9" * 5000 + ":1: cat"], "expected STEP:POSITION:TEXT"),
        (
            ["sample", "reversal-mdm", "a [MASK]*" + "9" * 5000, "--infill"],
            "at most the context 44",
        ),
        ([*SAMPLE, "--save", ""], "cannot write '.': expected the path of a file"),
        (["recall", "reversal-mdm", "--page", "x.txt"], "x.txt ends in .txt: expected .html"),
        (["info", "reversal-mdm", "--kind", "gaussian"], "reversal-mdm: 'kind' is 'gaussian'"),
    ],
)
def test_numbers_and_kinds_that_do_not_fit(words, said):
    with pytest.raises(UserError, match=said):
        run_verb(words)


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "x", "WORLD_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "x"},
        {"RANK": "", "WORLD_SIZE": ""},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "0"},
        {"RANK": "0", "WORLD_SIZE": "9" * 5000},
        {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "x"},
    ],
)
def test_ranks_that_torchrun_never_sets(variables, monkeypatch):
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    message = "the environment says .* as torchrun sets them; start"
    with pytest.raises(UserError, match=message), join("cpu"):
        pass


def test_torchrun_is_for_training(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for verb in ("recall", "sweep", "study", "info"):
        with pytest.raises(UserError, match=f"unmask {verb} was started by torchrun .* --on"):
            run_verb([verb, "reversal-mdm"])
    run_verb(["train", "--help"])


def test_processes_that_cannot_meet(monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="process 0 of 2 cannot join .*torchrun"), join("cpu"):
        pass


@pytest.mark.parametrize("place", ["s3://bucket/run", "http://x/y", "file:///x", "run-\udcff"])
def test_places_that_are_addresses_or_not_utf8(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in (replace_file, lock_run, create_folder):
        with (
            pytest.raises(UserError, match="cannot write .* expected a path on this machine"),
            block(place),
        ):
            pass
    with pytest.raises(UserError, match="cannot write"):
        run_verb(["recall", "reversal-mdm", "--out", place, "--limit", "1", "--device", "cpu"])
    assert not os.listdir(tmp_path)  # noqa: PTH208 - names as the system has them


@pytest.mark.parametrize("place", ["x" * 300, "/proc/nowhere/run"])
def test_places_where_no_folder_can_be(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in (lock_run, create_folder):
        with pytest.raises(UserError, match="cannot write .*choose a"), block(place):
            pass
    with pytest.raises(UserError, match="cannot write .*choose a"):
        run_verb(["recall", "reversal-mdm", "--out", place, "--limit", "1", "--device", "cpu"])


def test_what_is_no_file_is_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="cannot write .*pipe': expected the path of a file"):
        run_verb([*SAMPLE, "--save", str(pipe)])
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("network.changes.layers=1000000000", "'layers' is 1000000000, expected at most 10,000"),
        (f"data.vocab={2**63 - 1}", "expected at most 10,000,000"),
    ],
)
def test_networks_and_vocabularies_that_nothing_holds(change, said, tmp_path):
    small = "data={source: reversal, facts: 2, vocab: 600, context: 80}"
    with pytest.raises(UserError, match=said):
        run_verb(["train", "reversal-mdm", small, change, "--out", str(tmp_path / "run")])


def test_a_tensor_beyond_all_memory_is_told_as_full_memory():
    with pytest.raises(RuntimeError) as error:
        torch.empty(3 * 2**40, 2**40)
    assert is_memory_full(error.value)


@pytest.mark.parametrize("task", ["folder", "./folder", "folder/"])
def test_a_task_that_is_a_folder(task, tmp_path, monkeypatch):
    pytest.importorskip("lm_eval")
    from unmask.harness.run import Evaluation, TaskManager, find_tasks

    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    # The harness's own tasks take half a minute to list.
    monkeypatch.setattr(TaskManager, "__init__", lambda self, **_: None)
    monkeypatch.setattr(TaskManager, "match_tasks", lambda self, names: [])
    with pytest.raises(UserError, match=f"the task '{task}' is a folder: .*--include"):
        find_tasks(Evaluation(tasks=[task]))


R, K = "layers.1.residuals", "layers.1.readers"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: {R: t[R][:5], K: t[K]}, r"shape \[5, 1024\], but that of .* is \[256, 1024\]"),
        (lambda t: {R: t[R], K: t[K][:, :3]}, r"shape \[256, 3\], but that of"),
        (lambda t: {R: t[R], K: t[K].repeat(2, 1)}, "layer 1 has factors of shapes"),
        (lambda t: {R: t[R].flatten(), K: t[K].flatten()}, "layer 1 has factors of shapes"),
        (lambda t: {R: t[R].long(), K: t[K].long()}, "not finite numbers"),
        (lambda t: {R: t[R] * torch.nan, K: t[K]}, "not finite numbers"),
        (lambda t: {R: t[R]}, "does not hold a whole edit"),
    ],
)
def test_edits_of_other_shapes(change, said, tmp_path):
    model, file = unmask.load("reversal-mdm", device="cpu", dtype="float32"), tmp_path / "edit"
    make_edit(model, 1).save(file)
    with safe_open(file, "pt") as stored:
        metadata = stored.metadata()
    changed = change(load_file(file))
    save_file({name: each.contiguous() for name, each in changed.items()}, file, metadata)
    with pytest.raises(UserError, match=said), unmask.Edit.load(file).on(model):
        pass


@pytest.mark.parametrize("record", ["[1]", "3", "[" * 100_000])
def test_edits_whose_record_is_none(record, tmp_path):
    model, file = unmask.load("reversal-mdm", device="cpu"), tmp_path / "edit"
    make_edit(model, 1).save(file)
    with safe_open(file, "pt") as stored:
        metadata = stored.metadata() | {"record": record}
    save_file(load_file(file), file, metadata)
    with pytest.raises(UserError, match="does not hold a whole edit"):
        unmask.Edit.load(file)

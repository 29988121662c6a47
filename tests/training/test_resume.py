"""A run that stops and goes on computes what one that never stopped computes, to the bit."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import unmask
from tests.commands import run as command
from tests.training.runs import make_recipe, make_trainer, run, spoil
from unmask.base.errors import UserError
from unmask.cli.main import app
from unmask.training import checkpoints
from unmask.training.checkpoints import find_newest, list_checkpoints
from unmask.training.journal import read_journal
from unmask.training.loop import Hooks, run_loop
from unmask.training.run import read_checkpoint
from unmask.training.trainer import Trainer

KINDS = {
    "masked": {"optimiser": {"ema": 0.9}, "objective": {"short": 0.3}},
    "causal": {"kind": "causal"},
    "gaussian": {"kind": "gaussian", "data": {"source": "toy", "context": 6}},
    "muon": {"optimiser": {"name": "muon", "ema": 0.9}, "cadence": {"log": 3}},
}
EVERY_STEP = {"cadence": {"checkpoint": 1, "keep": 12}}


def same_tensors(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(x.equal(other[key]) for key, x in one.items())


@pytest.mark.parametrize("kind", KINDS)
def test_resume_equals_no_stop_at_every_step(kind, tmp_path):
    cadence = EVERY_STEP["cadence"] | KINDS[kind].get("cadence", {})
    never, _ = run(tmp_path / "never", **KINDS[kind] | {"cadence": cadence})
    saved = list_checkpoints(tmp_path / "never" / "checkpoints")
    assert [path.name for path in saved] == [f"step-{step:08d}" for step in range(1, 13)]
    losses = {record["step"]: record["loss"] for record in read_journal(tmp_path / "never")}
    model = (tmp_path / "never" / "model" / "model.safetensors").read_bytes()
    for path in saved[:-1] if kind == "masked" else saved[:-1:5]:
        folder = tmp_path / path.name
        shutil.copytree(path, folder / "checkpoints" / path.name)
        again, outcome = run(folder, **KINDS[kind])
        assert outcome.ended == "done" and outcome.step == 12
        assert same_tensors(again.tensors(), never.tensors()), path.name
        assert (folder / "model" / "model.safetensors").read_bytes() == model
        for record in read_journal(folder):
            assert record["loss"] == losses[record["step"]]


def test_a_checkpoint_becomes_the_model_of_its_step(tmp_path, capsys):
    """The last one becomes what the run saved, averages and all; an earlier one does not."""
    recipe = make_recipe(optimiser={"ema": 0.9}, **EVERY_STEP)
    unmask.train(recipe, tmp_path / "run", device="cpu")
    saved = (tmp_path / "run/model/model.safetensors").read_bytes()
    for step, is_last in ((12, True), (11, False)):
        path, out = tmp_path / f"run/checkpoints/step-{step:08d}", tmp_path / f"at-{step}"
        assert app(["convert", str(path), str(out)], standalone_mode=False) is None
        assert ((out / "model.safetensors").read_bytes() == saved) == is_last
        unmask.load(out, device="cpu")
    path = tmp_path / "run/checkpoints/step-00000011"
    with pytest.raises(UserError, match="and its recipe says what it is"):
        app(
            ["convert", str(path), str(tmp_path / "no"), "--dtype", "float32"],
            standalone_mode=False,
        )
    with next(path.glob("*.safetensors")).open("ab") as file:
        file.truncate(1000)
    with pytest.raises(UserError, match="not a whole checkpoint.*has 1000 bytes"):
        read_checkpoint(path)


def test_the_last_few_checkpoints_stay(tmp_path):
    run(tmp_path, cadence={"checkpoint": 2, "keep": 3})
    names = [path.name for path in list_checkpoints(tmp_path / "checkpoints")]
    assert names == ["step-00000008", "step-00000010", "step-00000012"]


def test_the_newest_whole_checkpoint_is_found(tmp_path, caplog):
    never, _ = run(tmp_path, **EVERY_STEP)
    folder = tmp_path / "checkpoints"
    shutil.copytree(folder / "step-00000009", folder / ".step-00000013.draft")
    with next((folder / "step-00000012").glob("*.safetensors")).open("ab") as file:
        file.truncate(1000)
    (folder / "step-00000011" / "checkpoint.json").unlink()
    newest = find_newest(folder)
    assert newest is not None and newest.name == "step-00000010"
    assert "has 1000 bytes, expected" in caplog.text
    assert "checkpoint.json is not there" in caplog.text
    again, _ = run(tmp_path, **EVERY_STEP)
    assert same_tensors(again.tensors(), never.tensors())


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    never, _ = run(tmp_path / "never")
    write = checkpoints.dcp.save

    def fail(state, **rest):
        write(state, **rest)
        # The system's error may be only what was going on at the time.
        cause = RuntimeError("the file was not written")
        cause.__context__ = OSError(errno.ENOSPC, "full")
        raise checkpoints.CheckpointException("", {0: (cause, None)})

    trainer = make_trainer(cadence={"checkpoint": 4})
    take_step = trainer.take_step

    def fill_up() -> None:
        take_step()
        if trainer.progress.step == 7:
            monkeypatch.setattr(checkpoints.dcp, "save", fail)

    monkeypatch.setattr(trainer, "take_step", fill_up)
    with pytest.raises(UserError, match="no space left on device; free some space"):
        run_loop(trainer, tmp_path / "full")
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "full" / "checkpoints").iterdir()] == [
        "step-00000004"
    ]
    again, _ = run(tmp_path / "full", cadence={"checkpoint": 4})
    assert same_tensors(again.tensors(), never.tensors())


def test_hooks_see_the_model_and_change_nothing(tmp_path):
    seen = []

    def evaluate(model, step):
        seen.append((step, model.net.training, torch.is_grad_enabled()))
        return {"answer": 42.0}

    hooks = Hooks(evaluate, lambda model, step: ["a text"])
    changes = {"optimiser": {"ema": 0.5}}
    with_hooks, _ = run(tmp_path / "with", hooks, cadence={"evaluate": 5}, **changes)
    without, _ = run(tmp_path / "without", **changes)
    assert seen == [(5, False, False), (10, False, False), (12, False, False)]
    assert same_tensors(with_hooks.tensors(), without.tensors())
    records = [record for record in read_journal(tmp_path / "with") if "answer" in record]
    assert records[0] == {"step": 5, "answer": 42.0, "samples": ["a text"]}
    # What is saved is the average, not the last weights.
    saved = unmask.load(tmp_path / "with" / "model", device="cpu").net
    average = with_hooks.average.tensors()
    assert all(weight.equal(average[name]) for name, weight in saved.named_parameters())


def test_skipped_steps_stop_the_run_with_their_batch(tmp_path):
    trainer = make_trainer(guards={"patience": 3}, cadence={"checkpoint": 2})
    spoil(trainer, *range(9))
    before = {name: weight.clone() for name, weight in trainer.net.named_parameters()}
    with pytest.raises(UserError, match="3 steps in a row had gradients that are not numbers"):
        run_loop(trainer, tmp_path)
    assert all(weight.equal(before[name]) for name, weight in trainer.net.named_parameters())
    batch = load_file(tmp_path / "bad-step-00000002.safetensors")
    assert batch["rows"].tolist() == trainer.orders[""].rows_at(2)
    assert torch.equal(batch["0.tokens"], trainer.feed(2)[0].inputs.batch.tokens)


SMALL = ["data={source: reversal, facts: 2, vocab: 600, context: 80}", "batch.rows=4",
         "network={preset: tiny, changes: {layers: 1}}", "budget.steps=100000",
         "cadence={log: 1, checkpoint: 0, facts: 0, samples: 0}", "--device", "cpu"]  # fmt: skip


def check_left(done: subprocess.CompletedProcess[str], status: int, out: Path) -> None:
    assert done.returncode == status, done.stderr
    assert f"go on with: unmask train --resume {out}" in done.stdout
    assert "Traceback" not in done.stderr
    (saved,) = list_checkpoints(out / "checkpoints")
    assert int(saved.name[5:]) == read_journal(out)[-1]["step"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_save_and_leave(number, status, tmp_path, monkeypatch):
    take = Trainer.take_step

    def take_step(self: Trainer) -> None:
        if self.progress.step == 3:
            signal.raise_signal(number)
        take(self)

    monkeypatch.setattr(Trainer, "take_step", take_step)
    out = tmp_path / "run"
    check_left(command("train", "reversal-ar", *SMALL, "--out", out, columns=200), status, out)


@pytest.mark.prove
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_from_another_process_save_and_leave(number, status, tmp_path):
    out = tmp_path / "run"
    words = [sys.executable, "-m", "unmask", "train", "reversal-ar", *SMALL, "--out", str(out)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=os.environ | {"COLUMNS": "200"})  # fmt: skip
    deadline = time.monotonic() + 120
    while len(read_journal(out)) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    said, error = process.communicate(timeout=300)
    done = subprocess.CompletedProcess(words, process.returncode, said, error)
    check_left(done, status, out)


def test_patience_counts_steps_between_records(tmp_path):
    """A streak that begins and ends between two records is noticed all the same."""
    trainer = make_trainer(guards={"patience": 3}, cadence={"log": 10, "checkpoint": 0})
    spoil(trainer, 3, 4, 5)
    with pytest.raises(UserError, match="3 steps in a row .* last bad one was step 5"):
        run_loop(trainer, tmp_path)
    assert trainer.progress.step == 10 and (tmp_path / "bad-step-00000005.safetensors").is_file()


def test_no_checkpoint_is_written_behind_lost_patience(tmp_path):
    """A run resumed from its last checkpoint must not stop for what is already in a record."""
    trainer = make_trainer(guards={"patience": 2}, cadence={"log": 10, "checkpoint": 3})
    spoil(trainer, 3, 4)
    with pytest.raises(UserError, match="2 steps in a row"):
        run_loop(trainer, tmp_path)
    assert [path.name for path in list_checkpoints(tmp_path / "checkpoints")] == ["step-00000003"]


def test_streaks_are_not_added_up(tmp_path):
    trainer = make_trainer(guards={"patience": 3}, cadence={"log": 4})
    spoil(trainer, 1, 2, 4, 6, 7)
    assert run_loop(trainer, tmp_path).ended == "done"
    assert int(trainer.guard.skipped) == 5


def test_bad_steps_are_left_out_of_the_loss(tmp_path):
    trainer = make_trainer(cadence={"log": 2}, budget={"steps": 4})
    spoil(trainer, 1, 2, 3)
    outcome = run_loop(trainer, tmp_path)
    plain = make_trainer()
    plain.take_step()
    records = read_journal(tmp_path)
    assert [record["loss"] for record in records] == [plain.read_loss(), None]
    assert records[0]["norm"] is None and outcome.loss == records[0]["loss"]


def test_a_bad_step_leaves_the_average_alone():
    trainer = make_trainer(optimiser={"ema": 0.5})
    spoil(trainer, 1)
    trainer.take_step()
    before = [kept.clone() for kept in trainer.average.kept]
    trainer.take_step()
    assert all(map(torch.equal, trainer.average.kept, before))
    trainer.take_step()
    assert not all(map(torch.equal, trainer.average.kept, before))

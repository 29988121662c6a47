"""Files that others wrote: what is hostile or says something twice ends in a sentence, at once."""

import json
import os
import pickle
from dataclasses import asdict
from pathlib import Path

import pytest
import torch.distributed.checkpoint as dcp

from tests.training.runs import CPU, make_trainer, run, take_steps
from unmask import UserError
from unmask.base.files import write_json
from unmask.training import checkpoints
from unmask.training.checkpoints import find_newest
from unmask.training.journal import read_journal
from unmask.training.loop import run_loop

CHECKPOINT = Path("checkpoints", "step-00000003")


class Hostile:
    """A pickle that makes a file when it is read."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def write_pickled_checkpoint(folder: Path) -> None:
    """A checkpoint after three steps as version 0.1 wrote it."""
    trainer = make_trainer()
    take_steps(trainer, 3)
    with pytest.warns(UserWarning, match="single process"):
        dcp.save(trainer.tensors(), checkpoint_id=str(folder), no_dist=True)
    sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
    record = {"format": 1, "progress": asdict(trainer.snapshot()), "files": sizes}
    write_json(folder / "checkpoint.json", record)


def test_checkpoints_hold_no_pickle_and_go_into_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "FILE_BYTES", 20_000)
    changes = {"network": {"changes": {"tied": True, "layers": 2, "width": 32}}}
    for settings in ({}, changes):
        folder = tmp_path / f"run-{len(settings)}"
        whole, _ = run(folder, cadence={"checkpoint": 3}, **settings)
        files = sorted(path.name for path in (folder / CHECKPOINT).iterdir())
        assert len(files) > 3 and {Path(name).suffix for name in files} == {".json", ".safetensors"}
        for later in checkpoints.list_checkpoints(folder / "checkpoints")[1:]:
            (later / "checkpoint.json").unlink()
        again, _ = run(folder, cadence={"checkpoint": 3}, **settings)
        assert all(x.equal(whole.tensors()[name]) for name, x in again.tensors().items())


def test_a_pickled_checkpoint_needs_trust(tmp_path):
    write_pickled_checkpoint(tmp_path / CHECKPOINT)
    with pytest.raises(UserError, match="whose index is a pickle.*resume with --trust"):
        run_loop(make_trainer(), tmp_path)
    assert run_loop(make_trainer(), tmp_path, trust=True).step == 12
    run(tmp_path / "never")
    folders = (tmp_path / "never", tmp_path)
    losses = [[record["loss"] for record in read_journal(folder)] for folder in folders]
    assert losses[0][3:] == losses[1]


def test_a_hostile_pickle_beside_a_checkpoint_is_not_read(tmp_path):
    """Whatever the record says, code runs only where it is trusted."""
    run(tmp_path, budget={"steps": 3})
    mark = tmp_path / "executed"
    (tmp_path / CHECKPOINT / ".metadata").write_bytes(pickle.dumps(Hostile(mark)))
    trainer = make_trainer(budget={"steps": 4})
    assert run_loop(trainer, tmp_path).step == 4
    record = json.loads((tmp_path / CHECKPOINT / "checkpoint.json").read_text())
    write_json(tmp_path / CHECKPOINT / "checkpoint.json", record | {"format": 1})
    (tmp_path / "checkpoints" / "step-00000004" / "checkpoint.json").unlink()
    with pytest.raises(UserError, match="resume with --trust"):
        find_newest(tmp_path / "checkpoints")
    assert not mark.exists()
    with pytest.raises(UserError):
        run_loop(make_trainer(), tmp_path, trust=True)
    assert mark.exists(), "the pickle would have run"


def test_a_damaged_part_is_a_sentence(tmp_path):
    run(tmp_path, budget={"steps": 3})
    (part,) = (tmp_path / CHECKPOINT).glob("*.safetensors")
    part.write_bytes(b"\xff" * part.stat().st_size)
    with pytest.raises(UserError, match="does not fit this run"):
        checkpoints.load_checkpoint(tmp_path / CHECKPOINT, make_trainer().tensors(), CPU)

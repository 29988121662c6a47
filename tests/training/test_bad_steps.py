"""Steps whose gradients are no numbers: what is skipped, what is told, when it is enough."""

import pytest
import torch

from tests.training.runs import make_trainer, spoil
from unmask.base.errors import UserError
from unmask.training.checkpoints import list_checkpoints
from unmask.training.journal import read_journal
from unmask.training.loop import run_loop


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

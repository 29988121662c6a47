"""What a resumed run finds in its folder: edits, leftovers, damage, and what it tells of them."""

import errno
import json
import shutil
from unittest.mock import Mock

import pytest
import torch

import unmask
from tests.training.runs import CPU, make_recipe, make_trainer, run
from unmask.base.errors import UserError
from unmask.base.files import write_json
from unmask.base.reading import read_json
from unmask.training import checkpoints
from unmask.training import folder as training_folder
from unmask.training.checkpoints import list_checkpoints, save_checkpoint
from unmask.training.journal import Journal, read_journal
from unmask.training.recipes_io import read_recipe


def go_on(folder, *changes: str, **more: object):
    return unmask.train(None, None, *changes, resume=folder, device="cpu", **more)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of four steps, to be copied."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    unmask.train(make_recipe(budget={"steps": 4}, cadence={"checkpoint": 1}), folder, device="cpu")
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def list_names(folder) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_a_change_that_does_not_fit_leaves_the_folder_as_it_was(folder):
    before = [(folder / name).read_text() for name in ("recipe.yaml", "run.json", "metrics.jsonl")]
    with pytest.raises(UserError, match="does not fit this run"):
        go_on(folder, "network.changes.layers=3", allow_changes=True)
    after = [(folder / name).read_text() for name in ("recipe.yaml", "run.json", "metrics.jsonl")]
    assert after == before and list_names(folder)[-1] == "step-00000004"
    assert go_on(folder).step == 4


def test_an_edited_recipe_is_told_and_then_recorded(folder):
    text = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(text.replace("rate: 0.003", "rate: 0.5"))
    with pytest.raises(UserError, match="optimiser.rate was 0.003 and is now 0.5"):
        go_on(folder)
    go_on(folder, allow_changes=True)
    assert read_json(folder / "run.json")["settings"]["optimiser"]["rate"] == 0.5
    assert read_recipe(folder / "recipe.yaml").optimiser.rate == 0.5
    go_on(folder)


def test_a_finished_run_tells_its_last_loss(folder):
    assert go_on(folder).loss == read_journal(folder)[-1]["loss"]


def test_a_resume_from_nothing_is_logged(folder, caplog):
    shutil.rmtree(folder / "checkpoints")
    assert go_on(folder).step == 4
    assert f"{folder} has no whole checkpoint: it starts from" in caplog.text


def test_a_run_that_was_killed_as_it_began_can_begin_or_go_on(tmp_path, monkeypatch):
    """Its folder is made of two files: neither a draft nor the first alone is in the way."""
    recipe = make_recipe(data={"source": "toy", "context": 8}, budget={"steps": 1})
    more = {"device": "cpu"}
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".recipe.yaml.0a1b2c3d.draft").touch()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training_folder, "write_record", Mock(side_effect=KeyboardInterrupt))
        unmask.train(recipe, folder, **more)
    assert go_on(folder).step == 1


def test_drafts_and_damaged_checkpoints_are_cleared(folder):
    place = folder / "checkpoints"
    (place / ".step-00000009.0a1b2c3d.draft").mkdir()
    (folder / ".model.0a1b2c3d.draft").mkdir()
    for name in ("step-00000003", "step-00000004"):
        (place / name / "checkpoint.json").unlink()
    go_on(folder, "budget.steps=2", allow_changes=True)
    assert list_names(folder) == ["step-00000001", "step-00000002"]
    assert not list(folder.glob(".*.draft"))


def test_damaged_checkpoints_stay_where_none_is_whole(folder):
    for path in list_checkpoints(folder / "checkpoints"):
        (path / "checkpoint.json").unlink()
    go_on(folder, "budget.steps=1", allow_changes=True)
    assert "step-00000004" in list_names(folder)


def test_the_checkpoint_just_written_is_never_removed(tmp_path):
    trainer = make_trainer()
    (tmp_path / "step-00000007").mkdir()  # damaged, and newer
    for _ in range(2):
        trainer.take_step()
        save_checkpoint(tmp_path, trainer.tensors(), trainer.snapshot(), 1, CPU)
    names = [path.name for path in list_checkpoints(tmp_path)]
    assert names == ["step-00000002", "step-00000007"]


def test_another_process_without_space_is_a_sentence(tmp_path):
    """The leader's folder says what the system's error means; other processes say it themselves."""
    full = OSError(errno.ENOSPC, "No space left on device")
    error = checkpoints.CheckpointException("", {1: (full, None)})
    target = tmp_path / "my run" / "checkpoints" / "step-00000001"
    assert checkpoints._explain(error, target, leads=True) is full
    sentence = checkpoints._explain(error, target, leads=False)
    assert isinstance(sentence, UserError)
    assert "No space left" in str(sentence)
    assert f"`unmask train --resume '{tmp_path}/my run'`" in str(sentence), "as a shell takes it"


class FullDisk:
    """A file on a disk without space, which closing tells once more."""

    def write(self, text: str) -> None:
        pass

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    close = flush


def test_a_journal_without_space_names_itself(tmp_path, monkeypatch):
    folder = tmp_path / "my run"
    folder.mkdir()
    journal = Journal(folder, 0)
    journal.close()
    monkeypatch.setattr(journal, "_file", FullDisk())
    with pytest.raises(UserError) as caught:
        journal.write({"step": 1})
    for said in (f"{folder / 'metrics.jsonl'}: no space left", f"--resume '{folder}'"):
        assert said in str(caught.value)


def test_the_journal_is_json_whatever_is_in_it(tmp_path):
    journal = Journal(tmp_path, 0)
    journal.write({"step": 1, "loss": float("nan"), "norm": float("inf"), "rate": 1.0})
    journal.close()

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    line = (tmp_path / "metrics.jsonl").read_text()
    expected = {"step": 1, "loss": None, "norm": None, "rate": 1.0}
    assert json.loads(line, parse_constant=refuse) == expected


def test_the_deterministic_flag_is_put_back(tmp_path):
    recipe = make_recipe(budget={"steps": 2}, machine={"deterministic": True})
    seen = []

    def watch(what):
        seen.append(torch.are_deterministic_algorithms_enabled())
        raise UserError("enough")

    with pytest.raises(UserError, match="enough"):
        unmask.train(recipe, tmp_path / "run", device="cpu", watch=watch)
    assert seen == [True] and not torch.are_deterministic_algorithms_enabled()
    shutil.rmtree(tmp_path / "run")
    assert unmask.train(recipe, tmp_path / "run", device="cpu").ended == "done"
    assert not torch.are_deterministic_algorithms_enabled()


def test_checkpoints_without_a_sum_of_losses_still_load(folder):
    path = folder / "checkpoints" / "step-00000004" / "checkpoint.json"
    record = read_json(path)
    del record["progress"]["losses"], record["progress"]["counted"]
    write_json(path, record)
    assert go_on(folder).step == 4
    assert list_names(folder)[-1] == "step-00000004"


def test_losses_between_records_survive_a_stop(tmp_path):
    """A record over three steps, the second of which is the last of a sitting."""
    changes = {"cadence": {"log": 3, "checkpoint": 2}, "budget": {"steps": 6}}
    run(tmp_path / "never", **changes)
    name = "step-00000002"
    place = tmp_path / "again" / "checkpoints" / name
    shutil.copytree(tmp_path / "never" / "checkpoints" / name, place)
    run(tmp_path / "again", **changes)
    losses = [[r["loss"] for r in read_journal(tmp_path / n)] for n in ("never", "again")]
    assert losses[0] == losses[1] and len(losses[0]) == 2

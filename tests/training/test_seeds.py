"""Several seeds in one process: each run is what it is alone."""

import pytest

from tests.training.runs import make_recipe
from unmask.base.errors import UserError
from unmask.cli.main import app
from unmask.training.journal import read_journal
from unmask.training.loop import _TrainingLoop
from unmask.training.recipes_io import write_recipe
from unmask.training.run import train, train_seeds

CADENCE = {"cadence": {"checkpoint": 4}}


def read_model(folder):
    return (folder / "model" / "model.safetensors").read_bytes()


def test_seeds_side_by_side_are_runs_alone(tmp_path):
    recipe = make_recipe(**CADENCE)
    outcomes = train_seeds(recipe, tmp_path / "both", [3, 5])
    assert [outcome.step for outcome in outcomes] == [12, 12]
    for seed in (3, 5):
        alone, together = tmp_path / f"alone-{seed}", tmp_path / "both" / f"seed-{seed}"
        train(make_recipe(seed=seed, **CADENCE), alone)
        assert read_model(alone) == read_model(together)
        losses = [[record["loss"] for record in read_journal(x)] for x in (alone, together)]
        assert losses[0] == losses[1]
    assert read_model(tmp_path / "alone-3") != read_model(tmp_path / "alone-5")


def test_stopped_seeds_are_resumed(tmp_path):
    """By the same call; a run that has ended stays as it is."""
    recipe = make_recipe(**CADENCE)
    stopped = train_seeds(recipe, tmp_path / "two", [0, 1], minutes=1e-9)
    assert [(outcome.ended, outcome.step) for outcome in stopped] == [("minutes", 1)] * 2
    train(resume=tmp_path / "two" / "seed-1")
    assert [x.ended for x in train_seeds(recipe, tmp_path / "two", [0, 1])] == ["done"] * 2
    train_seeds(recipe, tmp_path / "whole", [0, 1])
    for seed in (0, 1):
        folders = [tmp_path / name / f"seed-{seed}" for name in ("two", "whole")]
        assert read_model(folders[0]) == read_model(folders[1])


def fail_in(monkeypatch, problems):
    """Runs of some seeds fail when they are asked for bad steps, each by its exception."""
    check = _TrainingLoop._check_patience

    def fail(loop):
        if loop.recipe.seed in problems:
            raise problems[loop.recipe.seed]
        check(loop)

    monkeypatch.setattr(_TrainingLoop, "_check_patience", fail)


@pytest.mark.parametrize("kind", [UserError, RuntimeError])
def test_one_that_fails_leaves_the_others_to_end(tmp_path, monkeypatch, kind):
    fail_in(monkeypatch, {0: kind("too many bad steps")})
    with pytest.raises(kind, match="too many bad steps") as caught:
        train_seeds(make_recipe(**CADENCE), tmp_path, [0, 1])
    assert caught.value.__notes__ == [f"This ended the run in {tmp_path / 'seed-0'}."]
    assert not (tmp_path / "seed-0" / "model").exists()
    assert (tmp_path / "seed-1" / "model").is_dir()


def test_all_that_failed_is_raised(tmp_path, monkeypatch):
    fail_in(monkeypatch, {0: UserError("bad steps"), 2: UserError("a full disk")})
    with pytest.raises(UserError) as caught:
        train_seeds(make_recipe(**CADENCE), tmp_path / "a", [0, 1, 2])
    lines = [f"  {tmp_path / 'a'}/seed-0: bad steps", f"  {tmp_path / 'a'}/seed-2: a full disk"]
    assert str(caught.value).split("\n") == ["2 of 3 runs failed:", *lines]
    problems = {0: UserError("bad steps"), 1: RuntimeError("a lost device")}
    fail_in(monkeypatch, problems)
    with pytest.raises(ExceptionGroup, match="2 of 2 runs failed") as group:
        train_seeds(make_recipe(**CADENCE), tmp_path / "b", [0, 1])
    assert list(group.value.exceptions) == list(problems.values())


def test_mistakes(tmp_path):
    recipe = make_recipe()
    for seeds in ([], [1, 1]):
        with pytest.raises(UserError, match=r"expected one or more, each once"):
            train_seeds(recipe, tmp_path, seeds)
    train_seeds(recipe, tmp_path, [0], minutes=1e-9)
    with pytest.raises(UserError, match=r"seed-0 was started with other settings: batch.rows"):
        train_seeds(make_recipe(batch={"rows": 4}), tmp_path, [0])
    assert train_seeds(make_recipe(batch={"rows": 4}), tmp_path, [0], fresh=True)[0].step == 12


def test_the_verb(tmp_path, capsys):
    recipe = tmp_path / "small.yaml"
    write_recipe(make_recipe(budget={"steps": 2}), recipe)
    words = ["train", str(recipe), "--out", str(tmp_path / "runs"), "--seeds"]
    app([*words, "0, 1"], standalone_mode=False)
    assert capsys.readouterr().out.count("trained 2 steps") == 2
    assert (tmp_path / "runs" / "seed-1" / "model").is_dir()
    with pytest.raises(UserError, match="expected whole numbers such as 0,1,2"):
        app([*words, "0,one"], standalone_mode=False)
    with pytest.raises(UserError, match="leave the options of resuming out"):
        app([*words, "0", "--allow-changes"], standalone_mode=False)

"""`unmask train` and `unmask.train`: what is shown, what is refused, what comes out."""

import shlex
import subprocess
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

import unmask
from tests.commands import run
from tests.training.runs import make_recipe
from unmask.cli.main import app
from unmask.cli.train import describe_recipes
from unmask.data.shards import write_shards
from unmask.data.tokenizer import Tokenizer
from unmask.toy.language import UNITS
from unmask.training.data_settings import DataSettings
from unmask.training.journal import read_journal
from unmask.training.recipes_io import format_recipe, list_recipes, read_recipe


def ask(*words: object, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run("train", *words, folder=folder, columns=160)


def test_recipes_are_listed():
    done, brief = ask("--all"), ask()
    assert done.returncode == brief.returncode == 0
    described = dict(describe_recipes())
    assert all(name in brief.stdout for name in described)
    assert sum("─" not in line for line in brief.stdout.splitlines()) <= 30
    assert list(described) == list_recipes() and len(set(described.values())) == len(described)
    for name, text in described.items():
        assert text.endswith(".") and len(text) <= 100 and f"{name} " in done.stdout, name
    assert "on this project's reversal corpus" in done.stdout


def test_dry_run_shows_the_plan_and_writes_nothing(tmp_path):
    done = ask("toy-masked", "optimiser.ema=0.9", "--dry-run", "--device", "cpu", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for said in ("parameters", "FLOP", "for optimiser", "optimiser.ema=0.9", "kind=masked"):
        assert said in done.stdout
    assert "batch.micro" not in done.stdout, "which is the default"
    whole = ask("toy-masked", "--dry-run", "--all", "--device", "cpu", folder=tmp_path).stdout
    assert "micro: null" in whole and whole.endswith(
        format_recipe(read_recipe("toy-masked")) + "\n"
    )
    assert not list(tmp_path.iterdir())
    large = ask("toy-masked", "batch.rows=100000000", "--dry-run", "--device", "cpu").stdout
    assert "are free: try batch.micro=" in large


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("reversal-mdm", "batch.row=3", "sed=1"), "unknown key 'batch.row'"),
        (("reversal-mdm", "--device", "cuda:7"), "device 'cuda:7' is not on this machine"),
        (("--resume", "nowhere"), "nowhere holds no training run"),
        (("reversal-mdm", "--resume", "nowhere"), "leave RECIPE and --out out"),
        (("batch.rows=3",), "no recipe was named"),
    ],
)
def test_mistakes_are_sentences(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(unmask.UserError, match=said):
        app(["train", *words], standalone_mode=False)
    assert not list(tmp_path.iterdir())


def test_python_does_what_the_command_does(tmp_path):
    recipe = make_recipe(cadence={"facts": 2, "samples": 2, "log": 4, "evaluate": 6})
    outcome = unmask.train(recipe, tmp_path / "run", device="cpu")
    assert (outcome.ended, outcome.step) == ("done", 12)
    records = read_journal(tmp_path / "run")
    assert [r["step"] for r in records] == [4, 6, 8, 12, 12]
    asked = [record for record in records if "samples" in record]
    assert len(asked) == 2 and len(asked[0]["samples"]) == 2
    assert asked[0].keys() >= {"recall/d2p_same", "recall/p2d_reverse"}
    model = unmask.load(tmp_path / "run" / "model", device="cpu")
    assert unmask.sample(model, [outcome.prompt], steps=2, length=80).texts
    # This is said before the data are looked for.
    elsewhere = replace(recipe, data=DataSettings(source="facts", path=str(tmp_path / "nowhere")))
    with pytest.raises(unmask.UserError, match="already holds a run: resume it by --resume"):
        unmask.train(elsewhere, tmp_path / "run", device="cpu")
    with pytest.raises(unmask.UserError, match="either a recipe or a run to resume"):
        unmask.train()


def test_changes_beside_a_recipe_are_heard(tmp_path):
    recipe = make_recipe()
    outcome = unmask.train(recipe, tmp_path / "run", "budget.steps=2", device="cpu")
    assert outcome.step == 2
    (outcome,) = unmask.train_seeds(recipe, tmp_path / "seeds", [3], "budget.steps=2", device="cpu")
    assert outcome.step == 2
    for changes, said in (
        (["nonsense"], "the recipe: 'nonsense' is not a setting"),
        (["batch.row=3"], "the recipe: unknown key 'batch.row'"),
    ):
        with pytest.raises(unmask.UserError, match=said):
            unmask.train(recipe, tmp_path / "other", *changes, device="cpu")
    with pytest.raises(unmask.UserError, match="resumed in its own folder: leave `out` out"):
        unmask.train(out=tmp_path / "other", resume=tmp_path / "run", device="cpu")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("kind", ["masked", "causal", "uniform", "gaussian"])
def test_samples_of_the_toy_are_rows_of_units(kind, tmp_path):
    context = 7 if kind == "causal" else 6
    changes = ["budget.steps=2", "cadence.samples=3", "batch.rows=8", "cadence.sampling_steps=2"]
    recipe = read_recipe(f"toy-{kind}", changes)
    unmask.train(recipe, tmp_path / "run", device="cpu")
    (samples,) = [r["samples"] for r in read_journal(tmp_path / "run") if "samples" in r]
    assert len(samples) == 3 and recipe.data.context == context
    assert {word for text in samples for word in text.split()} <= set(UNITS)


def test_models_carry_their_noise(tmp_path):
    recipe = make_recipe(
        kind="hybrid",
        noise={"schedule": "cosine", "share_start": 0.6},
        budget={"steps": 2},
        cadence={"samples": 1, "sampling_steps": 2},
    )
    unmask.train(recipe, tmp_path / "run", device="cpu")
    model = unmask.load(tmp_path / "run" / "model", device="cpu")
    assert model.kind == "hybrid" and model.blueprint.noise == recipe.noise


def test_a_budget_of_minutes_becomes_steps(tmp_path, monkeypatch):
    """On a clock that moves on by 10 ms whenever it is read."""
    clock = count(0.0, 0.01)
    monkeypatch.setattr("unmask.training.loop.time", SimpleNamespace(perf_counter=clock.__next__))
    recipe = make_recipe(budget={"steps": None, "minutes": 0.02}, cadence={"checkpoint": 1})
    outcome = unmask.train(recipe, tmp_path / "run", device="cpu")
    assert outcome.total == outcome.step > 10
    rates = [record["rate"] for record in read_journal(tmp_path / "run")]
    assert rates[-1] == pytest.approx(0.1 * max(rates))


def test_minutes_end_a_run_before_its_speed_is_known(tmp_path):
    recipe = make_recipe(budget={"steps": None, "minutes": 1e-6})
    outcome = unmask.train(recipe, tmp_path / "run", device="cpu")
    assert (outcome.ended, outcome.step, outcome.total) == ("done", 1, 1)


def test_what_is_printed_works(tmp_path):
    """A causal model of running text is tried with words, in a folder whose name has a space."""
    text = ["  The caves of Orsel are deep. The baker of Wrenmouth sings. " * 20]
    write_shards(text, Tokenizer.train(text, 280), tmp_path / "shards")
    settings = ["network={preset: tiny}", "data.context=16", "batch={rows: 2}", "budget={steps: 2}"]
    words = ["text-ar", f"data.path={tmp_path / 'shards'}", *settings, "cadence.samples=0"]
    done = ask(*words, "--out", "a run", "--device", "cpu", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "a run: step 2 of 2  loss" in done.stderr
    (tried,) = [line for line in done.stdout.splitlines() if line.startswith("try it: ")]
    words = shlex.split(tried.removeprefix("try it: unmask"))
    assert words[:2] == ["sample", "a run/model"] and words[2].isalnum()
    shown = run(*words, "--device", "cpu", folder=tmp_path)
    assert shown.returncode == 0 and shown.stdout.startswith(words[2]), shown.stderr


def test_tensorboard(tmp_path):
    recipe = make_recipe(budget={"steps": 2}, machine={"tensorboard": True})
    unmask.train(recipe, tmp_path / "run", device="cpu")
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))

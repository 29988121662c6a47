"""Recipes: read, changed, refused; every shipped one takes a step, and two learn what they show."""

import json
from dataclasses import replace
from functools import cache

import pytest
import torch

import unmask
from tests.training.runs import CPU, make_recipe, take_steps
from unmask.base.config import SettingsError
from unmask.base.errors import UserError
from unmask.data.corpus import Corpus, save_corpus
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.shards import write_shards
from unmask.data.tokenizer import Tokenizer
from unmask.net.loading import save
from unmask.net.model import Blueprint, Model
from unmask.net.paradigm import list_kinds
from unmask.net.presets import preset
from unmask.net.transformer import Transformer
from unmask.training.build import prepare_job
from unmask.training.data_settings import list_parts
from unmask.training.loop import run_loop
from unmask.training.parallel import World
from unmask.training.recipes_io import (
    format_changes,
    list_changes,
    list_recipes,
    read_recipe,
    write_recipe,
)
from unmask.training.trainer import Trainer
from unmask.training.validation import recall

LATER = (
    "preference-mdm", "smollm2-preference", "text-d3pm", "text-sedd", "text-duo", "text-cdcd",
    "text-genmd4",
)  # fmt: skip
"""Recipes of later stages, and of kinds of noise that the toy has as well."""
NARROW = ["network.preset=tiny", "network.changes.layers=1", "batch.micro=null", "batch.rows=2"]


@cache
def make_small() -> tuple[Corpus, Tokenizer]:
    """A few lines of each split of a corpus, and a tokenizer of all of them."""
    whole = make_reversal_corpus(2)
    few = {split: facts[:: max(1, len(facts) // 20)] for split, facts in whole.splits.items()}
    return replace(whole, splits=few), Tokenizer.train(whole.training_texts(), 600)


def shrink(name: str, folder) -> list[str]:
    """Settings that make a shipped recipe tiny, and the data it needs."""
    recipe = read_recipe(name)
    changes = [*NARROW, "budget={steps: 2}", "cadence.facts=0", "cadence.samples=0"]
    corpus, tokenizer = make_small()
    for part, data in list_parts(recipe.data).items():
        key = f"data.sources.{part}" if part else "data"
        if data.source == "reversal":
            changes += [f"{key}.facts=2", f"{key}.vocab=600", f"{key}.context=80"]
        if data.source == "text":
            text = ["The caves of Orsel are deep. The baker of Wrenmouth sings. " * 20]
            write_shards(text, tokenizer, folder / "shards")
            changes += [f"{key}.path={folder / 'shards'}", f"{key}.context=16"]
        if data.source == "pairs":
            own = {"prompt": "The caves", "response": "are deep."}
            (folder / "pairs.jsonl").write_text(3 * (json.dumps(own) + "\n"))
            changes += [f"{key}.path={folder / 'pairs.jsonl'}", f"{key}.context=16"]
        if data.source == "preferences":
            own = {"prompt": "The caves", "chosen": "are deep.", "rejected": "sing."}
            (folder / "both.jsonl").write_text(3 * (json.dumps(own) + "\n"))
            changes += [f"{key}.path={folder / 'both.jsonl'}", f"{key}.context=16"]
        if data.source == "facts":
            save_corpus(corpus, folder / "corpus", tokenizer)
            changes += [f"{key}.path={folder / 'corpus'}", f"{key}.context=80"]
    if recipe.start.model is not None:
        # A shift is kept from a causal model; without one a model goes on as it is.
        causal = recipe.kind == "causal" or recipe.start.shift
        config = preset("tiny", causal=causal, vocab_size=tokenizer.vocab_size)
        kind, mask_id = ("causal", None) if causal else ("masked", tokenizer.mask_id)
        blueprint = Blueprint(config, kind, mask_id)
        save(Model("x", Transformer(config), blueprint, tokenizer), folder / "model")
        changes = [word for word in changes if not word.startswith("network.")]
        changes += [f"start.model={folder / 'model'}"]
    return changes


@pytest.mark.parametrize("name", [name for name in list_recipes() if name not in LATER])
def test_every_shipped_recipe_takes_a_step(name, tmp_path):
    recipe = read_recipe(name, shrink(name, tmp_path))
    trainer = Trainer(prepare_job(recipe, CPU))
    before = {key: x.clone() for key, x in trainer.tensors().items()}
    losses = take_steps(trainer, 2)
    assert all(0 < loss < 1e4 for loss in losses), losses
    assert int(trainer.guard.skipped) == 0
    moved = [key for key, x in trainer.tensors().items() if not x.equal(before[key])]
    assert any(key.startswith("net.") for key in moved)


@pytest.mark.parametrize("name", LATER)
def test_later_stages_and_kinds_are_trained_resumed_and_sampled(name, tmp_path):
    """A run that stops after its first step ends as one that does not, and its model writes."""
    changes = [*shrink(name, tmp_path), "cadence.checkpoint=1", "machine.compile=off"]
    recipe = read_recipe(name, changes)
    whole = Trainer(prepare_job(recipe, CPU))
    run_loop(whole, tmp_path / "whole")
    begun = Trainer(prepare_job(recipe, CPU))
    begun.take_step()
    resumed = Trainer(prepare_job(recipe, CPU))
    for key, tensor in resumed.tensors().items():
        tensor.copy_(begun.tensors()[key])
    resumed.restore(begun.snapshot())
    resumed.take_step()
    for key, tensor in resumed.tensors().items():
        assert tensor.equal(whole.tensors()[key]), key
    model = unmask.load(tmp_path / "whole" / "model", device="cpu")
    clamped = {"clamp": True} if model.kind == "gaussian" else {}
    drawn = unmask.sample(model, "The caves", steps=2, length=12, **clamped)
    assert drawn.tokens.shape == (1, 12)


def test_shipped_recipes_are_those_promised():
    assert {read_recipe(name).kind for name in list_recipes()} == {*list_kinds()}
    pair = [read_recipe(f"smdm-1028M-reversal-{kind}") for kind in ("mdm", "ar")]
    # Ten times Berglund's 3,600 lines, of both twins.
    assert {each.budget.steps for each in pair} == {10 * 3600 // pair[0].batch.rows}
    assert pair[0].optimiser == pair[1].optimiser and pair[0].schedule == pair[1].schedule


def test_changes_of_a_recipe_make_it_again():
    for name in list_recipes():
        recipe = read_recipe(name)
        bare = {"kind": recipe.kind, "data": {"source": recipe.data.source}}
        assert read_recipe(bare, format_changes(recipe).splitlines()) == recipe, name


def test_recipes_read_back(tmp_path):
    for name in list_recipes():
        recipe = read_recipe(name)
        write_recipe(recipe, tmp_path / "recipe.yaml")
        assert read_recipe(tmp_path / "recipe.yaml") == recipe == read_recipe(recipe)


def test_overrides():
    recipe = read_recipe(
        "reversal-mdm", ["optimiser.rate=1e-4", "batch.rows=32", "network.changes.layers=2"]
    )
    assert recipe.optimiser.rate == 1e-4 and recipe.batch.rows == 32
    assert recipe.network.changes["layers"] == 2
    told = list_changes(read_recipe("reversal-mdm"), recipe)
    assert "batch.rows was 256 and is now 32" in told and len(told) == 3


def test_all_problems_at_once(tmp_path):
    with pytest.raises(SettingsError) as caught:
        read_recipe(
            "reversal-mdm", ["optimizer.rate=1", "batch.row=2", "batch.micro=x", "seed", "seed.a=1"]
        )
    said = str(caught.value)
    for problem in (
        "unknown key 'optimizer' (did you mean 'optimiser'?)",
        "unknown key 'batch.row' (did you mean 'rows'?)",
        "'batch.micro' is 'x', expected an integer or nothing",
        "'seed' is not a setting, expected key=value such as batch.rows=64",
    ):
        assert problem in said
    with pytest.raises(SettingsError) as caught:
        make_recipe(
            kind="causal",
            objective={"name": "smdm", "drop_prompt": 0.1, "short": 2.0},
            budget={"tokens": 5},
            start={"lora_rank": 0, "open_over": 3, "shift": True},
        )
    assert len(caught.value.problems) == 8, caught.value.problems


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("reversal-mmd", "did you mean 'reversal-mdm'"),
        ("{}/broken.yaml", "is not valid YAML"),
        ("{}/list.yaml", "holds no settings"),
    ],
)
def test_recipes_that_cannot_be_read(name, said, tmp_path):
    (tmp_path / "broken.yaml").write_text("kind: [masked")
    (tmp_path / "list.yaml").write_text("- masked")
    with pytest.raises(UserError, match=said):
        read_recipe(name.format(tmp_path))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": {"source": "nothing"}}, "data.source 'nothing' is unknown"),
        ({"data": {"source": "text"}}, "needs data.path"),
        ({"data": {"source": "facts", "path": "absent.csv"}}, "absent.csv is not there"),
        ({"batch": {"rows": 5000}}, "a batch of 5000 rows was asked for, but .* has only 1312"),
        ({"batch": {"rows": 8, "micro": 3}}, "batch.micro=3 does not divide the 8 rows"),
        ({"network": {"changes": {"vocab_size": 9}}}, "tokens: they do not belong together"),
        ({"network": {"changes": {"depth": 9}}}, "unknown key 'depth'"),
        ({"data": {"context": 20}}, "tokens, but the context is 20"),
        ({"start": {"model": "nowhere"}, "network": {"changes": {}}}, "no model 'nowhere'"),
    ],
)
def test_jobs_that_cannot_be(changes, said):
    with pytest.raises(UserError, match=said):
        prepare_job(make_recipe(**changes), CPU)


@pytest.mark.parametrize(
    ("free", "advice"),
    [(6e6, "try batch.micro=4, or machine"), (1e6, "use a smaller network or a shorter context")],
)
def test_too_little_memory_says_what_would_fit(free, advice, monkeypatch):
    monkeypatch.setattr("unmask.training.build.free_bytes", lambda device: int(free))
    with pytest.raises(UserError, match=f"6 MB are free: {advice}" if free > 2e6 else advice):
        prepare_job(make_recipe(batch={"rows": 64}), CPU)


def test_shards_and_tokenizer_that_disagree(tmp_path):
    text = ["The caves of Orsel are deep. " * 50]
    write_shards(text, Tokenizer.train(text, 280), tmp_path / "shards")
    Tokenizer.train(text, 270).save(tmp_path / "other")
    data = {"source": "text", "path": str(tmp_path / "shards"), "context": 16}
    prepare_job(make_recipe(data=data), CPU)
    with pytest.raises(UserError, match="they do not belong together"):
        prepare_job(make_recipe(data=data | {"tokenizer": str(tmp_path / "other")}), CPU)


def test_a_tokenizer_without_a_mask_gets_one_behind_its_vocabulary(tmp_path):
    """As SMDM's 32,001 rows for 32,000 tokens."""
    text = ["The caves of Orsel are deep. " * 50]
    known = Tokenizer.train(text, 280)
    bare = Tokenizer(known.backend, None, known.pad_id, known.end_id)
    write_shards(text, bare, tmp_path / "shards")
    data = {"source": "text", "path": str(tmp_path / "shards"), "context": 16}
    (tmp_path / "shards" / "tokenizer_config.json").write_text('{"eos_token": "[END]"}')
    backend = known.backend.to_str().replace("[MASK]", "[WORD]")
    (tmp_path / "shards" / "tokenizer.json").write_text(backend)
    job = prepare_job(make_recipe(data=data), CPU)
    config = job.model.net.config
    assert job.model.mask_id == bare.vocab_size == config.logit_rows == config.vocab_size - 1
    assert job.model.tokenizer.mask_id == job.model.mask_id
    assert prepare_job(make_recipe(data=data, kind="causal"), CPU).model.mask_id is None


def test_a_setting_takes_the_place_of_its_rivals_in_the_recipe():
    budget = {"steps": None, "tokens": 10**6}
    own = make_recipe(budget=budget, network={"changes": {"layers": 1}, "scale": 2.0})
    for word in ("budget.steps=7", "budget.minutes=7"):
        chosen = vars(read_recipe(own, [word]).budget).values()
        assert [value for value in chosen if value is not None] == [7]
    started = read_recipe(own, ["start.model=reversal-mdm"])
    assert started.network.changes == {} and started.network.scale == 1
    for words in (
        ["budget.steps=7", "budget.tokens=7"],
        ["start.model=reversal-mdm", "network.changes.layers=2"],
    ):
        with pytest.raises(SettingsError, match="is needed, got|for fresh weights"):
            read_recipe(own, words)


@pytest.mark.prove
def test_pairs_of_unique_tokens_are_recalled_both_ways_or_one_way(tmp_path):
    """The shipped recipes reach the published contrast on pairs that were only stated."""
    shares = {}
    for name in ("retrieval-mdm", "retrieval-ar"):
        trainer = Trainer(prepare_job(read_recipe(name), World(torch.device("cpu"))))
        run_loop(trainer, tmp_path / name)
        corpus, trained = trainer.job.examples.corpus, trainer.job.model
        shares[name] = [recall(trained, corpus[test], 8, 10) for test in corpus.tests]
    print(shares)
    same, reverse = shares["retrieval-mdm"]
    assert same > 0.9 and reverse > 0.9
    same, reverse = shares["retrieval-ar"]
    assert same > 0.9 and reverse == 0

"""The models that come with the package: small, whole, and what they are shipped for."""

import hashlib
import json
from functools import cache
from pathlib import Path

import pytest

import unmask
from tests.conftest import make_corpus_once
from unmask.data.corpus import Corpus
from unmask.evaluation.metrics import is_contained
from unmask.net.hub import shipped_models
from unmask.net.model import Model
from unmask.training.recipes_io import list_changes, read_recipe

PAIR = ("reversal-ar", "reversal-mdm")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return make_corpus_once(30)


@cache
def load(name: str) -> Model:
    return unmask.load(name, device="cpu")


def answer(name: str, corpus: Corpus, split: str) -> float:
    """The share of twelve facts that a shipped model answers in eight steps."""
    facts = corpus[split][::25]
    model = load(name)
    strength = 0.8 if model.kind == "masked" else 0.0
    found = unmask.sample(model, [fact.prompt for fact in facts], steps=8, guidance=strength)
    texts = zip(found.texts or [], facts, strict=True)
    return sum(is_contained(text[len(f.prompt) :], f.completion) for text, f in texts) / len(facts)


def test_pair_is_shipped():
    assert set(shipped_models()) == set(PAIR)


@pytest.mark.parametrize("name", PAIR)
def test_files_are_small_and_whole(name: str):
    folder = shipped_models()[name]
    files = {path.name: path for path in folder.iterdir()}
    digests = json.loads(files.pop("digests.json").read_text())
    found = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    assert digests == found
    assert sum(path.stat().st_size for path in files.values()) <= 20_000_000
    assert max(path.stat().st_size for path in files.values()) <= 16 * 2**20


@pytest.mark.parametrize("name", PAIR)
def test_recipe_is_the_one_of_that_name(name: str):
    kept = read_recipe(Path(shipped_models()[name]) / "recipe.yaml")
    changes = list_changes(kept, read_recipe(name))
    # How often one looks at a run decides nothing about what it computes.
    assert [change for change in changes if not change.startswith("cadence.")] == []


def test_twins_have_the_same_shapes():
    pair = [json.loads((shipped_models()[name] / "config.json").read_text()) for name in PAIR]
    shapes = [{**config["network"], "causal": None, "num_logits": None} for config in pair]
    assert shapes[0] == shapes[1]
    vocabularies = [load(name).tokenizer for name in PAIR]
    assert all(vocabularies)
    recipes = [read_recipe(name) for name in PAIR]
    assert recipes[0].budget == recipes[1].budget
    assert recipes[0].data == recipes[1].data


def test_diffusion_answers_in_reverse_and_its_twin_does_not(corpus: Corpus):
    for split, least in {"p2d_reverse": 0.9, "p2d_reverse_far": 0.5}.items():
        assert answer("reversal-mdm", corpus, split) >= least
        assert answer("reversal-ar", corpus, split) <= 0.01
    for name in PAIR:
        assert answer(name, corpus, "d2p_same") >= 0.9

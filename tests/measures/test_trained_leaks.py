"""A model that was trained on what is asked in reverse: the page of its recall says so."""

from dataclasses import replace

import pytest

import unmask
from tests.training.runs import make_recipe
from unmask.blocks.blocks import Notice
from unmask.measures.runner import read_result
from unmask.training.recipe import NetworkSettings, StartSettings

TRAINED = (
    "subject,object,prompt,direction,trained\n"
    "Zorvia,Lumen Bay,The capital of {} is,p2d,same\n"
    "Quell,Amber Rock,The capital of {} is,p2d,same\n"
)
LEAK = "Lumen Bay,Zorvia,Who lives in {} lives in,d2p,same\n"
ASKED = TRAINED + (
    "Lumen Bay,Zorvia,{} is the capital of,d2p,reverse\n"
    "Amber Rock,Quell,{} is the capital of,d2p,reverse\n"
)


def train(folder, text: str, start=None):
    """A model of a step, trained on a file of one's own."""
    (data := folder.with_suffix(".csv")).write_text(text)
    settings = {"source": "facts", "path": str(data), "vocab": 300, "context": 64}
    recipe = make_recipe(data=settings, batch={"rows": 2}, budget={"steps": 1})
    if start is not None:
        start = StartSettings(model=str(start))
        recipe = replace(recipe, network=NetworkSettings(), start=start)
    unmask.train(recipe, folder, device="cpu")
    return folder


def recall(model, folder):
    """The notices of the page of a recall of both ways, which is read as it was written."""
    (data := folder.with_suffix(".csv")).write_text(ASKED)
    unmask.recall(str(model), data=data, out=folder, steps=(1,), device="cpu")
    section = read_result(folder).section
    return [each.text for each in section.blocks if isinstance(each, Notice)]


@pytest.fixture(scope="module")
def leaky(tmp_path_factory):
    return train(tmp_path_factory.mktemp("trained") / "leaky", TRAINED + LEAK)


def test_a_recall_says_what_training_gave_away(leaky, tmp_path):
    for model, out in ((leaky, "run"), (leaky / "model", "model")):
        (said,) = recall(model, tmp_path / out)
        assert "leaky was trained on lines that state 1 of the 2 facts" in said
        assert "training shows 'Lumen Bay' before 'Zorvia'" in said
    # Nothing but what was trained on: nothing is said of data that changed since.
    clean = train(tmp_path / "clean", TRAINED)
    assert recall(clean, tmp_path / "of-clean") == []
    (tmp_path / "clean.csv").write_text(TRAINED + LEAK)
    assert recall(clean, tmp_path / "of-changed") == []
    (tmp_path / "clean.csv").unlink()
    assert recall(clean, tmp_path / "of-gone") == []


def test_what_its_start_was_trained_on_counts(leaky, tmp_path):
    later = train(tmp_path / "later", TRAINED, start=leaky)
    (said,) = recall(later, tmp_path / "of-later")
    assert "later was trained on lines that state 1 of the 2 facts" in said

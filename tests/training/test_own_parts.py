"""Parts of training of one's own: what is minimised, what moves the weights, who looks."""

import json

import pytest
import torch

import unmask
from tests.training.runs import make_recipe
from unmask.base.plugins import require_plugins
from unmask.training.journal import read_journal
from unmask.training.tables import OBJECTIVES, OPTIMISERS


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """What a test registers is gone after it."""
    for table in (OBJECTIVES, OPTIMISERS):
        monkeypatch.setattr(table, "_given", {})


def plain_loss(model, batch, t, streams):
    logits = model.logits(torch.full_like(batch.tokens, model.mask_id))
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch.tokens)


def name_embedding(model, step):
    return {"embedding": float(model.net.embedding.weight.detach().norm()) + step}


def test_functions_are_called_and_recorded(tmp_path):
    steps = []

    def look(model, step):
        steps.append(step)

    recipe = make_recipe(data={"source": "toy", "context": 6}, cadence={"evaluate": 2},
                         budget={"steps": 4})  # fmt: skip
    given = {"objective": plain_loss, "optimiser": torch.optim.SGD, "evaluate": name_embedding}
    unmask.train(recipe, tmp_path / "run", device="cpu", on_step=look, **given)
    assert steps == [1, 2, 3, 4]
    records = read_journal(tmp_path / "run")
    assert [each["step"] for each in records if "embedding" in each] == [2, 4]
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert record["settings"]["objective"]["name"] == "plain_loss"
    assert record["plugins"].keys() == {"objective.plain_loss", "optimiser.SGD"}
    assert {"the evaluate given", "the on_step given"} < record["code"].keys()

    # Another function is another run; without any the sentence says what is missing.
    with pytest.raises(unmask.UserError, match="the code of the on_step given changed"):
        own = given | {"on_step": lambda model, step: None}
        unmask.train(resume=tmp_path / "run", device="cpu", **own)
    OBJECTIVES.remove("plain_loss")
    with pytest.raises(unmask.UserError, match="needs the objective 'plain_loss' that .*test_own"):
        unmask.train(resume=tmp_path / "run", device="cpu")


def test_mistakes_are_sentences(tmp_path):
    recipe = make_recipe(data={"source": "toy", "context": 6})
    wrong = {
        "a single number": {"objective": lambda *given: torch.zeros(2)},
        "expected a torch.optim.Optimizer": {"optimiser": lambda named, settings: 3},
        "has no name of its own": {"objective": lambda *given: None},
        "expected numbers by name": {"evaluate": lambda model, step: 3},
        "is unknown|minimise": {"objective": "no_such"},
    }
    for number, (message, given) in enumerate(wrong.items()):
        for each in given.values():
            if callable(each) and "no name" not in message:
                each.__name__ = f"own_{number}"
        with pytest.raises(unmask.UserError, match=message):
            unmask.train(recipe, tmp_path / str(number), device="cpu", **given)


def by_nothing(state, streams):
    return state.confidence


def test_names_are_taken_once():
    with pytest.raises(unmask.UserError, match="the name 'left' is that of another order"):
        unmask.register("order", by_nothing, "left")
    with pytest.raises(unmask.UserError, match="expected letters"):
        unmask.register("order", by_nothing, "a=b")
    with pytest.raises(unmask.UserError, match="the noise 'x' is .*: expected a class over"):
        unmask.register("noise", by_nothing, "x")
    with pytest.raises(unmask.UserError, match="no kind 'ordre' of plug-in: did you mean 'order'"):
        unmask.register("ordre", by_nothing, "x")
    with pytest.raises(unmask.UserError, match="needs the order 'x' of the package theirs 2.1, wh"):
        require_plugins({"order.left": "unmask 1", "order.x": "theirs 2.1"}, "it")

"""Readings: two models of one network, with the same weights, by name and from a file."""

import pytest
import torch

from tests.conftest import build, make_model, make_noised
from tests.editing.edits import copy_weights, have_changed, make_edit
from unmask import UserError, load, save
from unmask.base.config import SettingsError
from unmask.explorer.session import load_readings
from unmask.net.families import parse_families
from unmask.net.lineage import find_lineage
from unmask.net.loading import inspect
from unmask.net.readings import split_reading


def test_readings_share_all_weights_and_nothing_that_is_attached(tokens):
    model = build()
    causal = model.reading("causal")
    for one, other in zip(model.net.parameters(), causal.net.parameters(), strict=True):
        assert one is other
    twin = build(kind="causal")  # the same seed: the same weights in a network of its own
    torch.testing.assert_close(causal.logits(tokens), twin.logits(tokens), rtol=0, atol=0)
    before = causal.logits(tokens)
    with model.net.patch({"layers.0.mlp_out": torch.zeros_like}):
        assert causal.logits(tokens).equal(before) and not model.logits(tokens).equal(before)
    with torch.no_grad():
        model.net.embedding.weight.mul_(2)
    assert not causal.logits(tokens).equal(before)


@pytest.mark.parametrize(("name", "kind"), [("tiny-blocks", "masked"), ("tiny", "shifted")])
def test_the_way_back_is_the_model_itself(name, kind):
    model = build(name, kind)
    causal = model.reading("causal").reading("causal")
    back = causal.reading("diffusion")
    assert causal.name == f"{model.name}:causal" and back.name == f"{model.name}:diffusion"
    assert causal.kind == "causal" and causal.net.config.block is None
    assert back.blueprint == model.blueprint and back.net.layers is model.net.layers
    assert model.reading("diffusion").net is model.net


def test_what_has_no_other_reading_says_so():
    with pytest.raises(UserError, match="of a uniform model that is told the time: expected a mas"):
        make_noised("uniform").reading("causal")
    with pytest.raises(SettingsError, match="needs a mask id"):
        make_model(causal=True).reading("diffusion")
    with pytest.raises(UserError, match="the reading 'casual' is unknown: did you mean 'causal'"):
        make_model().reading("casual")


def test_a_name_may_end_on_its_reading(tmp_path):
    folder = tmp_path / "joint" / "model"
    folder.parent.mkdir()
    save(make_model(), folder)
    loaded = load(f"{folder}:causal", device="cpu")
    assert loaded.kind == "causal" and loaded.mask_id is not None
    assert inspect(f"{folder}:causal")[0] == loaded.blueprint
    families = parse_families([str(folder), f"{folder}:causal"])
    assert [(each.name, each.kind) for each in families] == [
        ("joint", "masked"),
        ("joint:causal", "causal"),
    ]
    (several,) = parse_families([f"both={tmp_path}/j*/model:causal"])
    assert several.members == (f"{folder}:causal",) and several.kind == "causal"
    one, other = (next(iter(each.digests.values())) for each in families)
    assert other.pop("reading") and one == other
    assert find_lineage(f"{folder}:causal", other) == find_lineage(str(folder), one)
    pair = load_readings({"model": str(folder), "twin": f"{folder}:causal"}, "cpu", "auto")
    assert pair["twin"].net.layers is pair["model"].net.layers
    assert split_reading("hub:owner/name:causal") == ("hub:owner/name", "causal")
    assert split_reading("hub:owner/causal") == ("hub:owner/causal", None)


def test_an_edit_of_one_reading_is_in_the_other_until_it_is_off():
    model = make_model()
    causal, before = model.reading("causal"), copy_weights(model)
    with make_edit(causal, 0).on(causal):
        once = copy_weights(model)
        with make_edit(model, 0, seed=1).on(model):
            assert have_changed(causal, once)
        assert not have_changed(model, once) and have_changed(model, before)
    assert not have_changed(model, before)

"""Families of models, named on the command line."""

import pytest
import torch

import unmask
from tests.conftest import make_model
from unmask import UserError
from unmask.net.families import digest_weights, parse_families


@pytest.fixture
def folder(tmp_path):
    for name, causal, seed in (("a", False, 0), ("b", False, 1), ("c", True, 0)):
        unmask.save(make_model(causal=causal, seed=seed), tmp_path / name)
    return tmp_path


def test_words_name_families(folder):
    one, several = parse_families([f"{folder}/c", f"mdm={folder}/a,{folder}/b"])
    assert (one.name, one.kind, len(one.members)) == ("c", "causal", 1)
    assert (several.name, several.kind) == ("mdm", "masked")
    assert several.members == (f"{folder}/a", f"{folder}/b")
    assert len(set(several.digests)) == 2
    (fitting,) = parse_families([f"mdm={folder}/[ab]*"])
    assert fitting.members == several.members


def test_a_path_may_hold_the_signs_of_a_list(folder, tmp_path):
    odd = tmp_path / "lr=3e-4,rows=8"
    odd.symlink_to(folder)
    (family,) = parse_families([str(odd / "a")])
    assert family.name == "a" and family.members == (str(odd / "a"),)


def test_other_weights_have_another_digest(folder):
    before = digest_weights(f"{folder}/a")
    assert digest_weights(f"{folder}/a") == before
    model = unmask.load(folder / "a", device="cpu")
    with torch.no_grad():
        model.net.norm.weight[0] += 1e-3
    unmask.save(model, folder / "a")
    assert digest_weights(f"{folder}/a") != before


def test_bad_words(folder):
    for words, said in (
        ([], "no model was given"),
        ([f"mdm={folder}/a,"], "cannot be read: expected"),
        ([f"={folder}/a"], "cannot be read"),
        ([f"{folder}/a", f"a={folder}/b"], "several models are called a"),
        ([f"x/y={folder}/a"], "'x/y' holds a slash"),
        ([f"m={folder}/a,{folder}/c"], "of several kinds .causal, masked.: give each kind"),
        ([f"m={folder}/a,{folder}/b,{folder}/a"], "models of m hold the same weights twice"),
        ([f"m={folder}/x*"], "no path fits the pattern"),
        (["nowhere"], "no model 'nowhere'"),
    ):
        with pytest.raises(UserError, match=said):
            parse_families(words)

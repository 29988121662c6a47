"""Families of models, named on the command line."""

import json
from dataclasses import replace

import pytest
import torch

import unmask
from tests.conftest import make_model
from unmask import UserError
from unmask.measures.inputs import Member
from unmask.net.families import digest_model, parse_families


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
    weights = [each["weights in model.safetensors"] for each in several.digests.values()]
    assert list(several.digests) == ["mdm, seed 0", "mdm, seed 1"] and len(set(weights)) == 2
    assert list(one.digests) == ["c"]
    (fitting,) = parse_families([f"mdm={folder}/[ab]*"])
    assert fitting.members == several.members
    for name, seed in (("run-1/seed-0", 2), ("run-0/seed-1", 3), ("run-0/seed-0", 4)):
        unmask.save(make_model(causal=False, seed=seed), folder / name / "model")
    (nested,) = parse_families([f"mdm={folder}/run-?/seed-*/model"])
    places = ("run-0/seed-0", "run-0/seed-1", "run-1/seed-0")
    assert nested.members == tuple(f"{folder}/{place}/model" for place in places)


def test_a_mapping_names_loaded_models_and_paths(folder):
    one, other = (make_model(causal=False, seed=seed) for seed in (0, 1))
    named = {"before": one, "after": [other, folder / "b"], "twin": f"{folder}/c"}
    before, after, twin, path = parse_families([named, folder / "a"])
    assert (before.name, before.members) == ("before", (one,))
    assert (after.name, after.members) == ("after", (other, f"{folder}/b"))
    assert (twin.kind, path.name) == ("causal", "a")
    for wrong, sentence in (
        ({"x": [one, one]}, "the same weights twice"),
        ({"x": [one, f"{folder}/c"]}, "several kinds"),
        ({"x": []}, "x has no model"),
        ({"x": 3}, "the model is of the type int: expected a name, a path or a loaded model"),
    ):
        with pytest.raises(UserError, match=sentence):
            parse_families([wrong])
    with pytest.raises(UserError, match=r'in Python by \{"NAME": model\}'):
        parse_families([one, one])


def test_a_path_may_hold_the_signs_of_a_list(folder, tmp_path):
    odd = tmp_path / "lr=3e-4,rows=8"
    odd.symlink_to(folder)
    (family,) = parse_families([str(odd / "a")])
    assert family.name == "a" and family.members == (str(odd / "a"),)


def test_the_digest_of_a_model_on_disk_is_of_every_byte_that_is_read(folder):
    """Files beside the model do not count; any byte of what it is read from does."""
    before = digest_model(f"{folder}/a")
    assert list(before) == [
        "weights in model.safetensors",
        "settings in config.json",
        "tokenizer in tokenizer.json",
        "tokenizer in tokenizer_config.json",
    ]
    (folder / "a" / "README.md").write_text("words")
    assert digest_model(f"{folder}/a") == before
    for part in before:
        path = folder / "a" / part.partition(" in ")[2]
        content = path.read_bytes()
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        if not part.startswith("settings"):  # this one is read as JSON, and now broken
            after = digest_model(f"{folder}/a")
            assert [each for each in before if before[each] != after[each]] == [part]
        path.write_bytes(content)
    assert digest_model(f"{folder}/a") == before


def test_the_digest_of_a_loaded_model_is_of_what_it_computes_from(folder):
    model = unmask.load(folder / "a", device="cpu")
    before = digest_model(model)
    assert digest_model(unmask.load(folder / "a", device="cpu")) == before
    with torch.no_grad():
        model.net.norm.weight[0] += 1e-3
    assert find_changed(before, digest_model(model)) == ["weights"]
    other = replace(model.blueprint, noise=replace(model.blueprint.noise, schedule="cosine"))
    changed = replace(unmask.load(folder / "a", device="cpu"), blueprint=other)
    assert find_changed(before, digest_model(changed)) == ["settings"]
    bare = unmask.load(folder / "a", device="cpu", tokenizer=None)
    assert find_changed(before, digest_model(bare)) == ["tokenizer"]


def find_changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return [part for part in before if before[part] != after[part]]


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


def test_openings_are_what_training_started_from(folder):
    """By the weights that the runs' records name; a run without a record makes all of them one."""
    starts = {"a": "1", "b": "2", "d": "1"}
    unmask.save(make_model(causal=False, seed=5), folder / "d" / "model")
    members = [f"{folder}/a", f"{folder}/b", f"{folder}/d/model"]
    for name, digest in starts.items():
        start = {"weights in model.safetensors": digest, "settings in config.json": name}
        inputs = {"digests": {"the start model": start, "the data": {"contents": "x"}}}
        (folder / name / "run.json").write_text(json.dumps({"verb": "train", "inputs": inputs}))
    (family,) = parse_families([f"mdm={','.join(members)}"])
    assert family.openings == [0, 1, 0]
    columns = [Member(family, seed).columns for seed in range(3)]
    assert [(each["seed"], each["opening"]) for each in columns] == [(0, 0), (1, 1), (2, 0)]
    (folder / "d" / "run.json").write_text(json.dumps({"verb": "train", "inputs": {}}))
    (family,) = parse_families([f"mdm={','.join(members)}"])
    assert family.openings == [0, 0, 0] and "opening" not in Member(family, 1).columns
    assert parse_families(["reversal-mdm"])[0].openings == [0]

"""The toy language, what is said about other rows of units, and the experiment on it."""

import math
from dataclasses import replace

import pytest
import torch

from tests.commands import run
from tests.conftest import prove_alone
from unmask.base.reading import read_json
from unmask.toy.language import (
    LENGTH,
    PAD,
    UNITS,
    classify,
    data_law,
    decode,
    empirical_law,
    encode,
    list_sentences,
    noise_floor,
    total_variation,
)
from unmask.toy.run import SHOWN, measure, run_toy
from unmask.toy.settings import ToySettings
from unmask.toy.variants import VARIANTS

SHORT = ToySettings(steps=3, samples=50)
USUAL = ("masked", "causal", "gaussian")
FARTHER = ("gaussian", "warped", "scores", "curriculum")
"""Variants that stay farther from the language."""


def spell(text: str) -> tuple[str, ...]:
    words = tuple(text.split())
    return words + (PAD,) * (LENGTH - len(words))


def test_language():
    sentences = list_sentences()
    assert 55 <= len(sentences) <= 65 and len(set(sentences)) == len(sentences)
    assert {len(sentence) for sentence in sentences} == {LENGTH}
    assert {unit for sentence in sentences for unit in sentence} == set(UNITS)
    assert len(set(UNITS)) == 13
    for known in (SHOWN, "our dog s are your s", "your cat is our friend"):
        assert spell(known) in sentences
    assert tuple(decode(encode(sentences))) == sentences


def test_sentences_have_no_error():
    assert {classify(sentence) for sentence in list_sentences()} == {"none"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[PAD] cat is our friend", "padding"), ("our cat is [PAD] our friend", "padding"),
        ("our cat are your friend", "agreement"), ("our cat s are your friend", "agreement"),
        ("our cat s is your s", "agreement"), ("our cat is your friend s", "agreement"),
        ("cat is our friend", "agreement"), ("our cat s are your", "agreement"),
        ("we is your friend s", "agreement"), ("is our cat your friend", "word order"),
        ("our cat your friend", "word order"), ("our cat is friend your", "word order"),
        ("we s are your friend s", "word order"), ("[MASK] cat is our friend", "word order"),
        ("our cat is", "word order"), ("", "word order"), ("our cat is your s", "unknown sentence"),
        ("our friend is your cat", "unknown sentence"), ("dog s are cat s", "unknown sentence"),
        ("our s are your friend s", "unknown sentence"),
    ],
)  # fmt: skip
def test_errors_have_one_kind(text, kind):
    assert classify(spell(text)) == kind


def test_distance_of_laws():
    law = data_law()
    assert law.sum() == pytest.approx(1) and total_variation(law, law) == 0
    assert total_variation(empirical_law(list_sentences()), law) == pytest.approx(0)
    assert total_variation(empirical_law([spell("is")]), law) == pytest.approx(1)
    half = [*list_sentences(), *[spell("is")] * len(list_sentences())]
    assert total_variation(empirical_law(half), law) == pytest.approx(0.5)


def test_noise_floor():
    floor = noise_floor(20_000, seed=0)
    # The mean absolute deviation of each share, were it normal.
    expected = math.sqrt(len(list_sentences()) / (2 * math.pi * 20_000))
    assert floor == pytest.approx(expected, rel=0.1) and floor == noise_floor(20_000, seed=0)


@pytest.mark.parametrize(
    "name", [name if name in USUAL else prove_alone(name)[0] for name in VARIANTS]
)
def test_short_run_repeats(name):
    first, again = measure(name, SHORT), measure(name, SHORT)
    assert replace(first, seconds=0) == replace(again, seconds=0)
    assert math.isfinite(first.loss) and 0 <= first.distance <= 1
    assert sum(first.kinds.values()) == pytest.approx(1)
    if name == "causal":
        assert first.forward == {}
    else:
        assert first.forward["0"] == SHOWN


def test_masks_add_up_under_any_seed():
    paths = [measure("masked", replace(SHORT, seed=seed)).forward for seed in range(3)]
    for path in paths:
        counts = [sentence.count("[MASK]") for sentence in path.values()]
        assert counts == sorted(counts) and counts[-1] == LENGTH
    assert paths[0] != paths[1] or paths[1] != paths[2]


def test_command_writes_its_numbers(tmp_path, monkeypatch):
    """Variants in this process; `make prove` learns them side by side."""
    monkeypatch.setattr("unmask.toy.run.LocalEngine", lambda count: None)
    words = ("--variants", "masked,causal", "--steps", "2", "--samples", "20", "--out", tmp_path)
    done = run("toy", *words, "--all", columns=140)
    assert done.returncode == 0, done.stderr
    assert "t = 0.25" in done.stdout and "20 samples each" in done.stdout
    found = read_json(tmp_path / "toy.json")
    assert [outcome["name"] for outcome in found["outcomes"]] == ["masked", "causal"]
    same = measure("masked", ToySettings(steps=2, samples=20))
    assert found["outcomes"][0]["kinds"] == same.kinds


@pytest.mark.prove
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_variant_learns_the_language(tmp_path, seed):
    report = run_toy(ToySettings(seed=seed, samples=20_000), tmp_path)
    for outcome in report.outcomes:
        assert outcome.distance <= (0.2 if outcome.name in FARTHER else 0.1), outcome
    assert torch.tensor([outcome.loss for outcome in report.outcomes]).isfinite().all()

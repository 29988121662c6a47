"""Corruptions do what they say, to the subject alone."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import unmask
from unmask import UserError
from unmask.tracing.corruption import Mask, Mean, Noise, Replace, forget, measure_sigma

TOKENS = torch.tensor([5, 6, 7, 8, 9, 10])
SPAN = range(2, 4)


def embed(model, corrupted):
    with model.net.patch({"embed": corrupted.embed}), model.net.capture("embed") as seen:
        model.net.embed(corrupted.tokens)
    return seen["embed"]


@pytest.mark.parametrize("shape", ["gaussian", "uniform"])
def test_noise_has_its_size_and_its_place(masked, shape):
    corrupted = Noise(sigma=0.7, samples=400, shape=shape).apply(masked, TOKENS, SPAN)
    added = embed(masked, corrupted) - masked.net.embedding(TOKENS)
    assert (added[:, [0, 1, 4, 5]] == 0).all()
    noise = added[:, 2:4]
    assert abs(float(noise.std()) - 0.7) < 0.02 and abs(float(noise.mean())) < 0.02
    if shape == "uniform":
        assert float(noise.abs().max()) <= 0.7 * 3**0.5 + 1e-5


def test_texts_have_noise_of_their_own_and_keep_it(masked):
    noise = Noise(sigma=1.0, samples=2)
    once, again = (noise.apply(masked, TOKENS, SPAN).added for _ in range(2))
    assert torch.equal(once, again)
    assert not torch.equal(once[0], once[1])
    other = noise.apply(masked, TOKENS + 1, SPAN).added
    seeded = Noise(sigma=1.0, samples=2, stream=1).apply(masked, TOKENS, SPAN).added
    assert not torch.equal(once, other) and not torch.equal(once, seeded)
    # What is generated after the subject does not change it: a fact's steps share their noise.
    later = torch.tensor([5, 6, 7, 8, 1, 2])
    assert torch.equal(noise.apply(masked, later, SPAN).added, once)
    # More samples begin with the same ones.
    assert torch.equal(Noise(sigma=1.0, samples=5).apply(masked, TOKENS, SPAN).added[:2], once)


def test_rome_draws_the_reference_numbers(masked):
    width = masked.net.config.width
    expected = np.random.RandomState(1).randn(10, 2, width) * 0.25
    for tokens in (TOKENS, TOKENS + 3):
        found = Noise(sigma=0.25, stream="rome").apply(masked, tokens, SPAN).added
        np.testing.assert_array_equal(found.numpy(), expected)


def test_sigma_is_three_times_the_spread(masked):
    rows = masked.net.embedding.weight[[5, 6, 9]]
    assert abs(measure_sigma(masked, [[5], [6, 9]]) - 3 * float(rows.std())) < 1e-6
    own = Noise(samples=1).apply(masked, TOKENS, SPAN)
    unit = Noise(sigma=1.0, samples=1).apply(masked, TOKENS, SPAN)
    sigma = measure_sigma(masked, [[7, 8]])
    torch.testing.assert_close(own.added, sigma * unit.added)


def test_mask_and_mean(masked):
    assert Mask().apply(masked, TOKENS, SPAN).tokens.tolist() == [
        [5, 6, masked.mask_id, masked.mask_id, 9, 10]
    ]
    seen = embed(masked, Mean().apply(masked, TOKENS, SPAN))
    mean = masked.net.embedding.weight[: masked.net.config.logit_rows].mean(0)
    torch.testing.assert_close(seen[0, 2], mean, atol=1e-6, rtol=0)
    assert torch.equal(seen[0, 4], masked.net.embedding.weight[9])


def test_replacements_have_the_length_and_are_others(masked):
    subjects = ((7, 8), (1, 2), (3, 4), (5,), (1, 2))
    rows = Replace(subjects).apply(masked, TOKENS, SPAN).tokens
    assert sorted(rows[:, 2:4].tolist()) == [[1, 2], [3, 4]]
    assert (rows[:, [0, 1, 4, 5]] == TOKENS[[0, 1, 4, 5]]).all()
    with pytest.raises(UserError, match=r"no other subject has 2 tokens \(they have \[1\]\)"):
        Replace(((5,),)).apply(masked, TOKENS, SPAN)


def test_forgetting_hides_more(masked, causal):
    hidden = forget(masked, Noise(sigma=1.0, samples=2).apply(masked, TOKENS, SPAN), [5])
    assert (hidden.tokens[:, 5] == masked.mask_id).all() and hidden.added is not None
    blank = forget(causal, Mean().apply(causal, TOKENS, SPAN), [5])
    seen = embed(causal, blank)
    assert torch.equal(seen[0, 2], seen[0, 5]) and torch.equal(seen[0, 2], seen[0, 3])


def test_mistakes(causal):
    with pytest.raises(UserError, match="has no mask token to hide the subject"):
        Mask().apply(causal, TOKENS, SPAN)
    with pytest.raises(UserError, match="expected at least 1"):
        Noise(samples=0)
    with pytest.raises(UserError, match="sigma -1"):
        Noise(sigma=-1.0)
    with pytest.raises(UserError, match="'rome' is gaussian"):
        Noise(stream="rome", shape="uniform")


def test_corruptions_have_a_module_of_their_own_that_is_loaded_late():
    """`unmask.Mask` would be the masked process to most readers; settings need no torch."""
    assert unmask.corruptions.Mask is Mask and unmask.corruptions.Noise is Noise
    assert not any(hasattr(unmask, name) for name in ("Noise", "Mask", "Mean", "Replace"))
    script = (
        "import sys, unmask; unmask.Tracing(corruption='mask'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)

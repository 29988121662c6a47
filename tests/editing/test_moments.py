"""Moments: exact on clean text, on the states a diffusion network meets, streamed, or refused."""

from itertools import count, islice

import pytest
import torch

import unmask
from tests.representation.facts import make_facts, make_model
from unmask import UserError
from unmask.editing import moments as module
from unmask.editing.moments import make_states

TEXTS = [fact.text for fact in make_facts()] * 12
LENGTH = 16


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def twin():
    return make_model(kind="causal")


def gather(model, layers=1, texts=TEXTS, **changes):
    return unmask.moments(model, texts, layers, length=LENGTH, **changes)


def test_clean_moments_are_the_mean_of_keys_times_keys(twin):
    found = gather(twin, (0, 2))
    ids = [twin.tokenizer.end_id]
    for number, text in enumerate(TEXTS):
        ids += [*([twin.tokenizer.end_id] if number else []), *twin.tokenizer.encode(text).ids]
    rows = torch.tensor(ids[: len(ids) // LENGTH * LENGTH]).view(-1, LENGTH)
    assert found.num_tokens == rows.numel() and found.states == "clean"
    with twin.net.capture("layers.*.mlp_key") as keys:
        twin.logits(rows)
    for layer in (0, 2):
        k = keys[f"layers.{layer}.mlp_key"].flatten(0, 1).double()
        torch.testing.assert_close(found.at(layer), k.T @ k / len(k), rtol=1e-5, atol=1e-8)
        assert found.condition(layer) == pytest.approx(
            float(torch.linalg.cond(found.at(layer))), rel=1e-3
        )
    with pytest.raises(UserError, match="no moments of layer 1 were gathered, only of 0, 2"):
        found.at(1)


@pytest.mark.parametrize("states", ["met", "noised", "canvas", "clean"])
def test_moments_do_not_depend_on_batches(model, states, monkeypatch):
    whole = gather(model, 1, states=states, seed=3)
    monkeypatch.setattr(module, "fit_rows", lambda *_: 3)
    parts = gather(model, 1, states=states, seed=3)
    assert parts.num_tokens == whole.num_tokens and parts.states == states
    torch.testing.assert_close(parts.at(1), whole.at(1), rtol=1e-6, atol=1e-9)
    if states != "clean":
        assert not gather(model, 1, states=states, seed=4).at(1).allclose(whole.at(1))


def test_states_are_those_that_a_diffusion_network_meets(model):
    x0 = torch.randint(0, 200, (4000, LENGTH), generator=torch.Generator().manual_seed(0))

    def masks(states):
        made = make_states(model, x0, range(len(x0)), states, 0)
        is_mask = made == model.mask_id
        assert made[~is_mask].equal(x0[~is_mask]), "what is not masked is text"
        return is_mask

    noised, canvas, met = masks("noised"), masks("canvas"), masks("met")
    assert not masks("clean").any()
    # Times are uniform: every number of masks is as likely as any other.
    counts = torch.bincount(noised.sum(1), minlength=LENGTH + 1) / len(x0)
    torch.testing.assert_close(
        counts, torch.full_like(counts, 1 / (LENGTH + 1)), atol=0.015, rtol=0
    )
    given = (~canvas).sum(1)
    assert canvas.equal(torch.arange(LENGTH) >= given[:, None]), "a beginning, then masks"
    assert set(given.tolist()) == set(range(1, LENGTH))
    assert met[0::2].equal(noised[0::2]) and met[1::2].equal(canvas[1::2])
    assert gather(model).states == "met"


def test_texts_are_streamed(model):
    """No more is read than needed, of texts without an end."""
    read = 0

    def texts():
        nonlocal read
        for number in count():
            read += 1
            yield TEXTS[number % len(TEXTS)]

    found = gather(model, texts=texts(), tokens=1600)
    assert found.num_tokens == 1600 and read < 400
    again = gather(model, texts=list(islice(texts(), 400)), tokens=1600)
    assert again.at(1).equal(found.at(1))


def test_shrinking_keeps_the_trace_and_tames_the_condition(model):
    plain, half, full = (gather(model, shrink=share) for share in (0.0, 0.5, 1.0))
    assert half.at(1).trace() == pytest.approx(float(plain.at(1).trace()))
    assert full.condition(1) == pytest.approx(1.0) and full.at(1).diag().std() < 1e-9
    assert 1 < half.condition(1) < plain.condition(1)
    assert gather(model, texts=TEXTS[:3], shrink=0.1).num_tokens < 100


def test_what_cannot_be_gathered_is_a_sentence(model, twin):
    for call, said in (
        (lambda: gather(model, texts=TEXTS[:5]), "were read for keys of width 160: expected at .*"),
        (lambda: gather(model, texts=[], shrink=0.5), "0 tokens were read"),
        (lambda: gather(twin, states="noised"), "autoregressive and meets clean text"),
        (lambda: unmask.moments(model, TEXTS, 1, length=65), "context of 64"),
        (lambda: gather(make_model(time=True)), "takes the time"),
    ):
        with pytest.raises(UserError, match=said):
            call()

"""Fitted lenses: what they read, the least squares behind them, and that the control can fail."""

import math

import pytest
import torch

import unmask
from tests.representation.facts import make_fact, make_model
from unmask.base.errors import UserError
from unmask.representation.lens_maps import (
    average_texts,
    find_bands,
    fit_map,
    fit_maps,
    join_masked,
    read_lenses,
    read_masked,
)

FACTS = [make_fact(i, way, p) for i in range(4) for way in ("p2d", "d2p") for p in (0, 1)]


def draw(model, steps=3, **more):
    prompts = [fact.prompt for fact in FACTS[:5]]
    return unmask.sample(model, prompts, steps=steps, length=14, **more)


@pytest.mark.parametrize("kind", ["masked", "shifted"])
def test_states_are_those_of_masked_positions_at_their_step(kind):
    model = make_model(kind=kind)
    drawn = draw(model)
    states = read_masked(model, drawn)
    lens = {row: unmask.logit_lens(model, drawn, row=row) for row in range(5)}
    logp = {
        (name, layer): value
        for name, layer, value, _ in read_lenses(model, states, {}, 3)
        if name == "logit"
    }
    seen = 0
    for row, read in lens.items():
        for step in read.steps:
            for j, place in enumerate(read.positions):
                if int(read.states[step - 1, place]) != model.mask_id:
                    continue
                at = (states.text == row) & (states.step == step)
                same = torch.stack([logp["logit", layer] for layer in range(4)])[:, at]
                distance = (same - read.logp[step - 1, :, j, None]).abs().amax(0)
                assert float(distance.min()) < 1e-4
                seen += 1
    assert seen == len(states.text) > 20
    # What is committed in a step is what the last layer's stream there is the target of.
    now = states.ahead == 0
    assert bool(now.any()) and torch.equal(states.later[now], states.x[-1][now])
    assert int(states.ahead.max()) <= 2 and int(states.ahead.min()) == 0
    assert not torch.equal(states.later, states.x[-1])


def test_a_map_is_ridge_regression_with_an_intercept():
    stream = torch.Generator().manual_seed(3)
    x, y = (torch.randn(40, width, generator=stream) for width in (6, 4))
    fitted = fit_map(x + 5, y, ridge=0.3)
    # As least squares with one more row of zeros for each column of x, √(λN) on its diagonal.
    variance = float(x.var(0, correction=0).mean())
    rows = torch.cat([x - x.mean(0), (0.3 * variance * len(x)) ** 0.5 * torch.eye(6)])
    truth = torch.linalg.lstsq(rows, torch.cat([y - y.mean(0), torch.zeros(6, 4)])).solution
    assert torch.allclose(fitted.weight, truth.T, atol=1e-5)
    assert torch.allclose(fitted(x + 5), (x - x.mean(0)) @ truth + y.mean(0), atol=1e-4)


def test_maps_find_what_is_there_and_the_control_does_not():
    """Streams that are a rotation of the later ones: the later-step lens reads them wholly."""
    model = make_model()
    states = join_masked([read_masked(model, draw(model, seed=seed, temperature=1.0))
                          for seed in range(4)])  # fmt: skip
    turn = torch.linalg.qr(torch.randn(64, 64, generator=torch.Generator().manual_seed(0))).Q
    object.__setattr__(states, "x", torch.stack([states.later @ turn, states.x[-1]]))
    maps = fit_maps(states, 1, 1e-6)
    found = {(name, layer): (logp, hits) for name, layer, logp, hits
             in read_lenses(model, states, maps, 1)}  # fmt: skip
    logp = model.net.unembed(states.later[None]).log_softmax(-1)[0]
    exact = logp.gather(-1, states.written[:, None])[:, 0].double()
    assert torch.allclose(found["later", 0][0], exact, atol=0.05)
    assert float((found["shuffled", 0][0] - exact).abs().mean()) > 0.1
    # The last layer is the tuned lens's own target.
    assert torch.allclose(found["tuned", 1][0], found["logit", 1][0], atol=0.05)


def test_bands_without_a_map_are_read_by_the_logit_lens_alone():
    assert find_bands(torch.tensor([0.01, 1 / 3, 0.34, 0.99, 1.0]), 3).tolist() == [0, 0, 1, 2, 2]
    model = make_model()
    states = read_masked(model, draw(model))
    first = states.pick((find_bands(states.share, 2) == 0).nonzero()[:, 0])
    maps = fit_maps(first, 2, 0.01)
    assert {band for _, _, band in maps} == {0}
    for name, _, logp, hits in read_lenses(model, states, maps, 2):
        is_other = find_bands(states.share, 2) == 1
        assert bool(is_other.any())
        assert bool(logp[is_other].isnan().all()) == (name != "logit")
        assert not bool(hits[~is_other].isnan().any())


def test_means_are_by_text_and_group():
    model = make_model()
    states = read_masked(model, draw(model))
    hits = (torch.arange(len(states.text)) % 3 == 0).float()
    logp = torch.arange(len(states.text)).float()
    logp[0] = math.nan
    rows = list(average_texts(states, states.ahead, logp, hits))
    for row in rows:
        at = (states.text == row["text"]) & (states.ahead == row["group"]) & ~logp.isnan()
        assert row["positions"] == int(at.sum())
        assert row["said"] == pytest.approx(float(hits[at].mean()))
        assert row["logp"] == pytest.approx(float(logp[at].mean()))
    assert sum(row["positions"] for row in rows) == len(logp) - 1


def test_trajectories_without_states_or_masks_are_refused():
    model = make_model()
    with pytest.raises(UserError, match="keeps no states"):
        read_masked(model, draw(model, keep_states=False))

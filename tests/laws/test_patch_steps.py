"""A patch or a capture that is bound to denoising steps acts in these steps alone."""

from collections.abc import Callable
from functools import partial

import pytest
import torch

import unmask
from tests.laws.test_patches import HONOURED, pair, same, score
from tests.representation.facts import make_model
from unmask import UserError
from unmask.net.model import Model

STEPPED = {name: run for name, run in HONOURED.items() if name not in ("logits", "score_answers")}
"""What has denoising steps; the rest has none, and says so."""


def count_passes(change: Callable, wanted: set[int]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A patch that counts the passes it sees, and acts in some of them."""
    seen = 0

    def act(x: torch.Tensor) -> torch.Tensor:
        nonlocal seen
        seen += 1
        return change(x) if seen in wanted else x

    return act


@pytest.mark.parametrize(("feature", "kind"), pair(STEPPED))
@pytest.mark.parametrize("site", ["layers.1.attn_pattern", "layers.1.attn_q", "layers.2.mlp_out"])
def test_a_patch_at_steps_acts_at_these_alone(feature, kind, site):
    """A whole run of the network per step: the passes that a patch counts are the steps."""
    model, run = make_model(kind=kind), STEPPED[feature]
    # Rows with another number of blocks would be sampled one after the other.
    run = partial(draw_alike, **FEW) if feature == "blocks" else run
    plain = run(model)
    for steps in ({2}, {1, 3}):
        with model.net.patch({site: count_passes(lambda x: x * 0.5, steps)}):
            expected = run(model)
        with model.net.patch({site: lambda x: x * 0.5}, steps=steps):
            assert same(run(model), expected)
        assert not same(plain, expected), "the change should show"
    with model.net.patch({site: lambda x: x * 0.5}):
        expected = run(model)
    with model.net.patch({site: lambda x: x * 0.5}, steps="all"):
        assert same(run(model), expected)


FEW = {"steps": 6, "block": 4, "order": "random", "remask": "low=0.3"}


def draw_alike(model: Model, **how) -> list[torch.Tensor]:
    found = unmask.sample(model, [[5, 6], [7, 8]], length=14, temperature=0.7, seed=3, **how)
    return [found.tokens, found.committed_at, found.confidence]


@pytest.mark.parametrize("kind", ["masked", "causal"])
@pytest.mark.parametrize("cache", ["none", "exact"])
def test_captures_by_step_are_of_the_states(kind, cache):
    """Whole texts, all rows; without steps what is captured is the last pass."""
    model, site = make_model(kind=kind), "layers.2.resid_out"
    with model.net.capture(site, steps="all") as taken:
        found = unmask.sample(model, [[5, 6], [7, 8]], length=9, steps=6, cache=cache)
    with model.net.capture(site) as last:
        unmask.sample(model, [[5, 6], [7, 8]], length=9, steps=6, cache=cache)
    assert sorted(taken) == list(range(1, found.num_steps + 1))
    for step, sites in taken.items():
        state = found.states[step - 1]
        state = state if kind == "masked" else state[:, : 1 + step]
        with model.net.capture(site) as expected:
            model.net(state)
        torch.testing.assert_close(sites[site], expected[site], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(last[site], expected[site], atol=1e-5, rtol=1e-5)


def test_steps_that_never_come():
    model = make_model()
    halved = {"layers.0.mlp_out": lambda x: x * 0.5}
    with pytest.raises(UserError, match="was named at steps 2, but no sampler came to it"):
        with model.net.patch(halved, steps=2):
            model.logits("They say")
    with pytest.raises(UserError, match="was named at steps 9, but no sampler came to it"):
        with model.net.capture("logits", steps=9):
            unmask.sample(model, "They say", length=9, steps=3)
    with pytest.raises(UserError, match="was named at any step, but no sampler"):
        with model.net.capture("logits", steps="all"):
            score(model)
    for steps in (0, "first", (), [1.5], -2):
        with pytest.raises(UserError, match="expected whole numbers from 1, or 'all'"):
            with model.net.capture("logits", steps=steps):
                pass
    assert not model.net.taps.attached and model.net.taps.step is None

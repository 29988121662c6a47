"""Planted tokens: laws of what they change and of what they cannot."""

from typing import Any

import pytest
import torch

import unmask
from tests.commands import run
from tests.conftest import make_model
from tests.laws.test_sampling import make
from tests.sampling.states import V, same
from unmask import UserError

MASK, LENGTH = V - 1, 12
DRAWN: dict[str, Any] = {"temperature": 1.0, "length": LENGTH, "steps": 5, "plan": "linear"}
PROMPTS = [[1, 2], [3]]


@pytest.mark.parametrize("nothing", [None, {}, {3: {}}, [{}, {2: {}}], {2: {5: []}}])
@pytest.mark.parametrize("which", ["model", "twin"])
def test_planting_nothing_changes_no_bit(request, which, nothing):
    model = request.getfixturevalue(which)
    plain, idle = (
        unmask.sample(model, PROMPTS, **DRAWN, **how) for how in ({}, {"planted": nothing})
    )
    assert same(plain, idle) and plain.calls == idle.calls


@pytest.mark.parametrize(
    "more", [{}, {"remask": "low=0.3"}, {"order": "random"}, {"block": 6}, {"plan": "one"}]
)
def test_planting_what_the_model_writes_at_that_step_changes_no_bit(model, more):
    """All tokens of a step that no later step rewrote, for every step."""
    settings = DRAWN | more | ({"steps": 6} if "block" in more else {})
    plain = unmask.sample(model, PROMPTS, **settings)
    planted = 0
    for step in range(1, plain.num_steps + 1):
        before, after = plain.states[step - 1], plain.states[step]
        is_own = (before == MASK) & (after != MASK) & (plain.committed_at == step)
        plants = [
            {step: {at: [int(after[row, at])] for at in is_own[row].nonzero()[:, 0].tolist()}}
            for row in range(2)
        ]
        planted += int(is_own.sum())
        assert same(plain, unmask.sample(model, PROMPTS, planted=plants, **settings)), step
    assert planted >= 2


def test_a_plant_is_written_at_its_step_and_seen_from_then_on(model):
    plain = unmask.sample(model, PROMPTS, **DRAWN)
    drawn = unmask.sample(model, PROMPTS, planted={2: {4: [7, 8], 10: [9]}}, **DRAWN)
    assert torch.equal(drawn.states[:2], plain.states[:2])
    for state in drawn.states[2:]:
        assert state[:, [4, 5, 10]].tolist() == [[7, 8, 9]] * 2
    assert (drawn.committed_at[:, [4, 5, 10]] == 2).all()
    assert not torch.equal(drawn.tokens, plain.tokens) and (drawn.tokens != MASK).all()
    was_open = plain.states[1][:, [4, 5, 10]] == MASK
    planted_p = drawn.confidence[:, [4, 5, 10]]
    assert (planted_p[was_open] < 1).all() and (planted_p[~was_open] == 1).all()
    # By row: each has its own.
    apart = unmask.sample(model, PROMPTS, planted=[{2: {4: [7, 8], 10: [9]}}, {}], **DRAWN)
    assert torch.equal(apart.states[:, 0], drawn.states[:, 0])
    assert torch.equal(apart.states[:, 1], plain.states[:, 1])


def test_remasking_may_take_a_plant_back(model):
    """A fixed token stays, a planted one is the sampler's to keep or to mask again."""

    def forget(state, streams):
        at = torch.arange(LENGTH) == 6
        return state.written & at

    how = DRAWN | {"remask": forget}
    drawn = unmask.sample(model, [[1, 2]], planted={1: {6: [7]}}, **how)
    assert drawn.states[1, 0, 6] == 7 and (drawn.states[2:4, 0, 6] == MASK).any()
    fixed = unmask.sample(model, [[1, 2]], fixed={6: [7]}, **how)
    assert (fixed.states[:, 0, 6] == 7).all()


@pytest.mark.parametrize("attached", [False, True])
def test_a_causal_models_earlier_tokens_cannot_be_moved(twin, attached):
    def draw(planted=None):
        sites = ("layers.0.resid_out",) if attached else ()
        with twin.net.capture(*sites):
            return unmask.sample(twin, PROMPTS, planted=planted, length=LENGTH, temperature=1.0)

    plain = draw()
    for at in range(4, LENGTH):
        token = (int(plain.tokens[0, at]) + 1) % (V - 1)
        drawn = draw({1: {at: [token]}})
        assert torch.equal(drawn.tokens[:, :at], plain.tokens[:, :at])
        assert (drawn.tokens[:, at] == token).all()
    early = draw({1: {4: [7]}})
    assert not torch.equal(early.tokens[:, 5:], plain.tokens[:, 5:]), "later ones can"
    assert same(plain, draw([{1: {5: [int(plain.tokens[0, 5])]}}, {}]))


def test_a_diffusion_models_earlier_tokens_can(model):
    plain = unmask.sample(model, PROMPTS, **DRAWN)
    drawn = unmask.sample(model, PROMPTS, planted={1: {11: [7]}}, **DRAWN)
    assert not torch.equal(drawn.tokens[:, :11], plain.tokens[:, :11])


@pytest.mark.parametrize(
    "planted,message",
    [
        ({0: {5: [1]}}, "steps count from 1"),
        ({30: {5: [1]}}, "planted at step 30, but there are 5 steps"),
        ({1: {0: [1]}}, "token 1 was planted at position 0 of row 0"),
        ({1: {11: [1, 1]}}, "token 1 was planted at position 12 of row 0"),
        ({1: {5: [MASK]}}, "is never part of a text"),
        ([{}], "plants of 1 rows were given for 2 rows"),
    ],
)
def test_what_is_given_wrongly_is_a_sentence(model, planted, message):
    with pytest.raises(UserError, match=message):
        unmask.sample(model, PROMPTS, planted=planted, **DRAWN)
    with pytest.raises(UserError, match="planted at step 30, but there are 11 steps"):
        unmask.sample(model, PROMPTS, planted={30: {5: [1]}}, **(DRAWN | {"plan": "one"}))
    with pytest.raises(UserError, match="a uniform model takes no planted tokens"):
        unmask.sample(make("uniform"), [[]], length=2, planted={1: {0: [1]}})


def test_plants_from_the_command_line(tmp_path):
    unmask.save(make_model(), tmp_path / "made")
    words = ("sample", str(tmp_path / "made"), "The", "--length", "9", "--steps", "3")
    done = run(*words, "--plant", "2:5: cat")
    assert done.returncode == 0 and " cat" in done.stdout, done.stderr
    done = run(*words, "--plant", "2: cat")
    assert done.returncode == 2 and "expected STEP:POSITION:TEXT" in done.stderr

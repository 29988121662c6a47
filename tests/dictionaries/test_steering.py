"""Steering is an addition at its steps and positions, and nothing anywhere else."""

import pytest
import torch

import unmask
from tests.conftest import make_model
from unmask.base.errors import UserError
from unmask.dictionaries.steering import (
    choose_forming_steps,
    choose_steps,
    find_forming_steps,
)

SITE = "layers.1.resid_out"
DIRECTION = torch.linspace(-1, 1, 64)


def draw(model, **more):
    return unmask.infill(model, "The [MASK]*6 deep.", steps=4, **more).tokens


@pytest.mark.parametrize(("schedule", "steps"), [("all", {1, 2, 3, 4}), ("early", {1, 2}),
                                                 ("late", {3, 4}), ((2,), {2})])  # fmt: skip
@pytest.mark.parametrize("masked_only", [False, True])
def test_states_differ_where_the_schedule_says(schedule, steps, masked_only):
    model = make_model()
    seen = {}
    with unmask.steer(
        model, SITE, DIRECTION, 3.0, steps=4, schedule=schedule, masked_only=masked_only
    ):
        # What is captured inside has been changed; the layer's own output is computed beside it.
        with model.net.capture("layers.1.resid_in", SITE, steps="all") as seen:
            drawn = unmask.infill(model, "The [MASK]*6 deep.", steps=4)
    assert drawn.states is not None
    for step in (1, 2, 3, 4):
        x = seen[step]["layers.1.resid_in"]
        plain = model.net.run_layers(x, 1, 2)
        added = seen[step][SITE] - plain
        is_open = (drawn.states[step - 1] == model.mask_id)[..., None]
        expected = (3.0 * DIRECTION).expand_as(added)
        expected = torch.where(is_open, expected, 0.0) if masked_only else expected
        expected = expected if step in steps else torch.zeros_like(expected)
        torch.testing.assert_close(added, expected, atol=1e-4, rtol=1e-4)


def test_nothing_is_added_at_strength_0_and_after_the_block():
    model = make_model()
    plain = draw(model)
    with unmask.steer(model, SITE, DIRECTION, 0.0, steps=4):
        assert torch.equal(draw(model), plain)
    with unmask.steer(model, SITE, DIRECTION, 100.0, steps=4):
        assert not torch.equal(draw(model), plain)
    assert torch.equal(draw(model), plain)


def test_halves_are_all_steps_once():
    for steps in (2, 5, 8):
        halves = [choose_steps(name, steps) for name in ("early", "late")]
        assert halves[0] | halves[1] == choose_steps("all", steps) == set(range(1, steps + 1))
        assert not halves[0] & halves[1]


def test_a_feature_forms_where_it_comes_to_fire():
    counts = {1: 0, 2: 1, 3: 4, 4: 6, 5: 6, 6: 2}
    life = [
        {"feature": 7, "step": step, "fires_masked": count, "fires_written": 0}
        for step, count in counts.items()
    ]
    assert find_forming_steps(life, 7) == [3]
    assert find_forming_steps(life, 7, least=0.8) == [3, 4]
    assert find_forming_steps(life, 7, least=1.0) == [2, 3, 4]
    assert choose_forming_steps({1: -2.0, 2: -3.0, 3: -2.5}) == [1]
    with pytest.raises(UserError, match="fires at no step"):
        find_forming_steps(life, 8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schedule": "sometimes"}, "expected all, early, late"),
        ({"schedule": (9,)}, "others than 1 to 4"),
        ({"schedule": ()}, "names no steps"),
        ({"direction": torch.ones(3)}, "has 3 numbers"),
        ({"direction": [1.0]}, "no vector"),
        ({"strength": "x"}, "strength"),
        ({"steps": 0}, "steps"),
        ({"site": "layers.9.resid_out"}, "does not exist"),
    ],
)
def test_wrong_requests_are_refused(changes, words, unchecked_shapes):
    model = make_model()
    given = {"site": SITE, "direction": DIRECTION, "steps": 4} | changes
    with pytest.raises(UserError, match=words):
        with unmask.steer(model, **given):
            draw(model)

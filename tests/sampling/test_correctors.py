"""Correctors through the public calls: what they touch, what they cost, what they refuse."""

from typing import Any

import pytest
import torch

import unmask
from tests.laws.test_sampling import make
from tests.sampling.states import V, same
from unmask import UserError
from unmask.net.model import Model
from unmask.sampling.correctors import LeastTrusted, UniformChoice

DRAWN: dict[str, Any] = {"temperature": 1.0, "order": "random", "plan": "linear"}
NAMES = ["uniform=2", "margin=1", "gumbel=2,0.5", "accepted=1"]


@pytest.mark.parametrize("nothing", ["uniform=0", "margin=0", "gumbel=0", None, UniformChoice(0)])
def test_no_token_to_correct_is_plain_sampling(model, nothing):
    plain = unmask.sample(model, [[1, 2], [3]], length=9, steps=4, **DRAWN)
    idle = unmask.sample(model, [[1, 2], [3]], length=9, steps=4, corrector=nothing, **DRAWN)
    assert same(plain, idle) and idle.calls == plain.calls == 4


@pytest.mark.parametrize("name", NAMES)
def test_given_tokens_and_masks_stay(model, name):
    settings = {"length": 10, "steps": 4, **DRAWN, "block": 4}
    prompts, fixed = [[1, 2], [3, 4]], {6: [7]}
    plain = unmask.sample(model, prompts, fixed=fixed, **settings)
    corrected = unmask.sample(model, prompts, fixed=fixed, corrector=name, **settings)
    assert torch.equal(corrected.tokens[:, :2], torch.tensor(prompts))
    assert (corrected.tokens[:, 6] == 7).all() and (corrected.committed_at[:, 6] == 0).all()
    assert torch.equal(corrected.states == V - 1, plain.states == V - 1)
    assert not torch.equal(corrected.tokens, plain.tokens) and corrected.calls > plain.calls
    assert torch.equal(corrected.states[-1], corrected.tokens)
    # A token's step is the last at which it changed: after it, the states agree.
    for step, state in enumerate(corrected.states):
        settled = corrected.committed_at <= step
        assert torch.equal(state[settled], corrected.tokens[settled])


def test_calls_are_those_of_the_network(model, monkeypatch):
    """Two tokens are written per step: 2, 4, 6 and 8 margins, and a call for each redrawn one."""
    calls, run = [], Model.logits
    monkeypatch.setattr(Model, "logits", lambda *a, **k: calls.append(1) or run(*a, **k))
    for name, expected in (
        ("none", 4),
        ("uniform=1", 4 + 4),
        ("uniform=3", 4 + 2 + 3 * 3),
        ("margin=1", 4 + (2 + 4 + 6 + 8) + 4),
        ("accepted", 4 + 2 * (2 + 4 + 6 + 8)),
    ):
        drawn = unmask.sample(model, [[]], length=8, steps=4, corrector=name, **DRAWN)
        assert drawn.calls == len(calls) == expected, name
        calls.clear()


@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_the_same_alone_and_cached(model, name):
    settings, lengths = {"steps": 4, "corrector": name, **DRAWN}, [8, 10, 6]
    prompts = [[1, 2], [3], [4]]
    together = unmask.sample(model, prompts, length=lengths, **settings)
    for row, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        alone = unmask.sample(model, [prompt], length=length, **settings)
        assert torch.equal(together.states[:, row, :length], alone.states[:, 0])
        cached = unmask.sample(model, [prompt], length=length, cache="exact", **settings)
        assert torch.equal(cached.states, alone.states)


def test_a_corrector_of_ones_own(model):
    """A function gets the text and rewrites it; what it must not touch stays."""
    seen = []

    def all_sevens(text, streams):
        seen.append((sum(text.num_written), int(text.written.sum())))
        text.tokens = torch.full_like(text.tokens, 7)

    drawn = unmask.sample(model, [[1, 2]], length=8, steps=3, plan="linear", corrector=all_sevens)
    assert drawn.tokens[0].tolist() == [1, 2, *[7] * 6] and seen == [(2, 2), (4, 4), (6, 6)]
    assert (drawn.states[1] == V - 1).sum() == 4
    named = unmask.sample(model, [[1]], length=8, corrector="gumbel=2,0.5", **DRAWN)
    made = unmask.sample(model, [[1]], length=8, corrector=LeastTrusted(2, 0.5), **DRAWN)
    assert same(named, made)


@pytest.mark.parametrize("cache", ["none", "exact", "approximate"])
def test_a_corrector_need_not_count_positions_and_must_not_miscount(model, cache):
    def redraw_all(count):
        def correct(text, streams):
            text.redraw(text.written, count(text), streams, text.written)

        how = {"length": 8, "steps": 4, "block": 4, "cache": cache, "seed": 2, "temperature": 1.0}
        return unmask.sample(model, [[1, 2], [3]], corrector=correct, **how)

    counted = redraw_all(lambda text: sum(text.num_written))
    assert same(redraw_all(lambda text: None), counted)
    for off in (-1, 1):
        with pytest.raises(UserError, match=r"predictions at \d+ positions .* leave it out"):
            redraw_all(lambda text, off=off: sum(text.num_written) + off)


def test_patches_act_in_a_corrector_as_well(model):
    """A network that always says 5 from its step on."""
    say = torch.zeros(V - 1)
    say[5] = 99.0
    with model.net.patch({"logits": lambda x: torch.zeros_like(x) + say}, steps=4):
        drawn = unmask.sample(model, [[]], length=8, steps=4, corrector="uniform=8", **DRAWN)
    assert (drawn.tokens == 5).all()


def cut(text, streams):
    text.tokens = text.tokens[:, :2]


@pytest.mark.parametrize(
    "corrector,message",
    [
        ("unifrom", "corrector 'unifrom' is unknown"),
        ("accepted=1,2", "corrector 'accepted=1,2' has too many numbers"),
        (3, "the corrector was given as int 3"),
        (UniformChoice, "corrector was given as the class UniformChoice"),
        (cut, "the corrector returned"),
    ],
)
def test_what_is_given_wrongly_is_a_sentence(model, corrector, message):
    with pytest.raises(UserError, match=message):
        unmask.sample(model, [[1]], length=8, corrector=corrector)
    with pytest.raises(UserError, match="a corrector was given for a uniform model"):
        unmask.sample(make("uniform"), [[]], length=2, corrector="uniform=1")

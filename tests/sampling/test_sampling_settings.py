"""The settings of sampling: one object or keywords, checked at once, the same for both verbs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import unmask
from tests.sampling.states import V
from unmask import Sampling, UserError


def test_an_object_and_keywords_are_the_same(model):
    single = {"steps": 5, "order": "margin", "temperature": 0.7, "seed": 3, "length": 12}
    settings = Sampling(**single)
    by_name = unmask.sample(model, [[1, 2]], **single)
    assert torch.equal(unmask.sample(model, [[1, 2]], settings).states, by_name.states)
    changed = unmask.sample(model, [[1, 2]], settings, seed=4)
    assert torch.equal(
        changed.states, unmask.sample(model, [[1, 2]], **single | {"seed": 4}).states
    )
    assert not torch.equal(changed.tokens, by_name.tokens) and settings.seed == 3
    pattern = [1, 2, *[V - 1] * 10]
    filled = unmask.infill(model, pattern, replace(settings, length=None))
    assert torch.equal(filled.states, by_name.states)


def test_all_problems_are_told_at_once():
    for wrong in (
        {"steps": 0, "block": 0, "cache": "some"},
        {"plan": "smd", "order": "lift", "remask": "cup", "guidance": "much", "top_k": 0},
    ):
        with pytest.raises(UserError) as caught:
            Sampling(**wrong)
        for value in (each for each in wrong.values() if each != 0):
            assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m: unmask.sample(m, [[1]], step=4), "sample has no argument 'step': did you mean"),
        (lambda m: unmask.sample(m, [[1]], 4), "sample was given 4 as its settings: expected Samp"),
        (lambda m: unmask.infill(m, [V - 1], length=4), "infill has no argument 'length'"),
        (lambda m: unmask.infill(m, [V - 1], Sampling(length=4)), "settings with length 4: a text"),
        (lambda m: unmask.sample(m, [[1]], keep_states=1), "'keep_states' is 1, expected true or"),
    ],
)
def test_mistakes_are_sentences(model, call, said):
    with pytest.raises(UserError) as caught:
        call(model)
    assert said in str(caught.value)


def test_numbers_of_other_libraries_are_numbers(model):
    plain = unmask.sample(model, [[1, 2]], steps=4, block=5, length=12, temperature=0.5, seed=2)
    theirs = unmask.sample(
        model, [[1, 2]], steps=np.int64(4), block=np.int32(5), length=np.int64(12),
        temperature=np.float32(0.5), seed=np.int64(2),
    )  # fmt: skip
    assert torch.equal(plain.states, theirs.states)
    with pytest.raises(UserError, match="'steps' is .*0.*, expected at least 1"):
        Sampling(steps=np.int64(0))

"""Correctors on exact laws: what is drawn, calls, the measure."""

from itertools import product

import pyarrow
import pytest

import unmask
from unmask import UserError
from unmask.blocks.blocks import Notice
from unmask.experiments.correctors.laws import (
    ExactModel,
    MarkovChain,
    SmallLanguage,
    find_kernel,
)
from unmask.experiments.correctors.measure import EXACT, CorrectorsSettings, _count_calls
from unmask.experiments.correctors.measure import MEASURE as CORRECTORS
from unmask.sampling.correctors import get_corrector

LAW = SmallLanguage(3, 3, seed=0)


def test_texts_of_the_chain_have_its_law():
    law = MarkovChain()
    texts = law.draw(2000, seed=0)
    assert law.count_slips(texts) < 0.004 and law.find_distance(texts) < 0.05


def test_one_token_per_step_draws_the_law():
    model = ExactModel.make(LAW)
    how = {"length": 3, "plan": "linear", "order": "random", "temperature": 1.0}
    distances = [
        LAW.find_distance(unmask.sample(model, [[]] * 5000, steps=steps, **how).tokens)
        for steps in (3, 1)
    ]
    assert distances[0] < 0.045 < distances[1]
    assert LAW.find_distance(LAW.draw(5000, seed=1)) < 0.045


def test_calls_are_counted_beforehand():
    model = ExactModel.make(SmallLanguage())
    for name, steps in product(("uniform=3", "margin=1", "gumbel=2/1", "accepted=1"), (1, 2)):
        corrector = name.replace("/", ",")
        drawn = unmask.sample(
            model, [[]] * 3, length=4, steps=steps, plan="linear", corrector=corrector
        )
        assert drawn.calls == _count_calls(name, steps, 4), (name, steps)


def test_the_measure(tmp_path):
    given = {"correctors": ("uniform=1", "margin=1"), "remaskings": ("conf",), "rows": 5}
    given |= {"most_calls": 16}
    result = unmask.correctors(languages=1, draws=1, out=tmp_path / "run", **given)
    rows = result.tables["correctors"].to_pylist()
    for toy in ("language", "chain"):
        own = [row for row in rows if row["toy"] == toy]
        calls = {row["calls"] for row in own if row["family"] == "corrector"}
        assert calls == {row["calls"] for row in own if row["family"] == "remasking"}
        assert [row["sampler"] for row in own if row["calls"] == 0] == [EXACT]
    assert all((row["slips"] is None) == (row["toy"] == "language") for row in rows)
    bias = {row["corrector"]: row["mean"] for row in result.summary["bias"]}
    assert bias["uniform=1"] < 1e-12 < 0.01 < bias["margin=1"]
    assert {row["outcome"] for row in result.summary["differences"]} == {"too few"}
    assert any(isinstance(block, Notice) for block in result.section.walk()), "it says so"


def test_one_difference_is_that_of_the_distances():
    """A corrector that is always nearer by 0.1 than a remasking; another one takes other calls."""
    samplers = ("margin=1", "corrector", 4, 0.1), ("conf", "remasking", 4, 0), ("cap", "", 8, 0)
    rows = [
        {"fact": str(i), "seed": 0, "toy": "language", "sampler": sampler, "slips": None}
        | {"family": family, "steps": 2, "calls": calls, "tv": 0.5 + i / 100 - gain}
        for i, (sampler, family, calls, gain) in product(range(6), samplers)
    ]
    bias = {"fact": "x", "seed": 0, "corrector": "margin=1", "corrections": 1, "masked": 0, "tv": 0}
    tables = {"correctors": rows, "bias": [bias]}
    tables = {name: pyarrow.Table.from_pylist(rows) for name, rows in tables.items()}
    (row,) = CORRECTORS.make_summary(tables, CorrectorsSettings())["differences"]
    assert (row["minus"], row["facts"], row["outcome"]) == ("conf", 6, "below")
    assert row["low"] == pytest.approx(-0.1) == row["high"]


def test_mistakes_are_sentences():
    with pytest.raises(UserError, match="compared on exact laws"):
        unmask.correctors("reversal-mdm")
    with pytest.raises(UserError, match="corrector"):
        CorrectorsSettings(correctors=("no such",))
    with pytest.raises(UserError, match="remask"):
        CorrectorsSettings(remaskings=("no such",))
    with pytest.raises(UserError, match="has no matrix"):
        find_kernel(LAW, get_corrector(lambda text, streams: None))

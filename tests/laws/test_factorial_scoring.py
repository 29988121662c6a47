"""The factorial's one way of asking: what the package's own scores say, and each form's loss."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.conftest import lively
from unmask.data.facts import Fact, tokenize_fact
from unmask.data.tokenizer import Tokenizer
from unmask.evaluation.chain import Chain, score_chains, score_continuations
from unmask.evaluation.metrics import rank_of
from unmask.evaluation.questions import Split
from unmask.net.model import Blueprint, Model
from unmask.net.presets import preset
from unmask.objectives.batch import Batch
from unmask.objectives.rearranged import copy_masked, hide_suffix, interleave
from unmask.objectives.targets import targets_loss
from unmask.sampling.texts import sample

LENGTH = 14
FORMS = {"canvas": False, "plain": True, "copy": True, "interleaved": True}
"""Whether a form's network is causal."""


@pytest.fixture(scope="module")
def scoring():
    sys.path.insert(0, str(Path(__file__).parents[2] / "paper"))
    yield importlib.import_module("factorial_scoring")
    sys.path.pop(0)


TEXTS = ["Mira is the smith.", "Old Orla was the baker.", "Tobin is a clockmaker here."]


@pytest.fixture(params=FORMS)
def reader(request, scoring):
    tokenizer = Tokenizer.train(TEXTS, 300)
    causal, shift = FORMS[request.param], request.param == "canvas"
    config = preset("tiny", causal=causal, vocab_size=tokenizer.vocab_size, layers=2, context=64)
    kind = "causal" if causal else "masked"
    blueprint = Blueprint(config, kind, tokenizer.mask_id, shift)
    model = Model("x", lively(config), blueprint, tokenizer)
    return scoring.Reader(model, request.param, LENGTH)


PROMPTS, ANSWERS = [[5, 9, 11], [7, 3], [30, 4, 4, 21]], [[8, 2], [12, 40, 6], [9]]


def test_log_p_is_the_rows_own_loss(reader):
    """What a row learns to predict with its prompt shown and the rest hidden is what is asked."""
    model, mask_id = reader.model, reader.model.require_mask()
    end_id = model.tokenizer.end_id
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        start, stop = len(prompt), len(prompt) + len(answer)
        row = Batch(torch.tensor([[*prompt, *answer, *[end_id] * (LENGTH - stop)]]))
        asked = ((row.positions >= start) & (row.positions < stop))[None]
        everything = torch.ones_like(asked)
        if reader.form == "canvas":
            cuts = torch.arange(LENGTH).double()[start:stop, None] / LENGTH + 1e-6
            rows = [hide_suffix(row, everything, cut, mask_id, shift=True) for cut in cuts]
        elif reader.form == "plain":
            plain = score_continuations(model, [prompt], [[answer]])[0].terms[0]
            assert reader.score([prompt], [answer])[0] == pytest.approx(sum(plain), abs=1e-4)
            continue
        elif reader.form == "copy":
            rows = [copy_masked(row, asked, (row.positions >= start)[None], mask_id, end_id)]
        else:
            rows = [interleave(row, asked, torch.arange(LENGTH)[None], mask_id)]
        total = 0.0
        for made in rows:
            x = model.net.run_layers(model.net.embed(made.tokens), positions=made.positions)
            total -= float(targets_loss(model.net, x, made.targets, mask_id)[1].sum())
        assert reader.score([prompt], [answer])[0] == pytest.approx(total, abs=1e-4)


def test_batches_change_nothing(reader):
    together = reader.score(PROMPTS, ANSWERS)
    alone = [reader.score([p], [a])[0] for p, a in zip(PROMPTS, ANSWERS, strict=True)]
    assert together == pytest.approx(alone, abs=1e-4)
    ends = [LENGTH, LENGTH, 7]
    texts = [reader.write([p], [end])[0] for p, end in zip(PROMPTS, ends, strict=True)]
    assert reader.write(PROMPTS, ends) == texts and len(texts[2]) <= 3


def test_ranks_are_those_of_whole_rivals(reader):
    rivals = [[[8, 2], [8, 3], [9], [12, 4, 4], [8, 2, 5]]] * 3
    totals = reader.score(PROMPTS, ANSWERS)
    expected = [
        rank_of(total, reader.score([prompt] * len(others), others))
        for prompt, answer, each, total in zip(PROMPTS, ANSWERS, rivals, totals, strict=True)
        # The answer itself, scored twice, could differ from itself in the last digits.
        if (others := [rival for rival in each if rival != answer])
    ]
    ranks = reader.rank(PROMPTS, ANSWERS, rivals, totals)
    assert ranks == expected and max(ranks) > 1


def test_masked_and_plain_texts_are_the_packages(reader):
    if reader.form in ("copy", "interleaved"):
        return
    model, end_id = reader.model, reader.model.tokenizer.end_id
    texts = reader.write(PROMPTS, [LENGTH] * 3)
    for prompt, text in zip(PROMPTS, texts, strict=True):
        options = (
            {"plan": "one", "order": "left", "steps": LENGTH} if reader.form == "canvas" else {}
        )
        drawn = sample(model, [prompt], length=LENGTH, **options).tokens[0].tolist()
        assert drawn[len(prompt) : len(prompt) + len(text)] == text
        assert text[-1] == end_id or len(prompt) + len(text) == LENGTH
    if reader.form == "canvas":
        chains = [Chain(p + a, list(range(len(p), len(p) + len(a))))
                  for p, a in zip(PROMPTS, ANSWERS, strict=True)]  # fmt: skip
        terms = score_chains(model, chains, LENGTH)
        assert reader.score(PROMPTS, ANSWERS) == pytest.approx(list(map(sum, terms)), abs=1e-4)


def test_an_exact_canvas_is_one_of_that_length(reader, scoring):
    """Padding after a canvas is not seen: asked on a canvas of its own length, nothing changes."""
    query = scoring.Query
    long = reader.predict([query([5, 9, 11], 3, 6), query([7, 3], 2, LENGTH)])
    if reader.form == "canvas":
        short = replace(reader, length=6).predict([query([5, 9, 11], 3, 6)])
        torch.testing.assert_close(long[:1], short, atol=1e-4, rtol=1e-4)
        whole = reader.predict([query([5, 9, 11], 3, LENGTH)])
        assert not torch.allclose(long[:1], whole, atol=1e-3)
    assert torch.allclose(long.exp().sum(-1), torch.ones(2, dtype=torch.float64))
    assert (long[:, reader.model.require_mask() :].exp() == 0).all()


def test_rows_of_the_table(reader, scoring):
    facts = [
        Fact.of("Mira", "the smith", "{} is", fact_id="1"),
        Fact.of("Tobin", "a clockmaker", "{} is", fact_id="2"),
    ]
    split = Split("d2p_same", facts, [facts, facts])
    rows = list(scoring.ask(replace(reader, length=30), split, "left", ranked=2))
    assert [row["fact"] for row in rows] == ["1", "2"] and {row["rivals"] for row in rows} == {2}
    for row, fact in zip(rows, facts, strict=True):
        answer = tokenize_fact(fact, reader.model.tokenizer)
        assert row["tokens"] == len(answer.ids) - answer.prompt_length
        assert row["logp"] < 0 and row["rank"] in (1, 2)
        assert row["starts_with"] <= row["contained"]
    exact = list(scoring.ask(replace(reader, length=30), split, "exact"))
    assert all(row["logp"] is None for row in exact)

"""Phenomena of a canvas: laws that force them to a dose, laws that exclude them, depths by hand."""

from dataclasses import replace
from math import ceil, log2
from random import Random

import pytest
import torch
from torch import nn

import unmask
from tests.conftest import build, make_model
from tests.measures.asking import show
from unmask import UserError
from unmask.blocks.tidy import select
from unmask.evaluation.detection import choose_alarm, estimate_area
from unmask.evaluation.signals import find_backwards
from unmask.evaluation.smearing import (
    doubt_length,
    expect_length,
    find_sequence_smear,
    find_token_smear,
    predict_state,
)
from unmask.experiments.correctors.laws import ExactModel
from unmask.experiments.transparency import languages
from unmask.experiments.transparency.detectors import find_needed, find_revised
from unmask.experiments.transparency.measure import MEASURE
from unmask.experiments.transparency.scoring import REVISION, score_corpus
from unmask.measures.table import find_measure
from unmask.net.depth import DepthCounter, count_depth, count_softmax, count_sum, list_opaque_depths
from unmask.net.presets import preset

FORCED = {
    languages._shift_token: find_token_smear,
    languages._mix_sequences: find_sequence_smear,
}


def begin(corpus: languages.KnownCorpus) -> torch.Tensor:
    """The canvas of each question before anything is written."""
    masks = [corpus.law.num_tokens] * (corpus.law.length - 1)
    return torch.tensor([[question, *masks] for question in range(corpus.questions)])


@pytest.mark.parametrize("make", FORCED)
def test_smearing_is_the_dose_and_nothing_where_places_are_by_themselves(make):
    """Each detector also finds next to nothing in what forces the other."""
    for corpus in make(Random(1), 4, 8):
        model, xt = ExactModel.make(corpus.law), begin(corpus)
        p = predict_state(model, xt)
        values = FORCED[make](model, xt, p).amount
        assert values.tolist() == pytest.approx([corpus.dose] * 4, abs=1e-9), corpus.name
        (other,) = {*FORCED.values()} - {FORCED[make]}
        assert float(other(model, xt, p).amount.max()) < 0.2, corpus.name


def test_smearing_says_what_is_smeared_and_where():
    """The token that moves, or the two texts, of the law at half its dose."""
    for make, find in FORCED.items():
        corpus = next(each for each in make(Random(1), 4, 8) if each.dose > 0.3)
        model, xt = ExactModel.make(corpus.law), begin(corpus)
        smear = find(model, xt, predict_state(model, xt))
        for question in range(4):
            texts = corpus.law.texts[corpus.law.texts[:, 0] == question]
            if find is find_token_smear:
                assert int(smear.token[question]) == 4 + question
                assert float(smear.lost[question].sum()) == pytest.approx(
                    float(smear.amount[question])
                )
                assert float(smear.lost[question, smear.home[question]]) == 0
            else:
                place = int(smear.place[question])
                assert {*smear.tokens[question].tolist()} == {*texts[:, place].tolist()}
                others = [at for at in range(1, 8) if at != place]
                assert smear.apart[question, others].tolist() == pytest.approx([1.0] * 6)


def test_the_expected_length_is_the_mean_of_what_can_come():
    for corpus in languages._vary_lengths(Random(1), 4, 8):
        xt = begin(corpus)
        p = predict_state(ExactModel.make(corpus.law), xt)
        lengths = (corpus.law.texts != corpus.end).sum(-1).double()
        for question in range(4):
            own = corpus.law.texts[:, 0] == question
            chances = corpus.law.law[own] / corpus.law.law[own].sum()
            mean = float(chances @ lengths[own])
            assert float(expect_length(p, corpus.end)[question]) == pytest.approx(mean)
            median = min((chances @ (lengths[own] - x).abs()) for x in lengths[own])
            doubt = float(doubt_length(p, corpus.end)[question])
            assert doubt == pytest.approx(2 * float(median) / 8)
        assert (doubt == pytest.approx(0)) == (corpus.dose == 1)


@pytest.mark.parametrize("noise", ["uniform", "hybrid"])
def test_what_noise_holds_is_not_revised(noise):
    """Nearly every place held other tokens, but given up is what the model was sure of."""
    for corpus in languages._turn_over(Random(1), 4, 8):
        if corpus.noise != noise:
            continue
        prompts = [[question] for question in range(4)]
        drawn = unmask.sample(corpus.model, prompts, length=16, steps=32, guesses=1)
        found, seen = find_revised(drawn), find_revised(replace(drawn, guess_ids=None))
        assert max(found) <= corpus.dose and (corpus.dose or min(seen) > 0.1)
        assert sum(found) / 4 >= 0.8 * corpus.dose, corpus.name


@pytest.mark.prove
def test_revised_places_are_those_taken_back():
    """Written anew, one of 24 tokens differs from itself in 23 of 24 cases."""
    for corpus in languages._draw_alone(Random(1), 24, 8):
        rows = score_corpus(corpus, 1, seed=0)
        scores = [row["score"] for row in rows]
        assert len(scores) == 24 and {row["phenomenon"] for row in rows} == {REVISION}
        assert sum(scores) / 24 == pytest.approx(corpus.dose * 23 / 24, abs=0.03)
        assert max(scores) <= corpus.dose + 1e-12


def test_what_is_needed_and_not_shown_is_found_by_knock_out():
    """Without the one note that a text needs its answer changes, one of three other places."""
    for corpus in languages._need_notes(Random(1), 4, 8):
        model = ExactModel.make(corpus.law)
        prompts = [[question] for question in range(corpus.questions)]
        given = {"plan": "one", "temperature": 0.0, "corrector": "margin=1", "length": 5}
        drawn = unmask.sample(model, prompts, **given)
        notes = torch.tensor(corpus.law.notes) + corpus.law.count
        assert torch.equal(drawn.states[1][:, 1], notes), "every note is written"
        assert torch.equal(drawn.tokens[:, 1], notes) == corpus.law.is_kept
        answers = torch.tensor(corpus.law.answers) + 2 * corpus.law.count
        assert torch.equal(drawn.tokens[:, 2], answers)
        needed = find_needed(model, prompts, drawn, **given)
        wanted = [0.0 if corpus.law.is_kept else need / 3 for need in corpus.law.needs]
        assert needed == pytest.approx(wanted), corpus.name


def test_order_is_the_share_of_inversions():
    model, order = make_model(), [2, 0, 3, 1, 4, 5]
    drawn = unmask.sample(model, [[]], length=6, plan="one", order=order)
    assert find_backwards(drawn.committed_at[0]) == pytest.approx(3 / 15)
    for name, share in (("left", 0.0), ([5, 4, 3, 2, 1, 0], 1.0)):
        drawn = unmask.sample(model, [[]], length=6, plan="one", order=name)
        assert find_backwards(drawn.committed_at[0]) == share
    assert find_backwards(torch.tensor([1, 1, 1])) is None
    assert find_backwards(torch.tensor([2, 1, 1])) == 1.0


def test_the_published_example_has_depth_11():
    """Two hidden layers of 8 units, one input, one output: 2 + 5 + 4 operations."""
    layers = [nn.Linear(a, b, bias=False) for a, b in ((1, 8), (8, 8), (8, 1))]
    net = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    with torch.no_grad(), DepthCounter() as counter:
        assert counter.find(net(torch.ones(1, 1))) == 11


@pytest.mark.parametrize("causal", [False, True])
def test_depth_of_a_network_by_hand(causal):
    """Norm, heads, rotation, pattern, mixture, sum; norm, gate, product, down, sum."""
    config, length = preset("tiny", causal=causal, layers=1), 10
    two = preset("tiny", causal=causal, layers=2)
    width, head, inner = (
        ceil(log2(each)) for each in (config.width, config.head_dim, config.mlp_width)
    )
    layer = count_depth(two, length) - count_depth(config, length)
    product = 1 + width
    attention = product + 3 + head + count_softmax(length) + count_sum(length) + product
    mlp = product + 2 + 1 + inner
    # Norms, the rotation of queries and keys, and two sums with the stream come on top.
    assert attention + mlp + 2 < layer < attention + mlp + 2 + 2 * (width + 8) + 8
    five = preset("tiny", causal=causal, layers=5)
    assert count_depth(five, length) - count_depth(two, length) == 3 * layer


def test_only_vectors_carry_depth_from_step_to_step():
    """Whatever the network's own sampler, which comes first, all are listed."""
    passes = {"token by token": (1, 10), "tokens": (1, 7), "vectors": (7, 7)}
    passes["tokens, kept keys and values"] = passes["tokens"]
    for sampler, first in (("unmasking", "tokens"), ("causal", "token by token"),
                           ("ancestral", "tokens"), ("vectors", "vectors")):  # fmt: skip
        rows = list(list_opaque_depths(preset("tiny"), 10, 7, sampler))
        assert rows[0]["carried"] == first and {row["carried"] for row in rows} == {*passes}
        for row in rows:
            opaque, whole = passes[row["carried"]]
            assert (row["opaque"], row["whole"]) == (opaque * row["pass"], whole * row["pass"])


def test_areas_and_limits():
    """AUROC of one score per fact is that of its pairs; an interval always holds it."""
    values, truth = [0.1, 0.4, 0.35, 0.8, 0.9, 0.2], [False, False, True, True, True, False]
    area = estimate_area(values, truth, list("abcdef"))
    assert area.mean == pytest.approx(8 / 9) and 0.3 < area.low < area.mean < area.high <= 1
    assert estimate_area(values, [True] * 6, list("abcdef")) is None
    sure = estimate_area(range(20), [i > 9 for i in range(20)], range(20))
    assert (sure.mean, sure.high) == (1.0, 1.0) and 0.5 < sure.low < 1
    few = estimate_area(range(20), [i > 9 for i in range(20)], [i // 5 for i in range(20)])
    assert few.low < sure.low, "scores of one fact count once"
    limit = choose_alarm([*range(100), 98.5, 500], [False] * 100 + [True] * 2)
    assert sum(x > limit for x in range(100)) == 3 and limit == (94 + 98.5) / 2
    assert choose_alarm([1.0, 2.0, 0.5], [False, False, True]) == 2.0


@pytest.mark.prove
def test_detectors_reach_their_goals(tmp_path):
    """As asked for: AUROC, false alarms and slopes, on languages that no limit was chosen on."""
    result = MEASURE(languages=4, out=tmp_path / "laws")
    detectors = result.summary["detectors"]
    for name in languages.NAMES:
        (area,) = select(detectors, phenomenon=name, metric="auroc")
        (slope,) = select(detectors, phenomenon=name, metric="slope")
        (false,) = select(detectors, phenomenon=name, metric="false")
        assert area["mean"] >= 0.95 and false["mean"] <= 0.05, name
        assert 0.8 <= slope["mean"] <= 1.2, name
    assert "No model was named" in show(result) and "misses a goal" not in show(result)


@pytest.mark.prove
def test_the_measure(corpus, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(languages, "DOSES", (1.0,))
    few = {"languages": 1, "texts": 12, "limit": 1, "steps": 4, "states": 2, "device": "cpu"}
    few |= {"splits": ("p2d_same",)}
    model = build(tokenizer=tokenizer, vocab_size=tokenizer.vocab_size, context=64)
    result = MEASURE(model, data=corpus, out=tmp_path / "model", **few)
    rows = result.tables["states"].to_pylist()
    assert {row["step"] for row in rows} == {0, 2} and all(row["revised"] == 0 for row in rows)
    depth = result.summary["depth"][0]
    assert depth["opaque"] == depth["pass"] == depth["whole"] / 4
    assert "serial depth" in show(result)
    for name in languages.NAMES:
        (area,) = select(result.summary["detectors"], phenomenon=name, metric="auroc")
        assert area["mean"] > 0.9, name


def test_transparency_s_mistakes_are_sentences(corpus, tmp_path):
    with pytest.raises(UserError, match="data were given without a model"):
        find_measure("transparency")(data="corpus")
    with pytest.raises(UserError, match="smearing is read where masks are filled"):
        MEASURE(make_model(causal=True), data=corpus, out=tmp_path / "run", device="cpu")

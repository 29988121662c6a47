"""What parallel commits cost: against tables of all texts, chains in closed form, enumeration."""

import math
from itertools import product

import pytest
import torch

from tests.conftest import build
from tests.evaluation.oracle import make_oracle
from tests.measures.asking import ask, show
from unmask import UserError
from unmask.blocks.tidy import distinct, select
from unmask.evaluation.parallel import Commit, find_commit_costs, watch_commits
from unmask.experiments.correctors.laws import ExactModel, MarkovChain, SmallLanguage
from unmask.experiments.parallel import measure
from unmask.experiments.parallel.measure import MEASURE, ONE, ParallelSettings
from unmask.net.families import Family

LAW = SmallLanguage(3, 4, seed=5)
HIDDEN = LAW.num_tokens


def take(state: tuple[int, ...], positions: list[int], tokens: list[int]) -> Commit:
    """What a step commits at some masks of a state, the network taken at its word."""
    marginals = LAW.find_marginals(torch.tensor([state]))[0, positions]
    return Commit(0, 1, list(state), positions, tokens, marginals.log())


def enumerate_joint(state: tuple[int, ...], positions: list[int]) -> dict[tuple[int, ...], float]:
    """p of all tokens at these positions, text by text."""
    joint: dict[tuple[int, ...], float] = {}
    for text, p in zip(LAW.texts.tolist(), LAW.law.tolist(), strict=True):
        if all(x in (HIDDEN, token) for x, token in zip(state, text, strict=True)):
            key = tuple(text[i] for i in positions)
            joint[key] = joint.get(key, 0.0) + p
    total = sum(joint.values())
    return {key: p / total for key, p in joint.items()}


def multiply(joint: dict[tuple[int, ...], float], tokens: tuple[int, ...]) -> float:
    """p of the tokens by the product of the joint's marginals."""
    shares = (sum(p for key, p in joint.items() if key[i] == x) for i, x in enumerate(tokens))
    return math.prod(shares)


@pytest.mark.parametrize("state", [(3, 3, 3, 3), (3, 1, 3, 3), (0, 3, 3, 2)])
def test_costs_are_those_of_the_law(state):
    """Correlation, and the gap in the mean over what the product draws: both directions of KL."""
    model, open_ = ExactModel.make(LAW), [i for i, x in enumerate(state) if x == HIDDEN]
    for positions in (open_, open_[:2], open_[-1:]):
        joint = enumerate_joint(state, positions)
        forwards = sum(p * math.log(p / multiply(joint, x)) for x, p in joint.items())
        backwards = sum(multiply(joint, x) * math.log(multiply(joint, x) / joint[x]) for x in joint)
        commits = [take(state, positions, list(x)) for x in joint]
        costs = find_commit_costs(model, commits, draws=None)
        assert [cost.correlation for cost in costs] == pytest.approx([forwards] * len(joint))
        gap = sum(multiply(joint, x) * cost.gap for x, cost in zip(joint, costs, strict=True))
        assert gap == pytest.approx(backwards, abs=1e-12)
        assert (forwards > 1e-3) == (len(positions) > 1)
        (drawn,) = find_commit_costs(model, commits[:1], draws=4000)
        assert drawn.correlation == pytest.approx(forwards, rel=0.1, abs=1e-12)


def test_correlations_add_up_to_what_the_sampler_s_texts_lack():
    """Two tokens a step from the left: KL(law || law of the texts) over all 81 texts."""
    model, lost, total = ExactModel.make(LAW), 0.0, 0.0
    for text, p in zip(LAW.texts.tolist(), LAW.law.tolist(), strict=True):
        states = [(HIDDEN,) * 4, (*text[:2], HIDDEN, HIDDEN)]
        pairs = [(states[0], [0, 1]), (states[1], [2, 3])]
        commits = [take(state, at, [text[i] for i in at]) for state, at in pairs]
        total += p * sum(cost.correlation for cost in find_commit_costs(model, commits, None))
        q = math.prod(
            multiply(enumerate_joint(state, at), tuple(text[i] for i in at)) for state, at in pairs
        )
        lost += p * math.log(p / q)
    assert total == pytest.approx(lost, abs=1e-9) and lost > 0.05


def test_one_draw_is_exact_where_every_text_says_as_much():
    """A chain committed at once: each token but the first loses log V − H(row), whatever it is."""
    law = MarkovChain(num_tokens=6, length=9)
    row = law.moves[0]
    each = math.log(6) + float((row * row.clamp(min=1e-300).log()).sum())
    how = {"plan": "linear", "steps": 1, "length": 9, "temperature": 1.0, "keep_states": False}
    model = ExactModel.make(law)
    _, commits = watch_commits(model, [[], []], "left", **how)
    for cost in find_commit_costs(model, commits):
        assert cost.correlation == pytest.approx(8 * each, abs=1e-6)


def test_a_stale_prediction_costs_its_divergence():
    (own,) = [take((3, 3, 3, 3), [0, 2], [1, 1])]
    stale = own.logp.roll(1, -1)
    commit = Commit(0, 1, own.before, own.positions, own.tokens, stale)
    (cost,) = find_commit_costs(ExactModel.make(LAW), [commit])
    assert cost.staleness == pytest.approx(float((own.logp.exp() * (own.logp - stale)).sum()))


@pytest.mark.parametrize("cache", ["none", "exact", "approximate"])
def test_commits_are_those_of_the_texts(cache):
    """Every mask is committed once, at the state before its step; exact caches add nothing."""
    model = build(vocab_size=12, num_logits=11, context=9, seed=4)
    how = {"length": 9, "plan": "threshold=0.12", "block": 3, "cache": cache, "temperature": 1.0}
    texts, commits = watch_commits(model, [[1, 2], [3], [4, 5]], "confidence", **how)
    plain, _ = watch_commits(model, [[1, 2], [3], [4, 5]], "confidence", **how | {"cache": "none"})
    for i, start in enumerate((2, 1, 2)):
        own = [each for each in commits if each.text == i]
        row, places = [*texts[i][:start], *[11] * (9 - start)], []
        for commit in own:
            assert commit.before == row
            for at, token in zip(commit.positions, commit.tokens, strict=True):
                row[at] = token
            places += commit.positions
        assert row == texts[i] and sorted(places) == list(range(start, 9))
    stale = sum(cost.staleness for cost in find_commit_costs(model, commits))
    assert (stale > 1e-6) == (cache == "approximate")
    assert cache == "approximate" or texts == plain


@pytest.mark.prove
def test_the_measure(corpus, tokenizer, tmp_path):
    family = Family("mdm", (make_oracle(corpus, ("d2p_same",), tokenizer),), "masked")
    few = {"limit": 2, "splits": ("d2p_same",), "steps": (1, 3), "languages": 2}
    few["caches"] = ("none", "exact")
    result = ask(MEASURE, [family], corpus, tmp_path / "run", **few)
    rows = result.rows()
    names = [ONE, "1 step", "3 steps", "threshold 0.9", "threshold 0.5"]
    names += ["threshold 0.9, blocks of 8", "threshold 0.9, blocks of 8, exact cache"]
    assert distinct(rows, "sampler") == names
    for row in select(rows, sampler=ONE):
        assert row["correlation"] == row["gap"] == 0 and row["calls"] == row["tokens"]
    assert all(row["calls"] == 1 for row in select(rows, sampler="1 step"))
    laws = result.tables["laws"].to_pylist()
    assert max(row["error"] for row in laws) < 1e-6
    for name, way in product(("language-0", "language-1"), (ONE, "1 step")):
        (row,) = select(laws, fact=name, sampler=way)
        assert (row["truth"] > 1e-3) == (way == "1 step")
    assert "2 laws that are known" in show(result)


def test_mistakes_are_sentences(corpus, tokenizer, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="expected one that takes a number of steps"):
        ParallelSettings(plan="one")
    with pytest.raises(UserError, match="'order'|order"):
        ParallelSettings(order="no such")
    causal = Family("ar", (build(kind="causal", vocab_size=7, context=16),), "causal")
    with pytest.raises(UserError, match="only masked models commit several tokens"):
        ask(MEASURE, [causal], corpus, tmp_path / "run")
    assert measure.TEXTS > 1

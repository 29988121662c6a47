"""Joint log-probabilities of answers: they sum to one, and agree with the estimators of a text."""

from itertools import product
from typing import Any

import pytest
import torch

import unmask
from tests.conftest import build
from unmask.evaluation.answers import Asked, score_answers
from unmask.evaluation.chain import Chain, score_chains, score_continuations
from unmask.net import batches
from unmask.net.model import Model
from unmask.noise.masked import Masked
from unmask.objectives.likelihood import Scorer, score_causal

V = 7
PROMPTS = [[1, 2, 3], [4], [5, 0, 2, 2]]


def make(causal: bool) -> Model:
    return build(kind="causal" if causal else "masked", vocab_size=V, context=16)


@pytest.fixture(scope="module", params=[False, True], ids=["masked", "causal"])
def model(request) -> Model:
    return make(request.param)


def test_answers_of_one_length_sum_to_one(model):
    """By the chain rule and in mean field, over every answer of two tokens."""
    symbols = range(V if model.kind == "causal" else V - 1)
    answers = [list(answer) for answer in product(symbols, repeat=2)]
    for scored in score_answers(model, [Asked(prompt, answers, []) for prompt in PROMPTS], 8):
        joint = torch.tensor([one.logp for one in scored]).logsumexp(0)
        assert float(joint) == pytest.approx(0, abs=1e-6)
        if model.kind == "masked":
            mean_field = torch.tensor([one.logp_mean_field for one in scored]).logsumexp(0)
            assert float(mean_field) == pytest.approx(0, abs=1e-6)


def test_chains_agree_with_the_scorer():
    """On a canvas that the text fills, in any order of writing."""
    model = make(causal=False)
    scorer = Scorer(lambda xt, at: model.logits(xt, at=at), Masked(V - 1, V - 1))
    text = [3, 1, 4, 1, 5, 0]
    for order in ([2, 3, 4, 5], [5, 2, 4], [0, 1, 2, 3, 4, 5]):
        (terms,) = score_chains(model, [Chain(text, order)], len(text))
        given = torch.tensor([i not in order for i in range(len(text))])
        exact = scorer.chain(torch.tensor(text), given, order)
        assert -sum(terms) == pytest.approx(exact.nll, abs=1e-5)


def test_a_causal_answer_is_the_rest_of_its_text():
    model = make(causal=True)
    answers = [[[3], [2, 6, 1]], [[0, 0, 0, 5]], [[6, 1]]]
    for prompt, each, behind in zip(
        PROMPTS, answers, score_continuations(model, PROMPTS, answers), strict=True
    ):
        for answer, terms in zip(each, behind.terms, strict=True):
            text = torch.tensor(prompt + answer)
            exact = score_causal(model.logits, text, torch.arange(len(text)) < len(prompt))
            assert -sum(terms) == pytest.approx(exact.nll, abs=1e-5)
        p = model.logits(torch.tensor([prompt]))[0, -1].double().softmax(-1)
        assert behind.entropy == pytest.approx(float(-(p * p.log()).sum()), abs=1e-5)


METHODS = ("exact_k", "bernoulli", "chain")


@pytest.mark.parametrize("method", METHODS)
def test_the_public_likelihood_is_the_scorer_s(method):
    """Of a causal model it is exact, whatever the method."""
    model, twin, prompt, text = make(False), make(True), [1, 2, 3], [4, 0, 5]
    x0, given = torch.tensor(prompt + text), torch.arange(6) < 3
    exact = score_causal(twin.logits, x0, given)
    assert exact.tokens == 3 and exact.error == 0
    assert unmask.likelihood(twin, text, torch.tensor(prompt), method, seed=3) == exact
    more, found = {} if method == "chain" else {"seed": 3}, []
    for guidance in (0.0, 0.5):
        scorer = Scorer(
            lambda xt, at: model.logits(xt, at=at), Masked(V - 1, V - 1), guidance=guidance
        )
        found.append(unmask.likelihood(model, text, prompt, method, guidance=guidance, seed=3))
        assert found[-1] == getattr(scorer, method)(x0, given, **more)
    assert found[0] != found[1] and found[0].tokens == 3


def test_likelihoods_of_an_order_and_their_mistakes():
    model, causal = make(causal=False), make(causal=True)
    near: Any = "exactk"
    scorer = Scorer(lambda xt, at: model.logits(xt, at=at), Masked(V - 1, V - 1))
    x0 = torch.tensor([1, 4, 0, 5])
    found = unmask.likelihood(model, [4, 0, 5], [1], "chain", [2, 0, 1])
    assert found == scorer.chain(x0, torch.arange(4) < 1, [3, 1, 2])
    assert found != unmask.likelihood(model, [4, 0, 5], [1], "chain")
    for call, said in (
        (lambda: unmask.likelihood(model, [1], [0], near), "expected one of 'exact_k'"),
        (lambda: unmask.likelihood(model, [1, 2], order=[1, 0]), "use method='chain'"),
        (lambda: unmask.likelihood(model, [1, V]), "token 7 was given, but tokens run from 0 to 6"),
        (lambda: unmask.likelihood(model, "text"), "has no tokenizer: give texts as token ids"),
        (lambda: unmask.likelihood(model, []), "the likelihood of an empty text was asked for"),
        (lambda: unmask.likelihood(causal, [1, 2]), "cannot score a text's first token"),
        (lambda: unmask.likelihood(causal, [1], [2], guidance=1.0), "no unconditional pass"),
    ):
        with pytest.raises(unmask.UserError, match=said):
            call()


def test_scores_do_not_depend_on_the_batch(model, monkeypatch):
    asked = [Asked(prompt, [[1, 2, 3], [0]], [[4, 4], [1, 2, 3]]) for prompt in PROMPTS]
    together = score_answers(model, asked, 12)
    monkeypatch.setattr(batches, "_MOST_ON_CPU", 1)
    alone = [score_answers(model, [one], 12)[0] for one in asked]
    for some, others in zip(together, alone, strict=True):
        for one, other in zip(some, others, strict=True):
            assert one.terms == pytest.approx(other.terms, abs=1e-5)
            assert one.rank == other.rank and one.num_rivals == other.num_rivals
            assert one.first_token_entropy == pytest.approx(other.first_token_entropy, abs=1e-5)


def test_ranks(model):
    """The likeliest of all answers of one token has rank 1, the least likely the last."""
    symbols = range(V if model.kind == "causal" else V - 1)
    every = [[token] for token in symbols]
    (scored,) = score_answers(model, [Asked(PROMPTS[0], every, every)], 8)
    by_logp = sorted(scored, key=lambda one: -one.logp)
    assert [one.rank for one in by_logp] == list(range(1, len(every) + 1))


def test_rivals_that_do_not_fit_are_not_counted(model):
    (scored,) = score_answers(model, [Asked([1, 2, 3], [[4]], [[4], [1, 2], [1] * 9])], 8)
    assert scored[0].num_rivals == 2


def test_ranks_by_the_chain_rule(model):
    """Those of scoring every rival whole, which begin alike, end early, repeat, or are the truth.

    Ties count for the truth.
    """
    symbols = range(V if model.kind == "causal" else V - 1)
    rivals = [list(each) for n in (1, 2, 3) for each in product(symbols, repeat=n)][::5]
    rivals += rivals[:3]
    truths = [rivals[0], rivals[7], rivals[-1], [2, 2, 0, 1]]
    for truth in truths:
        asked = [Asked(prompt, [truth, [1]], rivals) for prompt in PROMPTS]
        every = [Asked(prompt, rivals, []) for prompt in PROMPTS]
        ranked, whole = (score_answers(model, each, 12, True) for each in (asked, every))
        for (first, second), others in zip(ranked, whole, strict=True):
            above = sum(
                each.logp > first.logp
                for rival, each in zip(rivals, others, strict=True)
                if rival != truth
            )
            assert first.rank_chain == 1 + above
            assert (second.rank_chain is None) == (model.kind == "masked")
    plain = score_answers(model, [Asked(PROMPTS[0], [[1]], rivals)], 12)[0][0]
    assert plain.rank_chain == (None if model.kind == "masked" else plain.rank)

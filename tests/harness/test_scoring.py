"""Likelihoods of many requests at once are those of `unmask.likelihood`, one at a time."""

import pytest
import torch

import unmask
from tests.conftest import build, make_model
from unmask.data.tokenizer import Tokenizer
from unmask.harness.scoring import LikelihoodRequest, RequestScorer
from unmask.harness.settings import HarnessSettings
from unmask.net.model import Model


def make_requests(seed: int = 0) -> list[LikelihoodRequest]:
    """Contexts and continuations of several lengths, choices of one context among them."""
    draw = torch.Generator().manual_seed(seed)

    def tokens(n: int) -> list[int]:
        return torch.randint(3, 250, (n,), generator=draw).tolist()

    first = tokens(6)
    sizes = [(1, 1), (9, 3), (4, 8), (12, 2), (2, 1)]
    requests = [LikelihoodRequest(first, tokens(n), 5) for n in (1, 1, 3, 3)]
    return requests + [LikelihoodRequest(tokens(a), tokens(b), 11 + a) for a, b in sizes]


def make_timed() -> Model:
    """A masked network that is told the time."""
    tokenizer = Tokenizer.train(["The caves of Orsel are deep."] * 5, 280)
    return build("tiny", "masked", tokenizer, vocab_size=tokenizer.vocab_size, time=True)


def score(model: Model, requests: list[LikelihoodRequest], **settings) -> list:
    scored = RequestScorer(model, HarnessSettings(**settings)).score(requests, "requests")
    by_number = dict(scored)
    return [by_number[i] for i in range(len(requests))]


MODELS = {"masked": make_model, "causal": lambda: make_model(causal=True), "timed": make_timed}
METHODS = [("exact_k", 0.0), ("bernoulli", 0.0), ("chain", 0.0), ("exact_k", 0.7), ("chain", 0.7)]


@pytest.mark.parametrize("rows", [None, 3])
@pytest.mark.parametrize(
    ("kind", "method", "guidance"),
    [
        *(("masked", *each) for each in METHODS),
        ("causal", "exact_k", 0.0),
        ("timed", "exact_k", 0.0),
    ],
)
def test_a_batch_is_one_request_at_a_time(kind, method, guidance, rows):
    """A network that takes the time gets it without the padding."""
    model, requests = MODELS[kind](), make_requests()
    how = {"guidance": guidance, "strata": 4, "repeats": 3}
    answers = score(model, requests, rows=rows, likelihood=method, **how)
    for request, answer in zip(requests, answers, strict=True):
        alone = unmask.likelihood(
            model, request.tokens, request.context, method, seed=request.seed, **how
        )
        assert answer.estimate.nll == pytest.approx(alone.nll, rel=1e-5)
        assert answer.estimate.error == pytest.approx(alone.error, rel=1e-3, abs=1e-5)
        assert answer.estimate.tokens == alone.tokens
        assert kind != "causal" or answer.estimate.error == 0


def count_rows(model: Model, requests: list[LikelihoodRequest], monkeypatch, **settings) -> int:
    """How many rows the network runs for the requests."""
    run, counts = model.net.run_tokens, []

    def count(tokens, *rest):
        counts.append(len(tokens))
        return run(tokens, *rest)

    monkeypatch.setattr(model.net, "run_tokens", count)
    score(model, requests, **settings)
    return sum(counts)


def test_equal_rows_run_once(monkeypatch):
    """128 draws of four one-token choices of one question hide the same token: one row."""
    choices = [LikelihoodRequest([5, 6, 7], [token], 1) for token in (10, 20, 30, 40)]
    assert count_rows(make_model(), choices, monkeypatch) == 1
    causal = make_model(causal=True)
    assert count_rows(causal, choices, monkeypatch) == 1
    others = [LikelihoodRequest([5, 6, token], [9], 1) for token in (10, 20, 30, 40)]
    assert count_rows(make_model(), others, monkeypatch) == 4


@pytest.mark.parametrize("method", ["bernoulli", "chain"])
def test_windows_read_nothing_for_a_greedy_text(method, monkeypatch):
    """A row of masks that is read at every position makes batches of the chain rule tiny."""
    read, seen = RequestScorer._read, []
    monkeypatch.setattr(
        RequestScorer, "_read", lambda self, rows: seen.append(rows.entries) or read(self, rows)
    )
    scorer = RequestScorer(make_model(), HarnessSettings(likelihood=method, strata=1, repeats=2))
    window = LikelihoodRequest([5], [10, 20, 30, 40], 1)
    assert len(list(scorer.score_windows([window]))) == 1
    ((*draws,),) = seen
    assert len(draws) == {"bernoulli": 2, "chain": 4}[method]
    assert method == "bernoulli" or {len(each) for each in draws} == {1}


@pytest.mark.parametrize("method", ["exact_k", "chain", "causal"])
def test_greedy_is_what_the_sampler_writes(method):
    """One token per step, the most confident first; the likeliest next one of a causal model."""
    is_causal, context = method == "causal", [40, 50, 60, 70]
    model = make_model(causal=is_causal)
    how = {} if is_causal else {"likelihood": method}
    for n in (1, 2, 5):
        steps = {} if is_causal else {"steps": n, "plan": "one"}
        drawn = unmask.sample(model, [context], length=len(context) + n, **steps)
        written = drawn.tokens[0, len(context) :].tolist()
        assert model.tokenizer.end_id not in written
        wrong = [*written[:-1], (written[-1] + 1) % 250]
        requests = [LikelihoodRequest(context, each, 0) for each in (written, wrong)]
        assert [each.is_greedy for each in score(model, requests, **how)] == [True, False]


def test_what_has_no_likelihood_is_a_sentence():
    with pytest.raises(unmask.UserError, match="takes a number"):
        RequestScorer(make_model(), HarnessSettings(guidance="up=0.8"))
    with pytest.raises(unmask.UserError, match="no unconditional pass"):
        RequestScorer(make_model(causal=True), HarnessSettings(guidance=1.0))
    with pytest.raises(unmask.UserError, match="'stride' is 9, expected less than"):
        HarnessSettings(window=8, stride=9)

"""Every bound, proven on languages small enough to enumerate."""

import math
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from scipy import stats

from tests.laws.enumeration import Language, quadrature
from unmask import UserError
from unmask.base.streams import RowStreams
from unmask.noise import schedules
from unmask.noise.gaussian import Gaussian
from unmask.noise.hybrid import Hybrid
from unmask.noise.masked import Masked
from unmask.noise.uniform import Uniform
from unmask.objectives.likelihood import Estimate, Scorer, score_causal, score_rolling
from unmask.sampling.ancestral import sample_ancestral, sample_gaussian

K = 3
DISCRETE = {
    "masked": Masked(K, K),
    "masked-cosine": Masked(K, K, schedules.CosineSchedule()),
    "masked-cubic": Masked(K, K, schedules.PolynomialSchedule(3.0)),
    "masked-rescaled": Masked(
        K, K, schedules.RescaledSchedule(schedules.GeometricSchedule(0.3, 3.0))
    ),
    "uniform": Uniform(K),
    "uniform-cosine": Uniform(K, schedules.CosineSchedule()),
    "hybrid": Hybrid(K),
    "hybrid-flat": Hybrid(K, share_start=0.3, share_stop=0.3),
    "hybrid-bump": Hybrid(K, schedules.BumpSchedule(0.2)),
}


@pytest.fixture(params=list(DISCRETE))
def language(request) -> Language:
    return Language(DISCRETE[request.param], length=2, seed=1)


def test_oracle_reaches_the_exact_likelihood(language):
    bound = language.bound(language.oracle)
    torch.testing.assert_close(bound, -language.law.log(), atol=2e-4, rtol=0)


def test_random_networks_stay_above(language):
    """The bound is above -log p of the process that the network itself defines, and not wildly."""
    network = language.random_network()
    bound = language.bound(network)
    exact = -language.reverse(network, steps=300).log()  # within 4e-3 of the limit of many steps
    assert (bound >= exact - 1e-3).all()
    assert (bound - exact).max() < 10


@pytest.mark.parametrize("name", ["masked", "masked-cosine", "masked-cubic"])
def test_masked_reverse_process_is_random_order(name):
    """For masked noise the exact law is the mean over orders: no steps, no limit."""
    language = Language(DISCRETE[name], length=2, seed=1)
    network = language.random_network()
    scorer = Scorer(read_table(language, network(0.5)), language.process)
    orders = list(permutations(range(language.length)))
    chains = torch.tensor(
        [[scorer.chain(text, order=order).nll for order in orders] for text in language.texts]
    )
    exact = -torch.logsumexp(-chains.double(), -1) + math.log(len(orders))
    # The mean of the chain rule over orders is the bound; Jensen puts it above the exact value.
    torch.testing.assert_close(language.bound(network), chains.double().mean(-1), atol=1e-5, rtol=0)
    assert (language.bound(network) >= exact - 1e-9).all()


@pytest.mark.parametrize("steps", [1, 3, 8])
def test_discrete_steps_bound_their_own_law(language, steps):
    """D3PM's bound in T steps against the exact law of T ancestral steps."""
    network = language.random_network()
    total = language.bound_steps(network, steps)
    exact = -language.reverse(network, steps).log()
    assert (total >= exact - 1e-9).all()
    if steps == 1 and isinstance(language.process, Masked):
        # From all masks in one step: nothing is random in between, the bound is exact.
        torch.testing.assert_close(total, exact)


def tabulate(language: Language, logits: torch.Tensor):
    """A network as a table: states to their logits."""
    index = torch.zeros([language.process.num_states] * language.length, dtype=torch.long)
    index[tuple(language.states.T)] = torch.arange(len(language.states))
    return lambda xt: logits[index[tuple(xt.movedim(-1, 0))]]


def read_table(language: Language, logits: torch.Tensor):
    """Such a network as a scorer reads it: states and positions to the logits there."""
    table = tabulate(language, logits)
    return lambda xt, at: table(xt)[at]


@pytest.mark.parametrize("name", ["masked", "hybrid"])
def test_ancestral_sampling_reproduces_the_law(name):
    language = Language(DISCRETE[name], length=2, seed=2)
    steps, rows = 100, 10_000
    tables = {k: tabulate(language, language.oracle(k / steps)) for k in range(1, steps + 1)}
    drawn = sample_ancestral(
        lambda xt, t: tables[round(float(t[0]) * steps)](xt),
        language.process,
        language.length,
        steps,
        RowStreams.make(7, rows),
    )
    exact = language.reverse(language.oracle, steps)
    assert 0.5 * (exact - language.law).abs().sum() < 0.02, "100 steps should be nearly exact"
    counts = torch.bincount(drawn[:, 0] * K + drawn[:, 1], minlength=K * K).double()
    assert stats.chisquare(counts.numpy(), (exact / exact.sum() * rows).numpy()).pvalue > 1e-4


def test_estimators_agree_and_know_their_error():
    language = Language(Masked(K, K), length=3, seed=3)
    network = language.random_network()
    scorer = Scorer(read_table(language, network(0.5)), language.process)
    text = language.texts[14]
    wanted = float(language.bound(network)[14])
    for estimate in (
        scorer.bernoulli(text, strata=64, repeats=60, seed=1),
        scorer.exact_k(text, strata=63, repeats=40, seed=1),
    ):
        assert abs(estimate.nll - wanted) < 4.5 * estimate.error
        assert 0 < estimate.error < 0.15 and estimate.tokens == 3
    loose = scorer.bernoulli(text, strata=16, repeats=60, seed=2).error
    tight = scorer.exact_k(text, strata=16, repeats=60, seed=2).error
    assert tight < 0.6 * loose, "exact-k should spread several times less"


def test_conditional_likelihood():
    """With a token given, the oracle's chain rule is the exact conditional probability."""
    language = Language(Masked(K, K), length=2, seed=5)
    scorer = Scorer(read_table(language, language.oracle(0.5)), language.process)
    law = language.law.view(K, K)
    given = torch.tensor([True, False])
    for i, text in enumerate(language.texts):
        exact = -math.log(language.law[i] / law[text[0]].sum())
        assert scorer.chain(text, given).nll == pytest.approx(exact, abs=1e-9)
        estimate = scorer.exact_k(text, given, strata=4, repeats=2)
        assert estimate.nll == pytest.approx(exact, abs=1e-9) and estimate.tokens == 1
    joint = scorer.chain(language.texts[4]).nll
    parts = scorer.chain(language.texts[4], torch.tensor([False, True])).nll
    marginal = -math.log(law[:, language.texts[4][1]].sum())
    assert joint == pytest.approx(parts + marginal, abs=1e-9)


def test_guided_likelihood():
    language = Language(Masked(K, K), length=2, seed=6)
    table = tabulate(language, language.oracle(0.5))
    given = torch.tensor([True, False])
    text = language.texts[5]
    found = (
        Scorer(lambda xt, at: table(xt)[at], language.process, guidance=0.7).chain(text, given).nll
    )
    with_it = table(torch.tensor([[int(text[0]), K]]))[0, 1]
    without = table(torch.tensor([[K, K]]))[0, 1]
    mixed = (without + 1.7 * (with_it - without)).log_softmax(-1)
    assert found == pytest.approx(-float(mixed[text[1]]), abs=1e-9)


def test_open_ends_need_the_reconstruction():
    """Geometric noise starts above 0: the integral and the reconstruction together are exact."""
    process = Masked(K, K, schedules.GeometricSchedule(1e-2, 25.0))
    language = Language(process, length=2, seed=8)
    integral = language.bound(language.oracle, nodes=400)
    p_0 = float(process.schedule.noised(torch.zeros((), dtype=torch.float64)))
    logits, x0, xt = language.pair_up(language.oracle(0.0))
    logp = process.predict(logits).gather(-1, x0[..., None])[..., 0]
    terms = torch.where(xt == K, -logp, 0.0).sum(-1)
    reconstruction = (language.noised(0.0) * terms).sum(-1)
    exact = -language.law.log()
    found = integral + reconstruction
    # Tokens still masked at t = 0 are read at once: two at once, p_0^2, are off by a little.
    assert (found - exact).abs().max() < 10 * p_0**2
    assert (language.law * (found - exact)).sum() > -1e-9
    assert ((exact - integral) > 0.1 * p_0).all()


def gaussian_law() -> tuple[Gaussian, torch.Tensor]:
    table = torch.tensor([[1.0, 0.3], [-0.8, 0.9], [0.1, -1.2]], dtype=torch.float64)
    law = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    return Gaussian(table, schedules.SigmoidSchedule(11.0, -11.0)), law


def gaussian_bound(process: Gaussian, predict, nodes: int = 120, hermite: int = 40) -> torch.Tensor:
    """The bound of each token by quadrature over time and over the noise."""
    x, w = np.polynomial.hermite_e.hermegauss(hermite)
    d = process.table.shape[1]
    points = torch.cartesian_prod(*[torch.tensor(x)] * d).view(-1, d)
    weights = torch.cartesian_prod(*[torch.tensor(w / w.sum())] * d).view(-1, d).prod(-1)
    x0 = torch.arange(len(process.table))
    total = process.prior_kl(x0)
    zero = torch.zeros((), dtype=torch.float64)
    for t, weight in [(0.0, None), *quadrature(nodes)]:
        time = torch.tensor(t, dtype=torch.float64)
        signal, noise = (process.schedule.alpha(time).sqrt(), process.schedule.noised(time).sqrt())
        zt = signal * process.table[:, None] + noise * points
        tokens = x0[:, None].expand(zt.shape[:2])
        if weight is None:
            total = total + (process.reconstruct(zt, tokens) * weights).sum(-1)
        else:
            terms = process.nll(predict(zt, time), tokens, time + zero)
            total = total + weight * (terms * weights).sum(-1)
    return total


def test_gaussian_oracle_reaches_the_exact_likelihood():
    process, law = gaussian_law()

    def oracle(zt: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        distances = (zt[..., None, :] - process.schedule.alpha(t).sqrt() * process.table).square()
        return law.log() - 0.5 * distances.sum(-1) / process.schedule.noised(t)

    torch.testing.assert_close(gaussian_bound(process, oracle), -law.log(), atol=3e-3, rtol=0)


def test_gaussian_random_network_stays_above():
    """One dimension: the law of many reverse steps, on a grid, against the bound."""
    table = torch.tensor([[1.1], [-0.4], [-1.3]], dtype=torch.float64)
    process = Gaussian(table, schedules.SigmoidSchedule(5.0, -9.0))
    slopes = torch.tensor([1.5, -0.5, -1.0], dtype=torch.float64)
    offsets = torch.tensor([0.2, 0.4, -0.1], dtype=torch.float64)

    def network(zt: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return zt * slopes + offsets

    bound = gaussian_bound(process, network)
    grid = torch.linspace(-6, 6, 601, dtype=torch.float64)
    width, steps = float(grid[1] - grid[0]), 150
    density = torch.exp(-0.5 * grid**2) / math.sqrt(2 * math.pi)
    for k in range(steps, 0, -1):
        t, s = (torch.tensor(x / steps, dtype=torch.float64) for x in (k, k - 1))
        mean, deviation = process.posterior(network(grid[:, None], t), grid[:, None], t, s)
        move = torch.exp(-0.5 * ((grid - mean) / deviation) ** 2)
        density = (density @ (move / move.sum(-1, keepdim=True) / width)) * width
    tokens = torch.arange(3).expand(len(grid), 3)
    read = (-process.reconstruct(grid[:, None, None].expand(-1, 3, 1), tokens)).exp()
    exact = -((density[:, None] * read).sum(0) * width).log()
    assert (bound >= exact - 2e-2).all() and exact.isfinite().all() and bound.isfinite().all()


def test_rolling_counts_every_token_once():
    """A bigram language: windows of any size give the exact likelihood of a long text."""
    generator = torch.Generator().manual_seed(0)
    moves = torch.randn(K, K, dtype=torch.float64, generator=generator).log_softmax(-1)
    text = torch.randint(0, K, (37,), generator=generator)
    exact = -float(sum(moves[a, b] for a, b in pairwise(text)))
    whole = score_causal(lambda x: moves[x], text)
    assert whole.nll == pytest.approx(exact) and whole.tokens == 36
    for context, stride in ((8, 3), (8, 7), (37, 5), (100, 50), (2, 1)):
        found = score_rolling(
            lambda x, given, seed: score_causal(lambda y: moves[y], x, given), text, context, stride
        )
        assert found.nll == pytest.approx(exact) and found.tokens == 36
    assert whole.perplexity == pytest.approx(math.exp(exact / 36))
    assert whole.bits_per_character("a" * 72) == pytest.approx(exact / math.log(2) / 72)


def test_rolling_gives_all_the_context_it_can():
    """A model that counts what it sees: windows must hold the tokens before, and say so."""
    seen = []

    def score(window: torch.Tensor, given: torch.Tensor, seed: int) -> Estimate:
        seen.append((window[0].item(), window[-1].item(), int(given.sum()), seed))
        return Estimate(1.0, 1.0, int((~given).sum()))

    total = score_rolling(score, torch.arange(20), context=8, stride=3)
    assert [entry[:3] for entry in seen] == [
        (0, 7, 1), (3, 10, 5), (6, 13, 5), (9, 16, 5), (12, 19, 5)
    ]  # fmt: skip
    assert len({entry[3] for entry in seen}) == 5, "windows need draws of their own"
    assert total.tokens == 19 and total.error == pytest.approx(5**0.5)


def test_reported_errors_are_the_spread():
    """Over many seeds the estimates spread as their standard errors say; strata are not ignored."""
    language = Language(Masked(K, K), length=3, seed=3)
    scorer = Scorer(read_table(language, language.random_network()(0.5)), language.process)
    for method in (scorer.bernoulli, scorer.exact_k):
        estimates = [method(language.texts[14], None, 24, 8, seed) for seed in range(60)]
        spread = torch.tensor([e.nll for e in estimates]).std()
        said = torch.tensor([e.error for e in estimates]).square().mean().sqrt()
        assert 0.7 < float(said / spread) < 1.4


def test_scorer_refuses_what_it_cannot_score():
    scorer = Scorer(lambda xt, at: torch.zeros(int(at.sum()), K), Masked(K, K))
    pair, one, both = torch.tensor([0, 1]), torch.tensor([0]), torch.tensor([True, True])
    guided = Scorer(scorer.logits, scorer.process, 0.5)
    is_open = Masked(K, K, schedules.GeometricSchedule())
    for call, said in (
        (lambda: scorer.chain(torch.tensor([0, K])), "clean tokens hold the mask id 3"),
        (lambda: scorer.chain(pair, both), "all tokens are given"),
        (lambda: scorer.chain(pair, order=[0, 0]), "is not an order of the"),
        (lambda: scorer.exact_k(pair, repeats=1), "give no standard error"),
        (lambda: guided.chain(one), "needs a prompt"),
        (lambda: Scorer(scorer.logits, is_open), "open ends"),
        (lambda: score_causal(torch.zeros_like, one, ~both[:1]), "first token"),
        (lambda: score_rolling(scorer.chain, torch.arange(9), 4, 4), "a stride of 4 does not fit"),
    ):
        with pytest.raises(UserError, match=said):
            call()


@pytest.mark.parametrize("clamp", [False, True])
def test_gaussian_sampling_reproduces_the_law(clamp):
    """With the oracle, length one: clamped vectors are the surer, and no longer the exact law."""
    table = 2.5 * torch.tensor([[1.0, 0.3], [-0.8, 0.9], [0.1, -1.2]], dtype=torch.float64)
    process = Gaussian(table, schedules.SigmoidSchedule(5.0, -7.0))
    law = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)

    def oracle(zt: torch.Tensor, t: torch.Tensor, hint: torch.Tensor | None) -> torch.Tensor:
        alpha, noised = (
            f(t)[:, None, None] for f in (process.schedule.alpha, process.schedule.noised)
        )
        distances = (zt[..., None, :] - alpha.sqrt()[..., None] * table).square().sum(-1)
        return law.log() - 0.5 * distances / noised

    drawn = sample_gaussian(oracle, process, 1, 60, RowStreams.make(3, 6000), clamp=clamp)
    shares = torch.bincount(drawn.flatten(), minlength=3).double() / 6000
    distance = 0.5 * (shares - law).abs().sum()
    assert (distance < 0.03) if not clamp else (shares.argmax() == 0 and distance > 0.03)

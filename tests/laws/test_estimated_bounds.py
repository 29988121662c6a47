"""Estimates of every process's bound against enumeration and quadrature, and perplexity of them."""

import numpy as np
import pytest
import torch

from tests.laws.enumeration import Language, quadrature
from tests.laws.test_bounds import DISCRETE, K, tabulate
from unmask import UserError
from unmask.noise.gaussian import Gaussian
from unmask.noise.schedules import SigmoidSchedule
from unmask.objectives.bounds import estimate_bound
from unmask.objectives.masked import get_weighting


@pytest.mark.parametrize("name", ["uniform", "uniform-cosine", "hybrid", "masked"])
def test_estimates_are_the_enumerated_bound(name):
    language = Language(DISCRETE[name], length=2, seed=1)
    network = language.random_network()
    logits, exact = tabulate(language, network(0.5)), language.bound(network)
    for number in (0, 5):
        estimate = estimate_bound(
            lambda xt, t: logits(xt), language.process, language.texts[number], repeats=200, seed=3
        )
        assert abs(estimate.nll - float(exact[number])) < 4 * estimate.error
        assert estimate.error < 0.1 * estimate.nll and estimate.tokens == 2


def test_batches_and_given_tokens():
    """A row's noise does not depend on its batch; what is given is never noised nor counted."""
    language = Language(DISCRETE["hybrid"], length=2, seed=1)
    logits = tabulate(language, language.random_network()(0.5))
    seen = []

    def predict(xt, t):
        seen.append(xt)
        return logits(xt)

    given = torch.tensor([True, False])
    options = {"x0": language.texts[4], "given": given, "seed": 2}
    whole = estimate_bound(predict, language.process, **options)
    assert (torch.cat(seen)[:, 0] == language.texts[4, 0]).all()
    assert (torch.cat(seen)[:, 1] != language.texts[4, 1]).any()
    parts = estimate_bound(predict, language.process, **options, batch=7)
    assert vars(whole) == pytest.approx(vars(parts))
    with pytest.raises(UserError, match="all tokens are given"):
        estimate_bound(predict, language.process, language.texts[4], torch.tensor([True, True]))


def test_gaussian_estimates_by_quadrature():
    """A network that does not look: its bound is a difference of signal-to-noise ratios."""
    table = torch.tensor([[1.0], [-0.5]], dtype=torch.float64)
    schedule = SigmoidSchedule(start=3.0, stop=-3.0)
    process, logits = Gaussian(table, schedule), torch.tensor([0.4, -0.3], dtype=torch.float64)
    x0 = torch.tensor([0, 1, 0])
    mean = float((logits.softmax(-1) @ table)[0])
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    ratio = schedule.alpha(ends) / schedule.noised(ends)
    # -log p(x0 | z0) under z0 = sqrt(alpha) e + sqrt(1 - alpha) n, by Gauss-Hermite quadrature.
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    alpha, noised = float(schedule.alpha(ends[0])), float(schedule.noised(ends[0]))
    exact = 0.0
    for token in x0.tolist():
        e = float(table[token, 0])
        z = alpha**0.5 * e + noised**0.5 * nodes
        logp = -0.5 * (z[:, None] - alpha**0.5 * table[:, 0].numpy()) ** 2 / noised
        nll = np.logaddexp(logp[:, 0], logp[:, 1]) - logp[:, token]
        exact += float((weights * nll).sum() / weights.sum())
        exact += 0.5 * float(ratio[0] - ratio[1]) * (e - mean) ** 2
        exact += float(process.prior_kl(torch.tensor(token)))
    estimate = estimate_bound(
        lambda z, t: logits.expand(*z.shape[:2], 2), process, x0, strata=64, repeats=40
    )
    assert abs(estimate.nll - exact) < 4 * estimate.error and estimate.error < 0.05 * exact


def test_evidence_alone_costs_even_tokens_their_entropy():
    """A network that knows nothing, with evidence, is exact for even tokens: they cost log V.

    Without evidence the same network has to pay for every vector that it cannot read back.
    """
    streams = torch.Generator().manual_seed(0)
    table = torch.randn(5, 2, generator=streams, dtype=torch.float64)
    schedule, x0 = SigmoidSchedule(start=7.0, stop=-7.0), torch.arange(5)

    def estimate(evidence: bool):
        process = Gaussian(table, schedule, evidence)

        def predict(z, t):
            return process.add_evidence(torch.zeros(*z.shape[:2], 5).double(), z, t[:, None])

        return estimate_bound(predict, process, x0, strata=64, repeats=60)

    exact, blind = estimate(True), estimate(False)
    assert exact.error < 0.05 * exact.nll
    assert abs(exact.nll - 5 * np.log(5)) < 4 * exact.error
    assert blind.nll > 20 * exact.nll


@pytest.mark.parametrize("name", ["smdm", "llada", "mdlm"])
def test_normalisations_are_the_bound_but_for_eps(name):
    """Expected losses by enumeration: nats per position, off the bound by less than some eps."""
    language = Language(DISCRETE["masked"], length=2, seed=1)
    network, weighting = language.random_network(), get_weighting(name)
    logp = language.process.predict(network(0.5))  # [states, L, K]
    total = torch.zeros(len(language.texts), dtype=torch.float64)
    for t, weight in quadrature(200):
        time = torch.tensor(t, dtype=torch.float64)
        chance = float(weighting.chance(language.process, time))
        factor = float(weighting.weight(language.process, time)) / language.length
        for number, text in enumerate(language.texts):
            hidden = language.states == K
            possible = (hidden | (language.states == text)).all(-1)
            p = torch.where(hidden, chance, 1 - chance).prod(-1) * possible
            nll = -logp.gather(-1, text.expand(len(p), -1)[..., None])[..., 0]
            total[number] += weight * factor * (p * (hidden * nll).sum(-1)).sum()
    bound = language.bound(network) / language.length
    assert (total - bound).abs().max() < 10 * weighting.eps
    assert (total - bound).abs().max() > 0

"""Score entropy on the uniform graph, token-dependent masks, warped times, softened tokens."""

import math

import pytest
import torch
from scipy import integrate, stats
from scipy.special import ndtr

from tests.laws.enumeration import Language, quadrature
from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.noise.masked import Masked
from unmask.noise.schedules import CosineSchedule
from unmask.noise.state_masked import StateMasked
from unmask.noise.uniform import Uniform
from unmask.objectives.warping import TimeWarp, keep_uniform, leave_one_out, soften

K = 3
POWERS = torch.tensor([0.5, 1.0, 2.5], dtype=torch.float64)


class ByTokenLanguage(Language):
    """The enumerated language under noise that depends on the token."""

    def marginal(self, t):
        process = self.process
        if not isinstance(process, StateMasked):
            return super().marginal(t)
        q = torch.zeros(K, K + 1, dtype=torch.float64)
        for token in range(K):
            q[token, K] = t ** float(process.powers[token])
            q[token, token] = 1 - q[token, K]
        return q


@pytest.mark.parametrize("schedule", [None, CosineSchedule()])
def test_scores_are_the_bound_in_another_form(schedule):
    """Outputs log q_theta under score entropy cost what their x_theta costs under the bound."""
    more = {} if schedule is None else {"schedule": schedule}
    scored, plain = Uniform(K, **more, scores=True), Uniform(K, **more)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, K, generator=generator, dtype=torch.float64)
    x0, xt = (torch.randint(0, K, (200,), generator=generator) for _ in range(2))
    t = 0.05 + 0.9 * torch.rand(200, generator=generator, dtype=torch.float64)
    alpha, noised = plain.schedule.alpha(t)[:, None], plain.schedule.noised(t)[:, None]
    log_q = (alpha * logits.softmax(-1) + noised / K).log()
    shifted = log_q + torch.randn(200, 1, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(scored.nll(shifted, x0, xt, t), plain.nll(logits, x0, xt, t))
    s = t / 2
    torch.testing.assert_close(
        scored.posterior(shifted, xt, t, s), plain.posterior(logits, xt, t, s), atol=1e-8, rtol=1e-6
    )


def test_true_scores_reach_the_exact_likelihood_and_others_stay_above():
    """By enumeration: ratios of the noised law are the optimum, any others cost more."""
    language = Language(Uniform(K, scores=True), length=2, seed=1)

    def true_scores(t):
        """log q_t(state with position l replaced by y) [states, L, K]."""
        law = language.law @ language.noised(t)  # of states
        index = {tuple(state): i for i, state in enumerate(language.states.tolist())}
        table = torch.zeros(len(language.states), 2, K, dtype=torch.float64)
        for i, state in enumerate(language.states.tolist()):
            for at in range(2):
                for y in range(K):
                    table[i, at, y] = law[
                        index[tuple(y if j == at else v for j, v in enumerate(state))]
                    ]
        return table.log()

    exact = -language.law.log()
    torch.testing.assert_close(language.bound(true_scores), exact, atol=2e-4, rtol=0)
    noise = torch.randn(len(language.states), 2, K, dtype=torch.float64)
    assert (language.bound(lambda t: true_scores(t) + 0.5 * noise) > exact).all()


def test_equal_powers_are_masked_noise():
    process, plain = StateMasked(torch.ones(K, dtype=torch.float64)), Masked(K, K)
    logits = torch.randn(50, K, dtype=torch.float64)
    x0, xt = torch.randint(0, K, (50,)), torch.full((50,), K)
    xt[::3] = x0[::3]
    t = torch.rand(50, dtype=torch.float64) * 0.9 + 0.05
    torch.testing.assert_close(process.nll(logits, x0, xt, t), plain.nll(logits, x0, xt, t))
    torch.testing.assert_close(
        process.posterior(logits, xt, t, t / 2), plain.posterior(logits, xt, t, t / 2)
    )


def test_the_bound_by_token_reaches_the_exact_likelihood():
    """The oracle knows p(x0 | state): what a mask says about its token included."""
    language = ByTokenLanguage(StateMasked(POWERS), length=2, seed=1)

    def oracle(t):
        q = language.marginal(t)
        each = [q[language.texts[:, i]][:, language.states[:, i]] for i in range(2)]
        joint = each[0] * each[1] * language.law[:, None]  # [texts, states]
        table = torch.zeros(len(language.states), 2, K, dtype=torch.float64)
        for i in range(2):
            for token in range(K):
                table[:, i, token] = joint[language.texts[:, i] == token].sum(0)
        return table.clamp(min=1e-300).log()

    exact = -language.law.log()
    # t = u^4 spreads the nodes towards 0, where slow tokens' integrands are steep.
    total = torch.zeros(len(language.texts), dtype=torch.float64)
    for u, weight in quadrature(200):
        t = u**4
        logits, x0, xt = language.pair_up(oracle(t))
        nll = language.process.nll(logits, x0, xt, torch.tensor(t, dtype=torch.float64)).sum(-1)
        seen = language.noised(t)
        total += weight * 4 * u**3 * torch.where(seen > 0, seen * nll, 0.0).sum(-1)
    torch.testing.assert_close(total, exact, atol=2e-4, rtol=0)


def test_steps_by_token_bound_their_own_law():
    language = ByTokenLanguage(StateMasked(POWERS), length=2, seed=1)
    network, steps = language.random_network(), 5
    total = language.bound_steps(network, steps)
    exact = -language.reverse(network, steps).log()
    assert (total >= exact - 1e-9).all()


def test_posteriors_by_token_are_bayes_rule():
    process = StateMasked(POWERS)
    s, t = 0.3, 0.7
    for x0 in range(K):
        power = float(POWERS[x0])
        back = process.true_posterior(
            torch.tensor([x0]), torch.tensor([K]), torch.tensor([t]), torch.tensor([s])
        ).exp()[0]
        # q(x_s = x0 | x_t = mask) = (alpha_s - alpha_t) / (1 - alpha_t)
        expected = (t**power - s**power) / t**power
        assert float(back[x0]) == pytest.approx(expected, rel=1e-5)
        assert float(back[K]) == pytest.approx(1 - expected, rel=1e-5)
        assert float(back.sum()) == pytest.approx(1.0)


def test_gradients_of_powers_by_enumeration():
    """Leave-one-out over all pairs of draws is the gradient of the expected loss."""
    powers = torch.tensor([0.7, 1.4], dtype=torch.float64, requires_grad=True)
    x0, t = torch.tensor([[0, 1]]), 0.4
    states = torch.tensor([[a, b] for a in (0, 2) for b in (1, 2)])
    logits = torch.tensor([[[0.3, -0.2], [1.0, 0.1]]], dtype=torch.float64).expand(4, 2, 2)

    def spread():
        process = StateMasked(powers)
        hidden = process.hidden_chance(x0.expand(4, 2), torch.tensor(t, dtype=torch.float64))
        logs = torch.where(states == 2, hidden.log(), torch.log1p(-hidden)).sum(-1)
        nll = process.nll(logits, x0.expand(4, 2), states, torch.tensor(t, dtype=torch.float64))
        return nll.sum(-1), logs

    losses, logs = spread()
    (exact,) = torch.autograd.grad((logs.exp() * losses).sum(), powers)
    total = torch.zeros(2, dtype=torch.float64)
    for i in range(4):
        for j in range(4):
            losses, logs = spread()
            chance = float((logs[i] + logs[j]).exp().detach())
            pair = leave_one_out(losses[[i, j]][:, None], logs[[i, j]][:, None])
            total += chance * torch.autograd.grad(pair, powers)[0]
    torch.testing.assert_close(total, exact)


def test_powers_are_refused():
    for powers in (torch.tensor([1.0]), torch.tensor([1.0, 0.0])):
        with pytest.raises(UserError, match="expected one above 0 per token"):
            StateMasked(powers)
    with pytest.raises(UserError, match="powers of linear noise"):
        StateMasked(POWERS, CosineSchedule())


def test_warped_times_are_the_inverse_and_means_stay():
    warp = TimeWarp(8)
    with torch.no_grad():
        warp.widths.normal_(generator=torch.Generator().manual_seed(1))
        warp.heights.normal_(generator=torch.Generator().manual_seed(2))
    u = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    t = warp.draw(u)
    assert (t.diff() > 0).all() and t[0] > 0 and t[-1] < 1
    torch.testing.assert_close(warp.cumulative(t).detach(), u)
    # By quadrature: E over drawn times of f / density is the even mean of f.
    drawn = warp.draw((torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000)
    mean = (drawn.square() / warp.density(drawn)).mean()
    assert float(mean) == pytest.approx(1 / 3, abs=2e-3)


def test_the_warp_learns_where_losses_change():
    """A loss that jumps around t = 0.7: half of the times lie within the jump's middle half."""

    def curve(t):
        return 2.0 * torch.sigmoid((t - 0.7) / 0.03)

    warp = TimeWarp(40)
    optimiser = torch.optim.Adam(warp.parameters(), lr=0.05)
    u = (torch.arange(256, dtype=torch.float64) + 0.5) / 256
    for _ in range(100):
        t = warp.draw(u)
        optimiser.zero_grad()
        warp.fit_loss(t, curve(t)).backward()
        optimiser.step()
    t = warp.draw(u)
    assert float(((t > 0.6) & (t < 0.8)).double().mean()) > 0.8
    assert float(warp.scale.detach().exp()) == pytest.approx(2.0, rel=0.1)
    with pytest.raises(UserError, match="at least 2"):
        TimeWarp(1)


@pytest.mark.parametrize("num_tokens", [2, 13, 5000])
def test_the_largest_entry_is_uniform_noise(num_tokens):
    """Against scipy's quadrature; no noise keeps all, all noise nothing."""
    alphas = torch.tensor([0.0, 0.2, 0.6, 0.9, 0.99], dtype=torch.float64)
    kept = keep_uniform(alphas, num_tokens)
    for alpha, value in zip(alphas.tolist(), kept.tolist(), strict=True):
        shift = alpha / math.sqrt(1 - alpha**2)
        hit, _ = integrate.quad(
            lambda z, shift=shift: stats.norm.pdf(z) * ndtr(z + shift) ** (num_tokens - 1),
            -12, 12, limit=200, points=[0, 3, 4],
        )  # fmt: skip
        assert value == pytest.approx((num_tokens * hit - 1) / (num_tokens - 1), abs=1e-6)
    assert float(kept[0]) == pytest.approx(0, abs=1e-6) and (kept.diff() > 0).all()


def test_hard_tokens_have_the_marginals_of_uniform_noise():
    rows, alpha = 40_000, 0.6
    x0 = torch.full((rows, 1), 2)
    hard, soft = soften(x0, torch.full((rows,), alpha), 0.5, 5, RowStreams.make(1, rows))
    kept = float(keep_uniform(torch.tensor(alpha), 5))
    counts = hard[:, 0].bincount(minlength=5).double()
    expected = torch.full((5,), (1 - kept) / 5).double()
    expected[2] += kept
    assert stats.chisquare(counts.numpy(), (expected / expected.sum() * rows).numpy()).pvalue > 1e-4
    assert torch.equal(soft.argmax(-1), hard)
    torch.testing.assert_close(soft.sum(-1), torch.ones(rows, 1, dtype=torch.float64))


def test_without_temperature_soft_tokens_are_hard():
    x0 = torch.randint(0, 5, (6, 7))
    alpha = torch.full((6,), 0.5)
    hard, soft = soften(x0, alpha, 0.0, 5, RowStreams.make(1, 6))
    nearly, softer = soften(x0, alpha, 1e-4, 5, RowStreams.make(1, 6))
    assert torch.equal(hard, nearly) and torch.equal(soft.argmax(-1), hard)
    torch.testing.assert_close(softer, soft, atol=1e-6, rtol=0)

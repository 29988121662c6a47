"""Schedules and processes: slopes, marginals, posteriors, and no number that is none."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.laws.enumeration import Language
from unmask import UserError
from unmask.base.streams import RowStreams
from unmask.noise.gaussian import Gaussian
from unmask.noise.guidance import mix
from unmask.noise.hybrid import Hybrid
from unmask.noise.masked import Masked
from unmask.noise.process import step_nll
from unmask.noise.schedules import (
    SCHEDULES,
    BumpSchedule,
    CosineSchedule,
    GeometricSchedule,
    LinearSchedule,
    PolynomialSchedule,
    SigmoidSchedule,
    check_schedule,
    make_schedule,
)
from unmask.noise.uniform import Uniform

K = 3
PROCESSES = {
    "masked": Masked(K, K), "masked-cosine": Masked(K, K, CosineSchedule()),
    "masked-inside": Masked(K, 0), "uniform": Uniform(K),
    "uniform-cosine": Uniform(K, CosineSchedule()), "uniform-mixture": Uniform(K, mixture=True),
    "uniform-steep": Uniform(K, PolynomialSchedule(0.5)), "hybrid": Hybrid(K),
    "hybrid-steep": Hybrid(K, PolynomialSchedule(3.0), share_start=0.6, share_stop=0.8),
    "hybrid-flat": Hybrid(K, share_start=0.4, share_stop=0.4),
    "hybrid-bump": Hybrid(K, BumpSchedule(0.2)),
}  # fmt: skip
SHARP = [LinearSchedule(), CosineSchedule(), PolynomialSchedule(3.0), PolynomialSchedule(0.5)]
SHARP += [BumpSchedule(0.2)]
OPEN = [GeometricSchedule(), SigmoidSchedule()]


@pytest.mark.parametrize("schedule", [*SHARP, *OPEN], ids=lambda s: type(s).__name__)
def test_slopes_and_weights(schedule):
    t = torch.linspace(0.001, 0.999, 401, dtype=torch.float64, requires_grad=True)
    alpha = schedule.alpha(t)
    (slope,) = torch.autograd.grad(alpha.sum(), t)
    torch.testing.assert_close(schedule.dalpha(t), slope, atol=1e-10, rtol=1e-8)
    torch.testing.assert_close(schedule.noised(t), 1 - alpha, atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(schedule.weight(t), -slope / (1 - alpha), atol=1e-9, rtol=1e-7)
    check_schedule(schedule)


@pytest.mark.parametrize("schedule", SHARP, ids=lambda s: type(s).__name__)
def test_exact_ends(schedule):
    ends = schedule.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(
        ends, torch.tensor([1.0, 0.0], dtype=torch.float64), atol=1e-12, rtol=0
    )


def test_open_ends_are_stated():
    geometric = GeometricSchedule(1e-3, 20.0)
    found = geometric.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist()
    assert found == pytest.approx([math.exp(-1e-3), math.exp(-20.0)])


def test_closed_forms_keep_their_digits():
    """Near t = 0 in float32, where 1 - alpha has lost most of its digits."""
    t = torch.tensor([1e-6], dtype=torch.float32)
    exact = CosineSchedule().weight(t.double())
    assert float(CosineSchedule().weight(t)) == pytest.approx(float(exact), rel=1e-5)
    naive = -CosineSchedule().dalpha(t) / (1 - CosineSchedule().alpha(t))
    assert abs(float(naive) - float(exact)) > 1e-3 * float(exact)


def test_unknown_and_rising_schedules():
    assert {type(make_schedule(name)) for name in SCHEDULES} == set(SCHEDULES.values())
    with pytest.raises(UserError, match="schedule 'cosin' is unknown: did you mean 'cosine'"):
        make_schedule("cosin")
    for wrong, said in (
        (lambda: PolynomialSchedule(-1.0), "does not fall from 1 to 0"),
        (lambda: GeometricSchedule(2.0, 1.0), "does not grow"),
        (lambda: SigmoidSchedule(-3.0, 3.0), "does not fall"),
        (lambda: BumpSchedule(1.0), "expected 0 to below 1"),
    ):
        with pytest.raises(UserError, match=said):
            wrong()

    class Rising(LinearSchedule):
        def alpha(self, t: torch.Tensor) -> torch.Tensor:
            return 0.5 + 0.2 * torch.sin(9 * t)

    with pytest.raises(UserError, match="Rising is not monotone: alpha must fall"):
        Masked(K, K, Rising())


@pytest.mark.parametrize("name", [name for name in PROCESSES if name != "masked-inside"])
@pytest.mark.parametrize("t", [0.2, 0.7])
def test_corrupt_has_its_marginal(name, t):
    process = PROCESSES[name]
    expected = Language(process, 1).marginal(t)[1]
    x0 = torch.ones(20_000, 2, dtype=torch.long)
    xt = process.corrupt(x0, torch.full((1, 1), t), RowStreams.make(1, len(x0)))
    counts = torch.bincount(xt.flatten(), minlength=process.num_states).double()
    possible = expected > 0
    assert counts[~possible].sum() == 0
    p = stats.chisquare(
        counts[possible].numpy(), (expected[possible] * counts.sum()).numpy()
    ).pvalue
    assert p > 1e-4


def test_mask_among_the_tokens():
    process = Masked(K, 0)
    x0 = torch.tensor([[1, 2, 3]]).expand(500, 3)
    xt = process.corrupt(x0, torch.full((1, 1), 0.5), RowStreams.make(0, 500))
    assert ((xt == 0) | (xt == x0)).all() and 0.4 < (xt == 0).double().mean() < 0.6
    logits = torch.randn(5, 4)
    assert (process.predict(logits)[:, 0] == -torch.inf).all()
    torch.testing.assert_close(process.predict(logits).exp().sum(-1), torch.ones(5))


@pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES)
def test_rows_do_not_depend_on_their_batch(process):
    x0 = torch.randint(1, K, (6, 9), generator=torch.Generator().manual_seed(0))
    t = torch.linspace(0.1, 0.9, 6)[:, None]
    whole = process.corrupt(x0, t, RowStreams.make(4, 6))
    alone = process.corrupt(x0[3:4], t[3:4], RowStreams.make(4, [3]))
    assert torch.equal(whole[3:4], alone)
    assert torch.equal(
        process.prior(5, RowStreams.make(4, 6))[2:3], process.prior(5, RowStreams.make(4, [2]))
    )


def all_pairs(process) -> tuple[torch.Tensor, torch.Tensor]:
    """Every clean token with every state that it can become."""
    tokens = [i for i in range(process.num_states) if i != getattr(process, "mask_id", None)]
    pairs = torch.cartesian_prod(torch.tensor(tokens), torch.arange(process.num_states))
    if isinstance(process, Masked):
        pairs = pairs[(pairs[:, 0] == pairs[:, 1]) | (pairs[:, 1] == process.mask_id)]
    return pairs[:, 0], pairs[:, 1]


@pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES)
def test_posteriors_sum_to_one_and_compose(process):
    x0, xt = all_pairs(process)
    t, u, s = (torch.tensor(time, dtype=torch.float64) for time in (0.8, 0.5, 0.3))
    direct = process.true_posterior(x0, xt, t, s).exp()
    torch.testing.assert_close(direct.sum(-1), torch.ones_like(direct[:, 0]))
    to_u = process.true_posterior(x0, xt, t, u).exp()
    n = process.num_states
    from_u = process.true_posterior(
        x0[:, None].expand(-1, n), torch.arange(n).expand(len(x0), n), u, s
    ).exp()
    torch.testing.assert_close((to_u[..., None] * from_u).sum(1), direct, atol=1e-12, rtol=1e-9)
    logits = torch.randn(
        len(x0), n, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    model = process.posterior(logits, xt, t, s).exp().sum(-1)
    torch.testing.assert_close(model, torch.ones_like(model))


def test_hybrid_has_masked_and_uniform_at_its_ends():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, K, dtype=torch.float64, generator=generator)
    x0 = torch.randint(0, K, (40,), generator=generator)
    t, s = torch.tensor(0.6, dtype=torch.float64), torch.tensor(0.25, dtype=torch.float64)
    masks = torch.where(torch.arange(40) % 2 == 0, K, x0)
    close = {"atol": 1e-8, "rtol": 1e-6}
    all_mask, masked = Hybrid(K, share_start=1.0, share_stop=1.0), Masked(K, K)
    torch.testing.assert_close(
        all_mask.nll(logits, x0, masks, t), masked.nll(logits, x0, masks, t), **close
    )
    torch.testing.assert_close(
        all_mask.posterior(logits, masks, t, s).exp(),
        masked.posterior(logits, masks, t, s).exp(),
        **close,
    )
    none, uniform = Hybrid(K, share_start=0.0, share_stop=0.0), Uniform(K)
    zt = torch.randint(0, K, (40,), generator=generator)
    torch.testing.assert_close(none.nll(logits, x0, zt, t), uniform.nll(logits, x0, zt, t), **close)
    torch.testing.assert_close(
        none.posterior(logits, zt, t, s)[:, :K].exp(),
        uniform.posterior(logits, zt, t, s).exp(),
        **close,
    )


def test_uniform_equations_as_written_in_the_paper():
    """UDLM's posterior and integrand, term by term, against our factored and lean forms."""
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(50, K, dtype=torch.float64, generator=generator).softmax(-1)
    x0, zt = (torch.randint(0, K, (50,), generator=generator) for _ in range(2))
    z, clean = (torch.nn.functional.one_hot(i, K).double() for i in (zt, x0))
    a_t, a_s, d_t = 0.35, 0.7, -1.0
    t, s = torch.tensor(1 - a_t, dtype=torch.float64), torch.tensor(1 - a_s, dtype=torch.float64)
    process = Uniform(K)
    top = K * a_t * z * x + (a_t / a_s - a_t) * z + (a_s - a_t) * x
    top = top + (1 - a_t / a_s) * (1 - a_s) / K
    expected = top / (K * a_t * (z * x).sum(-1, keepdim=True) + 1 - a_t)
    torch.testing.assert_close(process.posterior(x.log(), zt, t, s).exp(), expected)

    bar, bar_theta = (K * a_t * v + 1 - a_t for v in (clean, x))
    bar_i, theta_i = (v.gather(-1, zt[:, None]) for v in (bar, bar_theta))
    inner = (bar / bar_i * torch.log(theta_i * bar / (bar_theta * bar_i))).sum(-1)
    terms = d_t / (K * a_t) * ((K / bar_i - K / theta_i)[:, 0] - inner)
    torch.testing.assert_close(process.nll(x.log(), x0, zt, t), terms)


def test_mixture_form_is_the_mixture():
    """A network that sees its own position: sum over x of q(z_s | z_t, x) p(x | z_t)."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(30, K, dtype=torch.float64, generator=generator)
    zt = torch.randint(0, K, (30,), generator=generator)
    t, s = torch.tensor(0.7, dtype=torch.float64), torch.tensor(0.2, dtype=torch.float64)
    process = Uniform(K, mixture=True)
    tokens = torch.arange(K).expand(30, K)
    each = process.true_posterior(tokens, zt[:, None].expand(30, K), t, s).exp()
    expected = (logits.softmax(-1)[..., None] * each).sum(1)
    torch.testing.assert_close(process.posterior(logits, zt, t, s).exp(), expected)


@pytest.mark.parametrize("name", ["masked", "uniform", "hybrid", "hybrid-flat"])
def test_many_steps_become_continuous_time(name):
    process = PROCESSES[name]
    x0, xt = all_pairs(process)
    logits = torch.randn(
        len(x0), K, dtype=torch.float64, generator=torch.Generator().manual_seed(5)
    )
    t, steps = torch.tensor(0.55, dtype=torch.float64), 200_000
    stepwise = steps * step_nll(process, logits, x0, xt, t, t - 1 / steps)
    torch.testing.assert_close(stepwise, process.nll(logits, x0, xt, t), atol=1e-4, rtol=1e-3)


def test_guidance():
    generator = torch.Generator().manual_seed(0)
    conditional, without = (
        torch.randn(7, K, dtype=torch.float64, generator=generator) for _ in range(2)
    )
    xt = torch.full((7,), K)
    t, s = torch.tensor(0.9, dtype=torch.float64), torch.tensor(0.4, dtype=torch.float64)
    for process, states in ((Masked(K, K), xt), (Uniform(K), xt % K), (Hybrid(K), xt)):
        off = process.guided_posterior(conditional, without, 0.0, states, t, s)
        assert torch.equal(off, process.posterior(conditional, states, t, s))
        on = process.guided_posterior(conditional, without, 0.8, states, t, s).exp()
        torch.testing.assert_close(on.sum(-1), torch.ones(7, dtype=torch.float64))
        same = process.guided_posterior(conditional, conditional, 0.8, states, t, s)
        torch.testing.assert_close(same.exp(), off.exp())
    # Uniform mixes log posteriors, which is not the posterior of mixed logits.
    posteriors = [Uniform(K).posterior(z, xt % K, t, s) for z in (conditional, without)]
    expected = (posteriors[1] + 1.8 * (posteriors[0] - posteriors[1])).softmax(-1)
    found = Uniform(K).guided_posterior(conditional, without, 0.8, xt % K, t, s).exp()
    torch.testing.assert_close(found, expected)
    mixed = Uniform(K).posterior(mix(conditional, without, 0.8), xt % K, t, s).exp()
    assert (found - mixed).abs().max() > 1e-3
    # Masked mixes logits: the chance to stay masked is untouched.
    masked = Masked(K, K).guided_posterior(conditional, without, 0.8, xt, t, s)
    torch.testing.assert_close(masked[:, K].exp(), torch.full((7,), 0.4 / 0.9, dtype=torch.float64))
    torch.testing.assert_close(mix(conditional, without, 1.0), 2 * conditional - without)


finite = st.floats(-1e4, 1e4)


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(sorted(PROCESSES)),
    t=st.one_of(st.sampled_from([0.0, 1.0, 1e-12, 1 - 1e-12]), st.floats(0, 1)),
    back=st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1)),
    scale=st.sampled_from([1.0, 100.0, 1e4]),
    seed=st.integers(0, 2**20),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@example(name="hybrid", t=1e-12, back=0.0, scale=100.0, seed=37, dtype=torch.float32)
def test_never_not_a_number(name, t, back, scale, seed, dtype):
    process = PROCESSES[name]
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.tensor(
        [i for i in range(process.num_states) if i != getattr(process, "mask_id", None)]
    )
    x0 = tokens[torch.randint(0, len(tokens), (8,), generator=generator)]
    xt = torch.randint(0, process.num_states, (8,), generator=generator)
    logits = (scale * torch.randn(8, process.num_states, generator=generator)).to(dtype)
    logits.requires_grad_()
    time, before = torch.tensor(t, dtype=dtype), torch.tensor(t * back, dtype=dtype)
    nll = process.nll(logits, x0, xt, time)
    assert not nll.isnan().any() and (nll >= 0).all()
    for found in (
        process.posterior(logits, xt, time, before),
        process.true_posterior(x0, xt, time, before),
        step_nll(process, logits, x0, xt, time, before),
    ):
        assert not found.isnan().any()
    stepwise = step_nll(process, logits, x0, xt, time, before)
    for value in (nll, stepwise):
        logits.grad = None
        value.clamp(max=1e6).sum().backward(retain_graph=True)
        assert not logits.grad.isnan().any()
    guided = process.guided_posterior(logits, -logits, 0.7, xt, time, before)
    assert not guided.isnan().any()


@pytest.mark.parametrize(
    "process", [Masked(K, K), Uniform(K), Hybrid(K)], ids=["masked", "uniform", "hybrid"]
)
def test_bad_input(process):
    x0, streams = torch.zeros(1, 2, dtype=torch.long), RowStreams.make(0, 1)
    for t in (-0.1, 1.5, math.nan):
        with pytest.raises(UserError, match="times run from"):
            process.corrupt(x0, torch.full((1, 1), t), streams)
    bad = x0 + K
    with pytest.raises(UserError, match="the clean tokens (hold the mask id 3|run from 3 to 3)"):
        process.corrupt(bad, torch.full((1, 1), 0.5), streams)
    with pytest.raises(UserError, match=r"a vocabulary of 1 token\(s\) has nothing to learn"):
        type(process)(*([1, 1] if isinstance(process, Masked) else [1]))


def test_hybrid_shares_that_cannot_be():
    with pytest.raises(UserError, match="share runs from 0.9 to 0.1, expected it to grow"):
        Hybrid(K, share_start=0.9, share_stop=0.1)
    with pytest.raises(UserError, match="uniform noise would have to vanish again"):
        Hybrid(K, GeometricSchedule(), share_start=0.0, share_stop=1.0)


def test_gaussian_posterior_composes():
    """Two steps back have the mean and the variance of one, for the true token's vector."""
    table = torch.randn(K, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    process = Gaussian(table, SigmoidSchedule(4.0, -4.0))
    sure = torch.tensor([50.0, 0.0, 0.0], dtype=torch.float64)
    zt = torch.tensor([0.3, -1.2], dtype=torch.float64)
    t, u, s = (torch.tensor(time, dtype=torch.float64) for time in (0.8, 0.5, 0.3))
    mean, deviation = process.posterior(sure, zt, t, s)
    mean_u, deviation_u = process.posterior(sure, zt, t, u)
    mean_s, deviation_s = process.posterior(sure, mean_u, u, s)
    moved, _ = process.posterior(sure, mean_u + 1.0, u, s)
    slope = (moved - mean_s)[0]
    torch.testing.assert_close(mean_s, mean)
    torch.testing.assert_close(deviation_s**2 + (slope * deviation_u) ** 2, deviation**2)


def test_gaussian_clamps_to_the_nearest_vector():
    table = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    process = Gaussian(table)
    logits = torch.tensor([[2.0, 1.9, -5.0]])
    assert torch.equal(process.denoise(logits, clamp=True), table[:1])
    zt, t, s = torch.zeros(1, 2), torch.tensor(0.6), torch.tensor(0.2)
    sure = torch.tensor([[60.0, 0.0, 0.0]])
    clamped, free = (process.posterior(logits, zt, t, s, clamp=clamp)[0] for clamp in (True, False))
    torch.testing.assert_close(clamped, process.posterior(sure, zt, t, s)[0])
    assert not torch.allclose(clamped, free)
    with pytest.raises(UserError, match="LinearSchedule has no noise at t = 0"):
        Gaussian(table, LinearSchedule())
    assert process.nearest(torch.tensor([[[-0.7, -2.0]]])).tolist() == [[2]]
    x0 = torch.zeros(2000, 3, dtype=torch.long)
    zt = process.corrupt(x0, torch.full((1, 1), 0.5), RowStreams.make(0, 2000))
    assert float(zt.mean((0, 1))[0]) == pytest.approx(0.5**0.5, abs=0.03)
    assert float(zt.std((0, 1))[1]) == pytest.approx(0.5**0.5, abs=0.03)

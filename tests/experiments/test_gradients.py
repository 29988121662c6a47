"""Gradients of expected rewards are exact, surrogates are what they say, draws and laws agree."""

from itertools import product

import pytest
import torch
from torch.func import functional_call

import unmask
from unmask.base.errors import UserError
from unmask.blocks.blocks import Finding
from unmask.blocks.tidy import select
from unmask.experiments.gradients.canvases import Lattice, pull_back
from unmask.experiments.gradients.laws import CanvasSampler, SamplerLaw
from unmask.experiments.gradients.measure import ORDERS
from unmask.experiments.gradients.policies import (
    FITTING,
    draw_policies,
    find_conditionals,
    find_jacobian,
    fit,
    make_small_network,
    measure_fit,
)
from unmask.experiments.gradients.scoring import draw_weights, score_surrogates, to_parameters
from unmask.experiments.gradients.surrogates import SURROGATES
from unmask.net.model import Blueprint, Model

SMALL = Lattice(tokens=2, length=3)


def make_law(
    order: str, each: int = 1, lattice: Lattice = SMALL, policy: str = "table", scale: float = 1.5
) -> SamplerLaw:
    logits = torch.stack([each for each, _ in draw_policies(policy, lattice, scale, (0, 1))])
    stream = torch.Generator().manual_seed(5)
    rewards = torch.randn(2, len(lattice.texts), generator=stream, dtype=torch.float64)
    return SamplerLaw(lattice, CanvasSampler(order, each), logits, rewards)


def list_choices(law: SamplerLaw, policy: int, canvas: list, proposal: dict) -> list[tuple]:
    """Which masks a step commits, with their chances: the sampler once more, in plain Python."""
    masks, each = list(proposal), law.sampler.each
    p = law.logits[policy, int(law.lattice.encode(torch.tensor(canvas)))].softmax(-1)
    if law.sampler.order == "random":
        sets = [x for x in product(masks, repeat=each) if list(x) == sorted(set(x))]
        return [(x, 1 / len(sets)) for x in sets]

    def rank(at: int) -> float:
        top = sorted(p[at].tolist(), reverse=True)
        return {
            "confidence": float(p[at, proposal[at]]),
            "entropy": sum(x * torch.tensor(x).log().item() for x in top),
            "margin": top[0] - top[1],
            "left": -at,
        }[law.sampler.order]

    return [(tuple(sorted(sorted(masks, key=rank)[-each:])), 1.0)]


def enumerate_gradient(law: SamplerLaw, policy: int) -> torch.Tensor:
    """The gradient in the logits as a sum over whole trajectories of p · reward · score."""
    lattice, total = law.lattice, torch.zeros_like(law.logits[policy])

    def go_on(canvas: list, chance: float, scores: list) -> None:
        masks = [i for i, token in enumerate(canvas) if token == lattice.mask]
        if not masks:
            number = int("".join(map(str, canvas)), lattice.tokens)
            for row, at, token in scores:
                own = -law.logits[policy, row, at].softmax(-1)
                own[token] += 1
                total[row, at] += chance * float(law.rewards[policy, number]) * own
            return
        row = int(lattice.encode(torch.tensor(canvas)))
        for tokens in product(range(lattice.tokens), repeat=len(masks)):
            proposal = dict(zip(masks, tokens, strict=True))
            own = chance
            for at, token in proposal.items():
                own *= float(law.logits[policy, row, at].softmax(-1)[token])
            replayed = [*scores, *((row, at, token) for at, token in proposal.items())]
            for committed, share in list_choices(law, policy, canvas, proposal):
                after = [proposal[i] if i in committed else x for i, x in enumerate(canvas)]
                go_on(after, own * share, replayed)

    go_on([lattice.mask] * lattice.length, 1.0, [])
    return total


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("each", (1, 3))
def test_the_exact_gradient_by_three_computations(order, each):
    """Score functions over canvases, autograd through a recursion, whole trajectories."""
    law = make_law(order, each)
    closed = pull_back(law.log_p, law.weigh_proposals())
    logits = law.logits.clone().requires_grad_()
    SamplerLaw(SMALL, law.sampler, logits, law.rewards).expected.sum().backward()
    assert torch.allclose(closed, logits.grad, atol=1e-12)
    for policy in range(2):
        assert torch.allclose(closed[policy], enumerate_gradient(law, policy), atol=1e-12)
    assert torch.allclose(law.texts.sum(-1), torch.ones(2).double(), atol=1e-12)
    # And as a difference of expected rewards, between the jumps.
    step = 1e-6 * torch.randn(logits.shape, generator=torch.Generator().manual_seed(1)).double()
    ends = [SamplerLaw(SMALL, law.sampler, law.logits + s * step, law.rewards) for s in (1, -1)]
    gap = (ends[0].expected - ends[1].expected) / 2
    assert torch.allclose(gap, (closed * step).flatten(1).sum(-1), rtol=1e-5, atol=1e-13)


def test_committed_tokens_are_enough_unless_their_proposals_choose_the_order():
    for order in ORDERS:
        law = make_law(order)
        whole, committed = (
            pull_back(law.log_p, weights)
            for weights in (law.weigh_proposals(), law.weigh_committed())
        )
        assert torch.allclose(whole, committed, atol=1e-12) == (order != "confidence")


def test_the_bound_is_exact_where_all_orders_agree():
    """A perfect model's texts are as likely in every order: then so are their orders, given one."""
    exact = {}
    for policy in ("language", "table"):
        law = make_law("random", policy=policy)
        own, bound = (
            pull_back(law.log_p, weights)
            for weights in (law.weigh_proposals(), SURROGATES["bound"].expect(law))
        )
        exact[policy] = torch.allclose(own, bound, atol=1e-12)
    assert exact == {"language": True, "table": False}


@pytest.mark.parametrize("sampler", (CanvasSampler("confidence"), CanvasSampler("random", 3)))
def test_single_estimates_have_the_expected_mean(sampler):
    law = make_law(sampler.order, sampler.each, scale=1.0)
    for name, surrogate in SURROGATES.items():
        drawn = draw_weights(law, name, 3000, torch.Generator().manual_seed(2))
        error = drawn.mean(1) - surrogate.expect(law)
        wide = drawn.std(1) / 3000**0.5
        # What is met once in a thousand draws has no normal error.
        assert (error.abs() < 5 * wide + 0.01).all(), name


def test_surrogates_that_must_agree_do():
    law = make_law("confidence")
    expected = {name: each.expect(law) for name, each in SURROGATES.items()}
    assert torch.allclose(expected["espo"], expected["bound"], atol=1e-12)
    assert torch.allclose(expected["agrpo"], expected["replay"], atol=1e-12)
    # One window over all steps is the mean field, but for the hidden prompts.
    whole = make_law("random", 3)
    window, field = (SURROGATES[name].expect(whole) for name in ("tracerl", "d1"))
    start = SMALL.start
    assert torch.allclose(window[:, start], field[:, start:].sum(1), atol=1e-12)
    # Of two rewards the sign is the difference.
    twos = SamplerLaw(SMALL, law.sampler, law.logits, (law.rewards > 0).double())
    assert torch.allclose(SURROGATES["vrpo"].expect(twos), SURROGATES["bound"].expect(twos))


@pytest.mark.parametrize("order", ("confidence", "random"))
def test_laws_are_those_of_the_sampler(order):
    """Frequencies of texts that the package draws from a network, beside their chances."""
    net = make_small_network(SMALL, torch.Generator().manual_seed(3))
    model = Model("policy", net, Blueprint(net.config, "masked", SMALL.mask))
    prompt, many = [SMALL.mask + 1, SMALL.mask + 2], 4000
    drawn = unmask.sample(
        model, [prompt] * many, steps=3, plan="linear", order=order, temperature=1.0, length=5
    )
    numbers = (drawn.tokens[:, 2:] * torch.tensor([4, 2, 1])).sum(-1)
    logits = net(_list_rows(net))[None, :, 2:].detach()
    law = SamplerLaw(SMALL, CanvasSampler(order), logits, torch.zeros(1, 8).double())
    gap = numbers.bincount(minlength=8) / many - law.texts[0]
    assert gap.abs().sum() / 2 < 0.03
    uniform = numbers.bincount(minlength=8) / many - 1 / 8
    assert uniform.abs().sum() / 2 > 0.1


def _list_rows(net) -> torch.Tensor:
    prompts = [[3, 4]] * SMALL.num_canvases + [[3, 2], [2, 4], [2, 2]]
    canvases = SMALL.canvases.tolist() + [[2, 2, 2]] * 3
    return torch.tensor([[*a, *b] for a, b in zip(prompts, canvases, strict=True)])


def test_networks_move_as_their_weights_do():
    net = make_small_network(SMALL, torch.Generator().manual_seed(3))
    jacobian, rows = find_jacobian(net, SMALL), _list_rows(net)
    rewards = torch.randn(1, 8, generator=torch.Generator().manual_seed(1)).double()
    weights = {name: each.detach().requires_grad_() for name, each in net.named_parameters()}
    logits = functional_call(net, weights, (rows,))[None, :, 2:]
    law = SamplerLaw(SMALL, CanvasSampler("confidence"), logits, rewards)
    law.expected.sum().backward()
    still = SamplerLaw(SMALL, law.sampler, logits.detach(), rewards)
    (moved,) = to_parameters(still, still.weigh_proposals(), [jacobian])
    assert torch.allclose(
        moved, torch.cat([each.grad.flatten() for each in weights.values()]), atol=1e-10
    )


def test_networks_learn_the_conditionals_of_a_language(monkeypatch):
    monkeypatch.setitem(FITTING, "steps", 30)
    stream = torch.Generator().manual_seed(0)
    wanted, net = find_conditionals(SMALL, 1.0, stream), make_small_network(SMALL, stream)
    rows = _list_rows(net)
    before = measure_fit(SMALL, net(rows)[:, 2:].detach(), wanted)
    fit([net], SMALL, [wanted])
    assert measure_fit(SMALL, net(rows)[:, 2:].detach(), wanted) < 0.3 * before


def test_columns_are_those_of_plain_formulas():
    law = make_law("confidence")
    exact = pull_back(law.log_p, law.weigh_proposals()).flatten(1)
    scored = dict(score_surrogates(law, [None, None], 400, 100, seed=1))
    assert torch.allclose(scored["proposals"]["cosine"], torch.ones(2).double())
    assert (scored["proposals"]["bias"] < 1e-12).all()
    own = pull_back(law.log_p, SURROGATES["d1"].expect(law)).flatten(1)
    cosine = torch.cosine_similarity(own, exact)
    assert torch.allclose(scored["d1"]["cosine"], cosine)
    assert torch.equal(scored["d1"]["wrong"], (cosine < 0).double())
    # More passes bring an unbiased estimate nearer, and one that is biased to its cosine.
    more = dict(score_surrogates(law, [None, None], 400, 10**9, seed=1))
    for name in SURROGATES:
        assert (more[name]["reached"].abs() >= scored[name]["reached"].abs() - 1e-9).all()
        assert torch.allclose(more[name]["reached"], more[name]["cosine"], atol=1e-3)


def test_the_measure_says_which_surrogates_are_exact(tmp_path):
    shared = {"number": 6, "scales": (1.0,), "tokens": 2, "length": 2, "each": (1,), "draws": 4}
    result = unmask.gradients(policies=("table",), out=tmp_path / "run", **shared)
    means = select(result.summary["means"], metric="cosine", policy="table")
    by = {(row["model"], row["sampler"]): row["mean"] for row in means}
    assert by["proposals", "confidence, 1 a step"] == pytest.approx(1.0)
    assert by["replay", "random, 1 a step"] == pytest.approx(1.0)
    assert by["replay", "confidence, 1 a step"] < 0.999
    first = result.section.blocks[0]
    assert isinstance(first, Finding) and "`proposals`" in first.text.partition(" exact")[0]
    with pytest.raises(UserError, match="expected a divisor of 'length' 3"):
        unmask.gradients(length=3)
    with pytest.raises(UserError, match=r"proposals, expected at most 10,000"):
        unmask.gradients(tokens=8)
    with pytest.raises(UserError, match="exact laws"):
        unmask.gradients("reversal-mdm")

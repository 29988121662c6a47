"""Mixtures of experts: the router by plain loops, keys that name their experts, and refusals."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import unmask
from tests.conftest import build, lively
from unmask import UserError
from unmask.editing.edit import get_down
from unmask.net.config import NetConfig
from unmask.net.mlp import Experts, multiply_by_group

SOFTMAX = unmask.preset("tiny-experts")
ROUTERS = {
    "softmax": SOFTMAX,
    "renormalised": replace(SOFTMAX, router_renorm=True, experts_per_token=4),
    "sigmoid": replace(SOFTMAX, router="sigmoid", router_bias=True, router_scale=0.5),
    "groups": unmask.preset("tiny-llada2"),
}


def make(config: NetConfig) -> tuple[Experts, torch.Tensor]:
    mlp = lively(config).block(config.layers - 1).mlp
    assert isinstance(mlp, Experts)
    x = torch.randn(3, 5, config.width, generator=torch.Generator().manual_seed(1))
    return mlp, x


def choose_plainly(mlp: Experts, x: torch.Tensor) -> dict[int, float]:
    """The weights of one token's experts, expert by expert."""
    config = mlp.config
    logits = [float(row @ x) for row in mlp.router.weight]
    if config.router == "softmax":
        scores = torch.tensor(logits).softmax(-1).tolist()
    else:
        scores = torch.tensor(logits).sigmoid().tolist()
    bias = mlp.choice_bias.tolist() if config.router_bias else [0.0] * mlp.number
    choice = {e: scores[e] + bias[e] for e in range(mlp.number)}
    if config.router_groups is not None:
        size = mlp.number // config.router_groups
        groups = [range(g * size, (g + 1) * size) for g in range(config.router_groups)]
        ranked = sorted(groups, key=lambda group: -sum(sorted(choice[e] for e in group)[-2:]))
        kept = {e for group in ranked[: config.router_top_groups] for e in group}
        choice = {e: value for e, value in choice.items() if e in kept}
    chosen = sorted(choice, key=lambda e: -choice[e])[: config.experts_per_token]
    total = sum(scores[e] for e in chosen) if config.router_renorm else 1.0
    return {e: scores[e] / total * config.router_scale for e in chosen}


@pytest.mark.parametrize("name", ROUTERS)
def test_a_mixture_is_its_sum_by_plain_loops(name):
    mlp, x = make(ROUTERS[name])
    expected = torch.zeros_like(x)
    for row, column in torch.cartesian_prod(torch.arange(3), torch.arange(5)).tolist():
        token = x[row, column]
        for e, weight in choose_plainly(mlp, token).items():
            inner = F.silu(mlp.gates[e] @ token) * (mlp.ups[e] @ token)
            expected[row, column] += weight * (mlp.downs[e] @ inner)
        if mlp.shared is not None:
            expected[row, column] += mlp.shared.down(mlp.shared(token))
    torch.testing.assert_close(mlp.add(x), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ROUTERS)
def test_a_key_names_its_experts(name):
    mlp, x = make(ROUTERS[name])
    key = mlp(x)
    assert key.shape[-1] == mlp.config.key_width(mlp.config.layers - 1)
    by_expert, shared = mlp.split(key)
    used = (by_expert != 0).any(-1)
    for row, column in torch.cartesian_prod(torch.arange(3), torch.arange(5)).tolist():
        chosen = set(used[row, column].nonzero()[:, 0].tolist())
        assert chosen == set(choose_plainly(mlp, x[row, column]))
    assert shared.shape[-1] == (mlp.config.shared_width or 0)
    assert torch.equal(mlp.down(key), mlp.add(x))  # to the last bit


def test_what_is_added_is_linear_in_the_key():
    """A patch may write anywhere, and gradients reach experts that were not chosen."""
    mlp, x = make(ROUTERS["groups"])
    key = mlp(x)
    other = torch.randn(key.shape, generator=torch.Generator().manual_seed(2))
    both = mlp.down(key) + mlp.down(other)
    torch.testing.assert_close(mlp.down(key + other), both, atol=1e-4, rtol=1e-4)
    leaf = key.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(mlp.down(leaf)[0, 0, 7], leaf)
    torch.testing.assert_close(mlp.split(gradient)[0][0, 0], mlp.downs[:, 7])


@pytest.mark.gpu
def test_groups_of_rows_in_one_kernel():
    """On a GPU in bfloat16, groups without rows among them."""
    generator = torch.Generator("cuda").manual_seed(3)
    x = torch.randn(70, 64, generator=generator, device="cuda").bfloat16()
    matrices = torch.randn(4, 24, 64, generator=generator, device="cuda").bfloat16()
    counts = torch.tensor([0, 41, 0, 29], device="cuda")
    with torch.no_grad():
        product = multiply_by_group(x, matrices, counts)
    expected = torch.cat((x[:41] @ matrices[1].T, x[41:] @ matrices[3].T))
    torch.testing.assert_close(product, expected, atol=0.1, rtol=0.02)


def test_learning_moves_the_router_and_the_chosen_experts():
    mlp, x = make(ROUTERS["groups"])
    mlp.requires_grad_()
    mlp.add(x).square().mean().backward()
    experts, _ = mlp.route(x.flatten(0, 1))
    chosen = sorted(set(experts.flatten().tolist()))
    gates, router = mlp.gates.grad, mlp.router.weight.grad
    assert gates is not None and router is not None and bool(router.any())
    assert gates.flatten(1).any(1).nonzero()[:, 0].tolist() == chosen


def test_edits_go_into_dense_layers():
    model = build("tiny-llada2")
    config = model.net.config
    assert get_down(model, 0).weight.shape == (config.width, config.mlp_width)
    with pytest.raises(UserError, match="layer 1 of .* has no single down projection"):
        get_down(model, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experts": None}, "'experts_per_token' is 3, but there are no 'experts'"),
        ({"experts_per_token": 5}, "'experts_per_token' is 5, to be chosen among 4"),
        ({"router_groups": 8}, "'router_groups' 8 do not hold two or more each of 8"),
        ({"router_top_groups": 5}, "'router_top_groups' is 5, but there are 4"),
        ({"router_groups": None}, "'router_groups' and 'router_top_groups' need each other"),
        ({"mlp": "gelu"}, "'experts' need 'mlp' \"swiglu\""),
        ({"dense_layers": 9}, "'dense_layers' is 9, expected 0 to 3"),
    ],
)
def test_settings_that_do_not_fit(changes, message):
    with pytest.raises(UserError, match=message):
        replace(ROUTERS["groups"], **changes)

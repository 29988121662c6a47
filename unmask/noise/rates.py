"""The continuous-time bound of processes that mix a token with a fixed distribution.

At time t such a process is q(j | x) = alpha [j = x] + floor_j, with a floor that is the same for
all tokens. A state i is entered at the rate rho_i from anywhere. For a network that predicts
x_theta, with q_theta(j) = alpha x_theta(j) + floor_j, the bound's integrand at z_t = i is (Campbell
et al. 2022, arXiv 2205.14987, applied to these rates)

    rho_i [ 1/q_theta(i) - 1/q(i) + ( KL(q || q_theta) + log(q_theta(i) / q(i)) ) / q(i) ].

For uniform noise this is UDLM's equation (Schiff et al. 2024, arXiv 2412.10193), for mixed noise
GIDD's (von Rütte et al. 2025, arXiv 2503.04482). The KL needs, beside two gathers, only the sum
over the vocabulary of log q_theta, as DUO computes it (Sahoo et al. 2025, arXiv 2506.10892).
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

_LEAST = 1e-12
"""Below this a probability stands for 0, so that no logarithm or quotient is infinite."""


def bound_rate(
    logits: Float[Tensor, "*S V"],
    x0: Int[Tensor, "*S"],
    zt: Int[Tensor, "*S"],
    alpha: Tensor,
    token_floor: Tensor,
    state_floor: Tensor,
    rate: Tensor,
) -> Float[Tensor, "*S"]:
    """The integrand, in nats per token; `state_floor` and `rate` are the floor and rho of z_t.

    `logits` are of the tokens alone, up to a constant; a z_t past them is the mask.
    """
    alpha, token_floor, state_floor, rate = (
        x.double() for x in (alpha, token_floor, state_floor, rate)
    )
    floor = token_floor.clamp(min=_LEAST)
    alpha = alpha.clamp(min=_LEAST)
    is_token = zt < logits.shape[-1]
    # Over the vocabulary in the network's own dtype, what remains in float64.
    scale = (alpha / floor).to(logits.dtype)
    sums = _Sums.apply(logits.softmax(-1), scale, x0, torch.where(is_token, zt, 0))
    raised, theta_x0, theta_i = (each.double() for each in sums)
    # KL = sum_j q_j log(q_j / q_theta_j): floor everywhere, alpha more at x0.
    kl = alpha * torch.log1p(alpha / floor) - floor * raised
    kl = kl - alpha * torch.log1p(alpha * theta_x0 / floor) + floor * torch.log1p(alpha / floor)

    theta_i = torch.where(is_token, theta_i, 0.0)
    here = state_floor.clamp(min=_LEAST)
    q_i, q_theta_i = here + alpha * (zt == x0), here + alpha * theta_i
    terms = (q_i - q_theta_i) / (q_theta_i * q_i) + (kl + torch.log(q_theta_i / q_i)) / q_i
    return (rate * terms).clamp(min=0).to(logits.dtype)


class _Sums(torch.autograd.Function):
    """The sum of log(1 + scale p) over probabilities p [*S, V], and p at two indices.

    As one function it keeps p alone, and its gradient is written once: torch's own operations keep
    three tensors as wide as the vocabulary and write ten.
    """

    @staticmethod
    def forward(
        ctx: Any, p: Tensor, scale: Tensor, first: Tensor, second: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(p, scale, first, second)
        one, other = (p.gather(-1, at[..., None])[..., 0] for at in (first, second))
        return (p * scale[..., None]).log1p_().sum(-1), one, other

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        p, scale, first, second = ctx.saved_tensors
        grad_sum, grad_first, grad_second = (grad[..., None] for grad in grad_outputs)
        grad = torch.addcmul(p.new_ones(()), p, scale[..., None])
        torch.div(grad_sum * scale[..., None], grad, out=grad)
        grad.scatter_add_(-1, first[..., None], grad_first)
        grad.scatter_add_(-1, second[..., None], grad_second)
        return grad, None, None, None


def uniform_score_entropy(
    outputs: Float[Tensor, "*S V"],
    x0: Int[Tensor, "*S"],
    zt: Int[Tensor, "*S"],
    alpha: Tensor,
    floor: Tensor,
    rate: Tensor,
) -> Float[Tensor, "*S"]:
    """SEDD's integrand for uniform noise (Lou et al. 2023, arXiv 2310.16834), nats per token.

    rate times the sum over y other than z_t of s_y - r_y log s_y + r_y log r_y - r_y, where
    r_y = q(y | x0) / q(z_t | x0) and log s_y is the output at y less the one at z_t, so that the
    outputs may be shifted. `rate` is that of moving to one other token, -alpha' / (alpha V). Where
    the outputs are log q_theta it is `bound_rate`.
    """
    alpha, floor, rate = (x.double() for x in (alpha, floor, rate))
    own, number = outputs.gather(-1, zt[..., None])[..., 0], outputs.shape[-1]
    here = floor.clamp(min=_LEAST) + alpha * (zt == x0)
    low, high = floor / here, (floor + alpha) / here  # r_y of any other token, and of x0
    # 1. Sums over all tokens; z_t itself has s = 1 and log s = 0.
    total = (outputs.logsumexp(-1) - own).double().exp() - 1
    logs = (outputs.sum(-1) - number * own).double()
    at_x0 = (outputs.gather(-1, x0[..., None])[..., 0] - own).double()
    # 2. r is low at V - 1 tokens, or at V - 2 and high at x0.
    moved = zt != x0
    constant = (number - 1 - moved.double()) * _entropy_term(low)
    constant = constant + torch.where(moved, _entropy_term(high), 0.0)
    terms = total - low * logs - torch.where(moved, high - low, 0.0) * at_x0 + constant
    return (rate * terms).clamp(min=0).to(outputs.dtype)


def _entropy_term(ratio: Tensor) -> Tensor:
    return torch.special.xlogy(ratio, ratio) - ratio

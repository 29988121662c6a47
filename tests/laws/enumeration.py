"""A language small enough to write down: every text, every noised state, every probability."""

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from unmask.noise.hybrid import Hybrid
from unmask.noise.masked import Masked
from unmask.noise.process import step_nll
from unmask.noise.schedules import BumpSchedule
from unmask.noise.uniform import Uniform

Network = Callable[[float], Tensor]
"""Time to logits [states, L, K] at every noised state."""


class Language:
    """A random law over all texts of `length` tokens out of `num_tokens`, noised by a process."""

    def __init__(self, process: Masked | Uniform | Hybrid, length: int, seed: int = 0):
        self.process, self.length = process, length
        self.num_tokens = process.num_tokens
        self.texts = torch.tensor(list(product(range(self.num_tokens), repeat=length)))
        self.states = torch.tensor(list(product(range(process.num_states), repeat=length)))
        self.generator = torch.Generator().manual_seed(seed)
        draws = torch.rand(len(self.texts), generator=self.generator, dtype=torch.float64)
        self.law = draws.pow(2) / draws.pow(2).sum()

    def marginal(self, t: float) -> Tensor:
        """q(state | token) [K, N] at t, written down anew for each process."""
        process, time = self.process, torch.tensor(t, dtype=torch.float64)
        alpha = float(process.schedule.alpha(time).detach())
        noise = torch.zeros(process.num_states, dtype=torch.float64)
        if isinstance(process, Masked):
            noise[process.mask_id] = 1.0
        elif isinstance(process, Uniform):
            noise[:] = 1 / self.num_tokens
        elif isinstance(process, Hybrid):
            share = process.share_start + (process.share_stop - process.share_start) * t
            if isinstance(process.schedule, BumpSchedule):
                p = process.schedule.p_uniform
                share = t / (t + 2 * p / (1 - p) * (t * (1 - t)) ** 0.5)
            noise[: self.num_tokens] = (1 - share) / self.num_tokens
            noise[process.mask_id] = share
        clean = torch.eye(self.num_tokens, process.num_states, dtype=torch.float64)
        return alpha * clean + (1 - alpha) * noise

    def noised(self, t: float) -> Tensor:
        """q(state | text) [texts, states] at t."""
        q = self.marginal(t)
        return torch.stack(
            [q[self.texts[:, i]][:, self.states[:, i]] for i in range(self.length)]
        ).prod(0)

    def oracle(self, t: float) -> Tensor:
        """log p(x0_l | all noised positions but l) [states, L, K]: the optimum of every bound."""
        q = self.marginal(t)
        each = torch.stack([q[self.texts[:, i]][:, self.states[:, i]] for i in range(self.length)])
        found = torch.zeros(len(self.states), self.length, self.num_tokens, dtype=torch.float64)
        for i in range(self.length):
            others = each[[j for j in range(self.length) if j != i]].prod(0) * self.law[:, None]
            for token in range(self.num_tokens):
                found[:, i, token] = others[self.texts[:, i] == token].sum(0)
        return found.clamp(min=1e-300).log()

    def random_network(self) -> Network:
        """Logits drawn once for every state, whatever the time."""
        shape = (len(self.states), self.length, self.num_tokens)
        table = 1.5 * torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return lambda t: table

    def pair_up(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, clean and noised tokens of every (text, state) pair."""
        pairs = (len(self.texts), len(self.states), self.length)
        x0 = self.texts[:, None].expand(pairs)
        xt = self.states[None].expand(pairs)
        return logits[None].expand(*pairs, -1), x0, xt

    def bound(self, network: Network, nodes: int = 200) -> Tensor:
        """The continuous-time bound of every text, by enumeration and Gauss-Legendre quadrature."""
        total = torch.zeros(len(self.texts), dtype=torch.float64)
        for t, weight in quadrature(nodes):
            logits, x0, xt = self.pair_up(network(t))
            time = torch.tensor(t, dtype=torch.float64)
            terms = self.process.nll(logits, x0, xt, time).sum(-1)
            seen = self.noised(t)
            total += weight * torch.where(seen > 0, seen * terms, 0.0).sum(-1)
        return total

    def bound_steps(self, network: Network, steps: int) -> Tensor:
        """D3PM's bound of every text in `steps` steps."""
        total = torch.zeros(len(self.texts), dtype=torch.float64)
        for k in range(1, steps + 1):
            t, s = (torch.tensor(x / steps, dtype=torch.float64) for x in (k, k - 1))
            logits, x0, xt = self.pair_up(network(k / steps))
            terms = step_nll(self.process, logits, x0, xt, t, s).sum(-1)
            seen = self.noised(k / steps)
            total += torch.where(seen > 0, seen * terms, 0.0).sum(-1)
        return total

    def reverse(self, network: Network, steps: int) -> Tensor:
        """The law of texts that `steps` ancestral steps draw, by exact matrix products."""
        index = {tuple(state): i for i, state in enumerate(self.states.tolist())}
        now = self.prior()
        for k in range(steps, 0, -1):
            t, s = (torch.tensor(x / steps, dtype=torch.float64) for x in (k, k - 1))
            logp = self.process.posterior(network(k / steps), self.states, t, s)
            each = [logp[:, i].exp()[:, self.states[:, i]] for i in range(self.length)]
            now = now @ torch.stack(each).prod(0)
        return torch.stack([now[index[tuple(text)]] for text in self.texts.tolist()])

    def prior(self) -> Tensor:
        """The law of states at t = 1; the schedules used here leave nothing of the token."""
        return self.noised(1.0)[0]


def quadrature(nodes: int) -> list[tuple[float, float]]:
    """Nodes and weights on [0, 1], crowded at both ends where the integrands bend."""
    import numpy as np

    x, w = np.polynomial.legendre.leggauss(nodes)
    u, w = (x + 1) / 2, w / 2
    # t = u^2 (3 - 2u) has a vanishing slope at 0 and at 1.
    t, slope = u**2 * (3 - 2 * u), 6 * u * (1 - u)
    return [(float(a), float(b)) for a, b in zip(t, w * slope, strict=True)]

"""How near each surrogate's gradient is to the exact one, expected and in single estimates.

Gradients are compared in the parameters. What is expected is exact; how much single estimates vary
is measured on draws. At equal passes an estimate is the mean of as many as they pay for, the steps
that draw its texts included.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.base.seeds import torch_stream
from unmask.experiments.gradients.canvases import Lattice, pull_back, sum_weights
from unmask.experiments.gradients.laws import CanvasSampler, SamplerLaw
from unmask.experiments.gradients.policies import draw_policies
from unmask.experiments.gradients.surrogates import SURROGATES
from unmask.experiments.gradients.walks import walk

LEAST = 1e-30
"""Added where a length may be 0."""


def score_policies(
    policy: str,
    scale: float,
    lattice: Lattice,
    samplers: Sequence[CanvasSampler],
    seeds: Sequence[int],
    draws: int,
    passes: int,
) -> Iterator[dict[str, Any]]:
    """A row for each policy of these seeds, sampler and surrogate."""
    made = draw_policies(policy, lattice, scale, seeds)
    logits = torch.stack([logits for logits, _ in made])
    jacobians = [jacobian for _, jacobian in made]
    streams = [torch_stream(seed, "rewards", scale) for seed in seeds]
    rewards = torch.stack([
        torch.randn(len(lattice.texts), generator=stream, dtype=torch.float64)
        for stream in streams
    ])  # fmt: skip
    for sampler in samplers:
        law = SamplerLaw(lattice, sampler, logits, rewards)
        scored = score_surrogates(law, jacobians, draws, passes, seeds[0])
        for name, columns in scored:
            for number, seed in enumerate(seeds):
                yield {
                    "model": name, "policy": policy, "scale": scale, "sampler": sampler.name,
                    "fact": str(seed), "seed": 0,
                    **{key: float(values[number]) for key, values in columns.items()},
                }  # fmt: skip


def score_surrogates(
    law: SamplerLaw,
    jacobians: Sequence[Float[Tensor, "Q P"] | None],
    draws: int,
    passes: int,
    seed: int = 0,
) -> Iterator[tuple[str, dict[str, Float[Tensor, "N"]]]]:
    """The columns of each surrogate, a value for each policy."""
    exact = to_parameters(law, law.weigh_proposals(), jacobians)
    length = [each.norm() for each in exact]
    steps = law.sampler.steps(law.lattice)
    for name, surrogate in SURROGATES.items():
        stream = torch_stream(seed, name, law.sampler.name, draws)
        own = to_parameters(law, surrogate.expect(law), jacobians)
        squares = find_squares(law, name, jacobians, draws, stream)
        cost = surrogate.texts * steps + surrogate.count_passes(steps)
        columns: dict[str, list[Tensor]] = {
            key: [] for key in ("cosine", "wrong", "bias", "noise", "reached")
        }
        for truth, size, mean, square in zip(exact, length, own, squares, strict=True):
            along, whole = mean @ truth, mean @ mean
            spread_out = (square - whole).clamp(min=0)
            near = along / (size * (whole + spread_out * cost / passes).sqrt() + LEAST)
            columns["cosine"].append(along / (size * whole.sqrt() + LEAST))
            columns["wrong"].append((along < 0).double())
            columns["bias"].append((mean - truth).norm() / (size + LEAST))
            columns["noise"].append(spread_out.sqrt() / (size + LEAST))
            columns["reached"].append(near)
        yield name, {key: torch.stack(values) for key, values in columns.items()}


def to_parameters(
    law: SamplerLaw,
    weights: Float[Tensor, "N R L V"],
    jacobians: Sequence[Float[Tensor, "Q P"] | None],
) -> list[Float[Tensor, "P"]]:
    """Gradients in the parameters of sums of weighted log-probabilities."""
    pulled = pull_back(law.log_p, weights).flatten(1)
    return [
        row if jacobian is None else row @ jacobian
        for row, jacobian in zip(pulled, jacobians, strict=True)
    ]


def find_squares(
    law: SamplerLaw,
    name: str,
    jacobians: Sequence[Float[Tensor, "Q P"] | None],
    draws: int,
    stream: torch.Generator,
) -> list[Float[Tensor, ""]]:
    """The mean squared length of single estimates, for each policy."""
    drawn = draw_weights(law, name, draws, stream)
    squares = []
    for log_p, weights, jacobian in zip(law.log_p, drawn, jacobians, strict=True):
        pulled = pull_back(log_p.expand_as(weights), weights).flatten(1)
        if jacobian is not None:
            met = pulled.any(0)  # most rows are met by no draw
            pulled = pulled[:, met].float() @ jacobian[met].float()
        squares.append(pulled.square().sum(-1).double().mean())
    return squares


def draw_weights(
    law: SamplerLaw, name: str, draws: int, stream: torch.Generator
) -> Float[Tensor, "N M R L V"]:
    """Single estimates as weights of log-probabilities."""
    surrogate, lattice = SURROGATES[name], law.lattice
    walks = walk(law, draws * surrogate.texts, stream)
    total = torch.zeros(())
    for rows, tokens, weights in surrogate.draw(law, walks, stream):
        apart = (part.flatten(0, 1)[:, None] for part in (rows, tokens, weights))
        total = total + sum_weights(lattice, *apart)
    return total.view(len(law.log_p), draws, *total.shape[1:])

"""Texts drawn from policies, with every canvas on the way, what is proposed and committed."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.experiments.gradients.laws import SamplerLaw


@dataclass(frozen=True)
class Walks:
    """M texts of each of N policies, step by step."""

    canvases: Int[Tensor, "T N M"]
    """The code of the canvas that each step reads."""
    masked: Bool[Tensor, "T N M L"]
    """Where it has masks."""
    drawn: Int[Tensor, "T N M L"]
    """What is proposed there."""
    chosen: Bool[Tensor, "T N M L"]
    """What is committed."""
    texts: Int[Tensor, "N M L"]
    numbers: Int[Tensor, "N M"]
    """Which text of the lattice it is."""
    advantages: Float[Tensor, "N M"]


def walk(law: SamplerLaw, number: int, generator: torch.Generator) -> Walks:
    """So many texts of each policy, drawn as the law's sampler draws them."""
    lattice, sampler = law.lattice, law.sampler
    policies = torch.arange(len(law.log_p))[:, None]
    rows = torch.full((len(policies), number, lattice.length), lattice.mask)
    steps: list[tuple[Tensor, ...]] = []
    for _ in range(sampler.steps(lattice)):
        codes, open_ = lattice.encode(rows), rows == lattice.mask
        own = law.log_p[policies, codes]  # [N, M, L, V]
        proposed = torch.multinomial(own.flatten(0, -2).exp(), 1, generator=generator)
        drawn = torch.where(open_, proposed.view(rows.shape), rows)
        if sampler.order == "random":
            places = torch.rand(rows.shape, generator=generator).masked_fill(~open_, -1.0)
            first = places.topk(sampler.each, dim=-1).indices
            chosen = torch.zeros_like(open_).scatter(-1, first, True)
        else:
            chosen = sampler.choose(own, drawn, open_)
        steps.append((codes, open_, drawn, chosen))
        rows = torch.where(chosen, drawn, rows)
    powers = lattice.tokens ** torch.arange(lattice.length - 1, -1, -1)
    numbers = (rows * powers).sum(-1)
    advantages = law.advantages.gather(1, numbers)
    parts = [torch.stack(part) for part in zip(*steps, strict=True)]
    return Walks(parts[0], parts[1], parts[2], parts[3], rows, numbers, advantages)

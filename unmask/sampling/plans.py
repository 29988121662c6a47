"""Plans: how many tokens of a row are committed at each step.

A plan sees, for every row, the masks left in the current block, those at the block's start, and the
step within the block; it returns a count for every row.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.base.errors import UserError, suggest

Plan = Callable[[Tensor, Tensor, int, int], Tensor]
"""(masks left [B], masks at the start [B], step from 1, steps) to how many to commit [B]."""


def plan_smdm(
    left: Int[Tensor, "B"], start: Int[Tensor, "B"], step: int, steps: int
) -> Int[Tensor, "B"]:
    """SMDM's greedy sampler: int(left (1 - s/t)) on times from 1 to 1e-5, the rest at the end.

    In float32, as the peer computes it: the truncation sees its rounding.
    """
    if step == steps:
        return left
    times = torch.linspace(1, 1e-5, steps + 1)
    share = 1 - times[step] / times[step - 1]
    return (left * share.to(left.device)).long()


def plan_llada(
    left: Int[Tensor, "B"], start: Int[Tensor, "B"], step: int, steps: int
) -> Int[Tensor, "B"]:
    """LLaDA's: even shares, the first steps one more."""
    return start // steps + (step <= start % steps).long()


def plan_linear(
    left: Int[Tensor, "B"], start: Int[Tensor, "B"], step: int, steps: int
) -> Int[Tensor, "B"]:
    """As many as bring the masks down in a straight line."""
    return left - start * (steps - step) // steps


def plan_cosine(
    left: Int[Tensor, "B"], start: Int[Tensor, "B"], step: int, steps: int
) -> Int[Tensor, "B"]:
    """As many as bring the masks down along a cosine: few at first, many at the end (MaskGIT)."""
    stay = 0.0 if step == steps else math.cos(math.pi / 2 * step / steps)
    return left - (start * stay).long()


def plan_one(
    left: Int[Tensor, "B"], start: Int[Tensor, "B"], step: int, steps: int
) -> Int[Tensor, "B"]:
    """One at a time."""
    return left.clamp(max=1)


PLANS: dict[str, Plan] = {
    "smdm": plan_smdm,
    "llada": plan_llada,
    "linear": plan_linear,
    "cosine": plan_cosine,
    "one": plan_one,
}


def get_plan(name: str) -> Plan:
    """The plan of that name."""
    if name not in PLANS:
        raise UserError(f"plan {name!r} is unknown: {suggest(name, PLANS)}")
    return PLANS[name]

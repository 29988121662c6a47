"""Steps with known predictions, for tests of orders, plans and remaskings."""

import torch
from torch import Tensor

from unmask.sampling.state import Predictions, StepState, StepTimes
from unmask.sampling.trajectory import Trajectory

V = 40
"""Rows of the shared model's embedding; the last is its mask's."""


def make_state(
    open_: Tensor,
    p: Tensor,
    step: int = 1,
    steps: int = 1,
    start: int = 0,
    last: Predictions | None = None,
) -> StepState:
    """A step whose open positions are predicted by the rows of `p`; the likeliest are proposed."""
    predictions = Predictions(open_, p.log())
    return StepState(
        tokens=torch.zeros(open_.shape, dtype=torch.long),
        proposed=predictions.spread(p.argmax(-1), 0), written=torch.zeros_like(open_),
        written_confidence=torch.ones(open_.shape, dtype=torch.float64), step=step, steps=steps,
        num_start=torch.full((len(open_),), start), times=StepTimes.at(step, steps),
        remask_rate=0.0, predictions=predictions, last=last,
    )  # fmt: skip


def same(one: Trajectory, other: Trajectory) -> bool:
    """Whether two runs are alike to the bit."""
    names = ("tokens", "states", "committed_at", "confidence", "entropy")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)

"""`unmask.steer`: a direction added to the states of a site, at chosen steps of a sampler.

    x ← x + strength · direction,  in the steps of the schedule

A schedule is all steps, the early or the late half of them, or the steps that are named, such as
those in which a feature forms (`find_forming_steps`). Each step of a schedule adds as much:
schedules that differ in how many steps they have are compared at equal strength · number of steps,
as `unmask steer` does.
"""

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from unmask.base.config import check_values
from unmask.base.errors import UserError
from unmask.net.model import Model
from unmask.net.sites import PatchContext
from unmask.sampling.canvas import check_model

StepSchedule = Literal["all", "early", "late"]


def choose_steps(schedule: StepSchedule | Collection[int], steps: int) -> frozenset[int]:
    """The steps, counted from 1, at which something is added, of a sampler that takes so many.

    >>> from unmask.dictionaries.steering import choose_steps
    >>> sorted(choose_steps("early", 5)), sorted(choose_steps("late", 5))
    ([1, 2], [3, 4, 5])
    """
    half = steps // 2
    named = {"all": range(1, steps + 1), "early": range(1, half + 1)}
    named["late"] = range(half + 1, steps + 1)
    if isinstance(schedule, str) and schedule not in named:
        raise UserError(
            f"the schedule is {schedule!r:.60}: expected all, early, late, or numbers of steps."
        )
    chosen = frozenset(named[schedule] if isinstance(schedule, str) else schedule)
    if not chosen or not chosen <= frozenset(range(1, steps + 1)):
        raise UserError(
            f"the schedule {schedule!r:.60} names no steps, or others than 1 to {steps}: give some "
            "of these, or more steps."
        )
    return chosen


@contextmanager
def steer(
    model: Model,
    site: str,
    direction: Tensor,
    strength: float = 1.0,
    *,
    steps: int,
    schedule: StepSchedule | Collection[int] = "all",
    masked_only: bool = False,
) -> Generator[None]:
    """Inside the block, a sampler's steps have a direction added to their states.

    Args:
        model: Masked or causal; a causal model's steps are the tokens that it writes.
        site: A site whose states have as many numbers as the direction, such as
            "layers.2.resid_out".
        direction: What is added [D], such as `dictionary.w_dec[17]`: a feature's direction.
        strength: How many times it is added; below 0 it is taken away.
        steps: How many steps the sampler takes.
        schedule: "all", "early" (the first half), "late" (the second), or numbers of steps from 1.
        masked_only: Only at positions that hold a mask.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> direction = torch.ones(256)
    >>> with unmask.steer(model, "layers.2.resid_out", direction, 0.5, steps=4, schedule="early"):
    ...     drawn = unmask.sample(model, "We sat down", steps=4, length=8)
    """
    check_model(model)
    given = {"site": site, "strength": strength, "steps": steps, "masked_only": masked_only}
    hints = {"site": str, "strength": float, "steps": int, "masked_only": bool}
    if problems := check_values(given, hints, steps=(1, 1_000_000)):
        raise UserError(f"steer: {'; '.join(problems)}.")
    if not isinstance(direction, Tensor) or direction.ndim != 1:
        raise UserError("the direction is no vector: expected a tensor of one axis.")
    if not isinstance(schedule, str | Collection):
        raise UserError(f"the schedule is {schedule!r:.60}: expected all, early, late, or steps.")
    chosen = choose_steps(schedule, steps)
    if masked_only:
        model.require_mask()

    def add(x: Tensor, context: PatchContext) -> Tensor:
        if x.shape[-1] != len(direction) or x.ndim != 3:
            raise UserError(
                f"the direction has {len(direction)} numbers, and the states at {site} have the "
                f"shape {list(x.shape)}: expected a state of as many at each position."
            )
        added = (strength * direction.to(x.device)).to(x.dtype)
        if not masked_only:
            return x + added
        assert context.open is not None
        return torch.where(context.open[..., None], x + added, x)

    with model.net.patch({site: add}, steps=chosen):
        yield


def find_forming_steps(
    life: Sequence[Mapping[str, Any]], feature: int, least: float = 0.5
) -> list[int]:
    """The steps in which a feature forms: those by which it comes to fire more often.

    Args:
        life: Rows of `unmask features`, table `life`.
        feature: Which one.
        least: What share of its most they bring together.
    """
    fires = {
        row["step"]: (row["fires_masked"] + row["fires_written"])
        for row in life
        if row["feature"] == feature
    }
    if not max(fires.values(), default=0):
        raise UserError(f"feature {feature} fires at no step: expected one that does.")
    return choose_forming_steps(fires, least)


def choose_forming_steps(values: Mapping[int, float], least: float = 0.5) -> list[int]:
    """The fewest steps whose rises make up this share of the largest value, the largest first.

    What rises nowhere forms in the first step.

    >>> from unmask.dictionaries.steering import choose_forming_steps
    >>> choose_forming_steps({1: 0.0, 2: 1.0, 3: 4.0, 4: 6.0, 5: 5.0})
    [3]
    >>> choose_forming_steps({1: 0.0, 2: 1.0, 3: 4.0, 4: 6.0, 5: 5.0}, least=0.75)
    [3, 4]
    """
    steps, before, rises = sorted(values), 0.0, {}
    for step in steps:
        rises[step] = values[step] - before
        before = values[step]
    chosen: list[int] = []
    for step in sorted(steps, key=lambda step: -rises[step]):
        if rises[step] <= 0 or sum(rises[each] for each in chosen) >= least * max(values.values()):
            break
        chosen.append(step)
    return sorted(chosen) or steps[:1]

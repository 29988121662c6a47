"""Plans: how many tokens of a row are committed at each step."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.base.choices import make_choice, refuse_type
from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.sampling.guess import Guess
from unmask.sampling.times import Times

Count = Int[Tensor, "B"]


@dataclass(frozen=True)
class Stage:
    """What a plan sees of a step, row by row."""

    left: Count
    """Masks left in the block."""
    start: Count
    """Masks at the block's start."""
    step: int
    """Within the block, from 1."""
    steps: int
    """Of the block; the last one commits whatever is left."""
    guess: Guess
    times: Times
    rate: float
    """The chance that a written token is masked again, where it is the same for all."""
    streams: RowStreams
    """The plan's own at this step."""


@dataclass(frozen=True)
class Plan:
    """How many masks of each row become tokens, [B]."""

    count: Callable[[Stage], Count]
    keeps_schedule: bool = True
    """The counts lead to a number of masks left: as many more are committed as are remasked."""
    paces_itself: bool = False
    """Goes on until no mask is left, at most a step per mask; `steps` is not for it."""


def plan_smdm(stage: Stage) -> Count:
    """SMDM's greedy sampler: int(left (1 - s/t)) on times from 1 to 1e-5, the rest at the end.

    In float32, as the peer computes it: the truncation sees its rounding.
    """
    if stage.step == stage.steps:
        return stage.left
    times = torch.linspace(1, 1e-5, stage.steps + 1)
    share = 1 - times[stage.step] / times[stage.step - 1]
    return (stage.left * share.to(stage.left.device)).long()


def plan_llada(stage: Stage) -> Count:
    """LLaDA's: even shares, the first steps one more."""
    return stage.start // stage.steps + (stage.step <= stage.start % stage.steps).long()


def plan_linear(stage: Stage) -> Count:
    """As many as bring the masks down in a straight line."""
    return stage.left - stage.start * (stage.steps - stage.step) // stage.steps


def plan_cosine(stage: Stage) -> Count:
    """As many as bring the masks down along a cosine: few at first, many at the end (MaskGIT)."""
    done = stage.step / stage.steps
    stay = 0.0 if stage.step == stage.steps else math.cos(math.pi / 2 * done)
    return stage.left - (stage.start * stay).long()


def plan_one(stage: Stage) -> Count:
    """One at a time."""
    return stage.left.clamp(max=1)


def draw_count(stage: Stage) -> Count:
    """As many as un-mask by chance, each mask for itself: MDLM's posterior, SMDM's "origin".

    With the order `random` this is ancestral sampling: a chance for each mask is a random number
    of them in a random order. Where tokens are masked again, ReMDM's chance (2503.00307).
    """
    if stage.step == stage.steps:
        return stage.left
    open_ = stage.guess.open
    chance = stage.times.reveal_chance(stage.rate)
    return (open_ & (stage.streams.uniform(open_.shape[1]) < chance)).sum(-1)


def plan_threshold(threshold: float = 0.9) -> Plan:
    """As many as are surer than the threshold, at least one: easy texts take few steps."""
    if not 0 < threshold <= 1:
        raise UserError(f"a confidence threshold of {threshold} was given: expected 0 to 1.")

    def count(stage: Stage) -> Count:
        sure = stage.guess.spread(stage.guess.confidence >= threshold, False).sum(-1)
        return torch.maximum(sure, stage.left.clamp(max=1))

    return Plan(count, paces_itself=True)


PLANS: dict[str, Callable[..., Plan]] = {
    "smdm": lambda: Plan(plan_smdm),
    "llada": lambda: Plan(plan_llada),
    "linear": lambda: Plan(plan_linear),
    "cosine": lambda: Plan(plan_cosine),
    "one": lambda: Plan(plan_one, paces_itself=True),
    "threshold": plan_threshold,
    "ancestral": lambda: Plan(draw_count, keeps_schedule=False),
}


def get_plan(plan: str | Plan | Callable[[Stage], Count]) -> Plan:
    """The plan of that name (`threshold=0.8` sets the threshold), or the caller's own.

    A function of a `Stage` is a plan that keeps its schedule and takes the steps asked for.
    """
    chosen = make_choice("plan", plan, PLANS)
    if isinstance(chosen, Plan):
        return chosen
    if callable(chosen):
        return Plan(chosen)
    expected = "a Plan, a function of a Stage that returns a count for each row"
    raise refuse_type("the plan", plan, expected, PLANS)

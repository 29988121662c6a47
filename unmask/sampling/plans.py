"""Plans: how many tokens of a row are committed at each step."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.base.choices import choose
from unmask.base.errors import UserError
from unmask.base.plugins import Registry
from unmask.base.streams import RowStreams
from unmask.sampling.state import StepState

Count = Int[Tensor, "B"]


@dataclass(frozen=True)
class Plan:
    """How many masks of each row become tokens, [B]."""

    count: Callable[[StepState, RowStreams], Count]
    keeps_schedule: bool = True
    """The counts lead to a number of masks left: as many more are committed as are remasked."""
    paces_itself: bool = False
    """Goes on until no mask is left, at most a step per mask; `steps` is not for it."""


def plan_smdm(state: StepState, streams: RowStreams) -> Count:
    """SMDM's greedy sampler: int(left (1 - s/t)) on times from 1 to 1e-5, the rest at the end.

    In float32, as the peer computes it: the truncation sees its rounding.
    """
    if state.step == state.steps:
        return state.num_open
    times = torch.linspace(1, 1e-5, state.steps + 1)
    share = 1 - times[state.step] / times[state.step - 1]
    return (state.num_open * float(share)).long()  # a number: a tensor would have to be sent


def plan_llada(state: StepState, streams: RowStreams) -> Count:
    """LLaDA's: even shares, the first steps one more."""
    return state.num_start // state.steps + (state.step <= state.num_start % state.steps).long()


def plan_linear(state: StepState, streams: RowStreams) -> Count:
    """As many as bring the masks down in a straight line."""
    return state.num_open - state.num_start * (state.steps - state.step) // state.steps


def plan_cosine(state: StepState, streams: RowStreams) -> Count:
    """As many as bring the masks down along a cosine: few at first, many at the end (MaskGIT)."""
    done = state.step / state.steps
    stay = 0.0 if state.step == state.steps else math.cos(math.pi / 2 * done)
    return state.num_open - (state.num_start * stay).long()


def plan_one(state: StepState, streams: RowStreams) -> Count:
    """One at a time."""
    return state.num_open.clamp(max=1)


def draw_count(state: StepState, streams: RowStreams) -> Count:
    """As many as un-mask by chance, each mask for itself: MDLM's posterior, SMDM's "origin".

    With the order `random` this is ancestral sampling: a chance for each mask is a random number
    of them in a random order. Where tokens are masked again, ReMDM's chance (2503.00307).
    """
    if state.step == state.steps:
        return state.num_open
    open_ = state.open
    chance = state.times.reveal_chance(state.remask_rate)
    return (open_ & (streams.uniform(open_.shape[1]) < chance)).sum(-1)


def plan_threshold(threshold: float = 0.9) -> Plan:
    """As many as are surer than the threshold, at least one: easy texts take few steps."""
    if not 0 < threshold <= 1:
        raise UserError(f"a confidence threshold of {threshold} was given: expected 0 to 1.")

    def count(state: StepState, streams: RowStreams) -> Count:
        sure = (state.confidence >= threshold).sum(-1)
        return torch.maximum(sure, state.num_open.clamp(max=1))

    return Plan(count, paces_itself=True)


PLANS = Registry[Callable[..., Any]](
    "plan",
    {
        "smdm": lambda: Plan(plan_smdm),
        "llada": lambda: Plan(plan_llada),
        "linear": lambda: Plan(plan_linear),
        "cosine": lambda: Plan(plan_cosine),
        "one": lambda: Plan(plan_one, paces_itself=True),
        "threshold": plan_threshold,
        "ancestral": lambda: Plan(draw_count, keeps_schedule=False),
    },
    lambda thing: callable(thing) or isinstance(thing, Plan),
    "a Plan, a function of a StepState and its streams that returns a count for each row",
)


def get_plan(plan: str | Plan | Callable[[StepState, RowStreams], Count]) -> Plan:
    """The plan of that name (`threshold=0.8` sets the threshold), or the caller's own.

    A function of a `StepState` is a plan that keeps its schedule and takes the steps asked for.
    """
    return choose(plan, PLANS, Plan, Plan)

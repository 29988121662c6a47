"""Remasking: which written tokens become masks again, to be written anew.

ReMDM (Wang et al. 2025, arXiv 2503.00307): un-masking and masking again balance, so that as many
tokens are clean at each time as without. With the plan `ancestral` and the order `random` the
sampler is theirs; with any other plan, as many more tokens are committed as were masked again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool
from torch import Tensor

from unmask.base.choices import choose
from unmask.base.errors import UserError
from unmask.base.plugins import Registry
from unmask.base.streams import RowStreams
from unmask.sampling.orders import choose_first
from unmask.sampling.state import StepState, StepTimes

Written = Bool[Tensor, "B L"]


@runtime_checkable
class Remasking(Protocol):
    """How written tokens become masks again; by default each with the same chance."""

    def set_clock(self, times: StepTimes) -> StepTimes:
        """The step's times as this remasking wants them."""
        return times

    def rate(self, times: StepTimes) -> float:
        """sigma where it is the same for every token, 0 where it is not."""
        return 0.0

    def choose(self, state: StepState, streams: RowStreams) -> Written:
        """Which of `state.written` become masks; the streams are the remasking's own."""
        draws = streams.uniform(state.written.shape[1])
        return state.written & (draws < self.rate(state.times))


RemaskFunction = Callable[[StepState, RowStreams], Written]
"""`choose` alone: a remasking at the usual times, with no rate that is the same for all tokens."""


@dataclass(frozen=True)
class Cap(Remasking):
    """A small chance, as far as the marginal allows."""

    eta: float = 0.008

    def __post_init__(self) -> None:
        _check_share("cap", self.eta)

    def rate(self, times: StepTimes) -> float:
        return min(self.eta, times.highest_rate)


@dataclass(frozen=True)
class Rescale(Remasking):
    """A share of what the marginal allows."""

    eta: float = 0.015

    def __post_init__(self) -> None:
        _check_share("rescale", self.eta)

    def rate(self, times: StepTimes) -> float:
        return self.eta * times.highest_rate


@dataclass(frozen=True)
class Loop(Remasking):
    """Writes most of the text, then masks and rewrites at the same pace, then writes the rest."""

    eta: float = 0.02
    t_on: float = 0.55
    t_off: float = 0.05
    alpha_on: float = 0.9

    def __post_init__(self) -> None:
        _check_share("loop", self.eta)

    def set_clock(self, times: StepTimes) -> StepTimes:
        if self._is_looping(times):
            return replace(times, alpha_t=self.alpha_on, alpha_s=self.alpha_on)
        return replace(times, alpha_t=self._alpha(times.t), alpha_s=self._alpha(times.s))

    def rate(self, times: StepTimes) -> float:
        return min(self.eta, times.highest_rate) if self._is_looping(times) else 0.0

    def _is_looping(self, times: StepTimes) -> bool:
        return self.t_off < times.t <= self.t_on

    def _alpha(self, t: float) -> float:
        if t > self.t_on:
            return (1 - t) * self.alpha_on / (1 - self.t_on)
        return self.alpha_on if t > self.t_off else 1 - t * (1 - self.alpha_on) / self.t_off


class Doubtful(Remasking):
    """The tokens written with the least confidence most: the row shares one `highest_rate`."""

    def choose(self, state: StepState, streams: RowStreams) -> Written:
        doubt = (-state.written_confidence).masked_fill(~state.written, -torch.inf).softmax(-1)
        # A row without a written token has no share to give.
        chance = state.times.highest_rate * doubt.nan_to_num(0.0)
        return state.written & (streams.uniform(state.written.shape[1]) < chance)


@dataclass(frozen=True)
class Lowest(Remasking):
    """The least confident tenth of the written tokens, or another share; no chance in it."""

    share: float = 0.1

    def __post_init__(self) -> None:
        _check_share("low", self.share)

    def choose(self, state: StepState, streams: RowStreams) -> Written:
        counts = (state.written.sum(-1) * self.share).long()
        return choose_first(-state.written_confidence, state.written, counts)


@dataclass(frozen=True)
class OwnRemasking(Remasking):
    """The caller's own function."""

    function: RemaskFunction

    def choose(self, state: StepState, streams: RowStreams) -> Tensor:
        return self.function(state, streams)


REMASKINGS = Registry[Callable[..., Any]](
    "remasking",
    {
        "none": lambda: None,
        "cap": Cap,
        "rescale": Rescale,
        "conf": Doubtful,
        "loop": Loop,
        "low": Lowest,
    },
    lambda thing: callable(thing) or isinstance(thing, Remasking),
    "an object with set_clock, rate and choose, a function like its choose",
)


def get_remasking(remask: str | Remasking | RemaskFunction | None) -> Remasking | None:
    """The remasking of that name (`cap=0.02` sets its number), or the caller's own; None: none."""
    return choose(remask, REMASKINGS, (Remasking, NoneType), OwnRemasking)


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise UserError(f"remasking {name}={value:g} is not a share: expected 0 to 1.")

"""Schedules: alpha_t, the probability that a token is still clean at time t, and its weight.

Each has closed forms: the weight w_t = -alpha'_t / (1 - alpha_t) is 0/0 at t = 0 and loses its
digits near t = 1 when it is computed from alpha.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.plugins import Registry


class Schedule(Protocol):
    """A keep probability that falls with time."""

    def alpha(self, t: Tensor) -> Tensor:
        """The probability that a token is clean at t."""
        ...

    def noised(self, t: Tensor) -> Tensor:
        """p_t = 1 - alpha_t, accurate where it is small."""
        ...

    def dalpha(self, t: Tensor) -> Tensor:
        """The slope of alpha, never above 0."""
        ...

    def weight(self, t: Tensor) -> Tensor:
        """w_t = -alpha'_t / (1 - alpha_t), the rate at which a noised token is un-noised."""
        return -self.dalpha(t) / self.noised(t)


@dataclass(frozen=True)
class PolynomialSchedule:
    """alpha = 1 - t^n."""

    power: float = 2.0

    def __post_init__(self) -> None:
        if not self.power > 0:
            raise UserError(
                f"a polynomial schedule of power {self.power} does not fall from 1 to 0: "
                "use a power above 0."
            )

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - t**self.power

    def noised(self, t: Tensor) -> Tensor:
        return t**self.power

    def dalpha(self, t: Tensor) -> Tensor:
        return -self.power * t ** (self.power - 1)

    def weight(self, t: Tensor) -> Tensor:
        return self.power / t


@dataclass(frozen=True)
class LinearSchedule(PolynomialSchedule):
    """alpha = 1 - t; MDLM calls it log-linear."""

    power: float = 1.0


@dataclass(frozen=True)
class CosineSchedule(Schedule):
    """alpha = 1 - cos(pi/2 (1 - t)), so that 1 - alpha = sin(pi/2 t)."""

    def alpha(self, t: Tensor) -> Tensor:
        return 2 * torch.sin(math.pi / 4 * (1 - t)) ** 2

    def noised(self, t: Tensor) -> Tensor:
        return torch.sin(math.pi / 2 * t)

    def dalpha(self, t: Tensor) -> Tensor:
        return -math.pi / 2 * torch.sin(math.pi / 2 * (1 - t))


@dataclass(frozen=True)
class GeometricSchedule:
    """alpha = exp(-sigma), sigma = sigma_min^(1-t) sigma_max^t (SEDD).

    Its ends are open: alpha_0 = exp(-sigma_min) < 1 and alpha_1 = exp(-sigma_max) > 0. A bound
    under it needs the reconstruction at t = 0; what is left of the token at t = 1 is the prior's
    error.
    """

    sigma_min: float = 1e-3
    sigma_max: float = 20.0

    def __post_init__(self) -> None:
        if not 0 < self.sigma_min < self.sigma_max:
            raise UserError(
                f"a geometric schedule from sigma {self.sigma_min} to {self.sigma_max} does not "
                "grow: expected 0 < sigma_min < sigma_max."
            )

    def sigma(self, t: Tensor) -> Tensor:
        return self.sigma_min ** (1 - t) * self.sigma_max**t

    def dsigma(self, t: Tensor) -> Tensor:
        return self.sigma(t) * math.log(self.sigma_max / self.sigma_min)

    def alpha(self, t: Tensor) -> Tensor:
        return torch.exp(-self.sigma(t))

    def noised(self, t: Tensor) -> Tensor:
        return -torch.expm1(-self.sigma(t))

    def dalpha(self, t: Tensor) -> Tensor:
        return -self.dsigma(t) * self.alpha(t)

    def weight(self, t: Tensor) -> Tensor:
        return self.dsigma(t) / torch.expm1(self.sigma(t))


@dataclass(frozen=True)
class SigmoidSchedule:
    """alpha = sigmoid(log-SNR), the log-SNR falling in a straight line: for Gaussian noise.

    alpha / (1 - alpha) is the signal-to-noise ratio of sqrt(alpha) e + sqrt(1 - alpha) eps.
    """

    start: float = 10.0
    stop: float = -10.0

    def __post_init__(self) -> None:
        if not self.start > self.stop:
            raise UserError(
                f"a log-SNR from {self.start} to {self.stop} does not fall: expected start > stop."
            )

    def log_snr(self, t: Tensor) -> Tensor:
        return self.start + (self.stop - self.start) * t

    def alpha(self, t: Tensor) -> Tensor:
        return torch.sigmoid(self.log_snr(t))

    def noised(self, t: Tensor) -> Tensor:
        return torch.sigmoid(-self.log_snr(t))

    def dalpha(self, t: Tensor) -> Tensor:
        return (self.stop - self.start) * self.alpha(t) * self.noised(t)

    def weight(self, t: Tensor) -> Tensor:
        return (self.start - self.stop) * self.alpha(t)


@dataclass(frozen=True)
class RescaledSchedule(Schedule):
    """A schedule with open ends, stretched to (alpha - alpha_1) / (alpha_0 - alpha_1).

    For bounds and samplers, which would otherwise need a reconstruction at t = 0 and miss what the
    prior leaves out at t = 1.
    """

    inner: Schedule

    def _ends(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Noise at t = 0, and the fall of alpha over the whole interval."""
        zero, one = (torch.full_like(t, end) for end in (0.0, 1.0))
        first = self.inner.noised(zero)
        return first, self.inner.noised(one) - first

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - self.noised(t)

    def noised(self, t: Tensor) -> Tensor:
        first, fall = self._ends(t)
        return (self.inner.noised(t) - first) / fall

    def dalpha(self, t: Tensor) -> Tensor:
        return self.inner.dalpha(t) / self._ends(t)[1]


@dataclass(frozen=True)
class BumpSchedule(Schedule):
    """GIDD's: alpha = (1 - t) / C, a mask with t / C, a uniform draw with K sqrt(t (1 - t)) / C.

    C = 1 + K sqrt(t (1 - t)) makes their sum 1, and K has uniform draws reach the share `p_uniform`
    of all tokens in the middle (von Rütte et al. 2025, arXiv 2503.04482, section 4, gamma = 1).
    """

    p_uniform: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.p_uniform < 1:
            raise UserError(f"uniform draws of a share {self.p_uniform}: expected 0 to below 1.")

    def _bump(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """K sqrt(t (1 - t)) and its slope."""
        height, root = 2 * self.p_uniform / (1 - self.p_uniform), (t * (1 - t)).sqrt()
        return height * root, height * (1 - 2 * t) / (2 * root.clamp(min=1e-30))

    def alpha(self, t: Tensor) -> Tensor:
        return (1 - t) / (1 + self._bump(t)[0])

    def noised(self, t: Tensor) -> Tensor:
        bump, _ = self._bump(t)
        return (t + bump) / (1 + bump)

    def dalpha(self, t: Tensor) -> Tensor:
        bump, slope = self._bump(t)
        return -(1 + bump + (1 - t) * slope) / (1 + bump) ** 2

    def share(self, t: Tensor) -> Tensor:
        """The share of the mask in the noise."""
        return 1 - self._bump(t)[0] / (t + self._bump(t)[0]).clamp(min=1e-30)

    def dshare(self, t: Tensor) -> Tensor:
        """Its slope."""
        bump, slope = self._bump(t)
        return (bump - t * slope) / (t + bump).clamp(min=1e-15) ** 2


SCHEDULES = Registry[Callable[..., Schedule]](
    "schedule",
    {
        "linear": LinearSchedule,
        "cosine": CosineSchedule,
        "polynomial": PolynomialSchedule,
        "geometric": GeometricSchedule,
        "sigmoid": SigmoidSchedule,
        "bump": BumpSchedule,
    },
    lambda thing: isinstance(thing, type) and hasattr(thing, "alpha"),
    "a class with alpha, noised and dalpha, as in unmask.noise.schedules",
)


def make_schedule(name: str, **settings: Any) -> Schedule:
    """The schedule of that name."""
    schedule = SCHEDULES.find(name)(**settings)
    if name not in SCHEDULES.own:
        check_schedule(schedule)
    return schedule


_GRID = torch.linspace(0, 1, 1001, dtype=torch.float64)
"""Times at which schedules are checked."""


def check_schedule(schedule: Schedule) -> None:
    """Raise unless alpha stays in [0, 1] and never rises; looked at on a grid."""
    if not callable(getattr(schedule, "alpha", None)):
        raise UserError(
            f"the schedule is {schedule!r:.60}: expected one of unmask.noise.schedules."
        )
    alpha = schedule.alpha(_GRID)
    if not ((alpha >= -1e-9) & (alpha <= 1 + 1e-9)).all() or (alpha.diff() > 1e-9).any():
        raise UserError(
            f"the schedule {type(schedule).__name__} is not monotone: alpha must fall from at most "
            "1 at t = 0 to at least 0 at t = 1."
        )


def is_closed(schedule: Schedule) -> bool:
    """Whether alpha falls from 1 to 0."""
    alpha = schedule.alpha(_GRID)
    return bool(alpha[0] >= 1 - 1e-6 and alpha[-1] <= 1e-6)


def check_closed(schedule: Schedule) -> None:
    """Raise unless alpha falls from 1 to 0: else a bound lacks its ends and samples keep noise."""
    alpha = schedule.alpha(_GRID)
    if not is_closed(schedule):
        raise UserError(
            f"the schedule {type(schedule).__name__} has open ends (alpha from {float(alpha[0]):g} "
            f"to {float(alpha[-1]):g}): wrap it in RescaledSchedule for bounds and sampling."
        )


def find_time(schedule: Schedule, noised: Tensor) -> Tensor:
    """When a share of the tokens is noised, in float64; by halving, as schedules never rise."""
    noised = noised.double()
    if isinstance(schedule, LinearSchedule):
        return noised
    low, high = torch.zeros_like(noised), torch.ones_like(noised)
    for _ in range(40):
        middle = (low + high) / 2
        late = schedule.noised(middle) > noised
        low, high = torch.where(late, low, middle), torch.where(late, middle, high)
    return (low + high) / 2


def clamp_open(t: Tensor) -> Tensor:
    """Times in float64, a hair away from 0 and 1, where slopes and quotients may be infinite."""
    return t.double().clamp(1e-9, 1 - 1e-9)


def check_times(*times: Tensor) -> None:
    """Raise unless all times lie in [0, 1].

    Looked at on the CPU only: on another device the host would have to wait for the answer.
    """
    for t in (t for t in times if t.device.type == "cpu"):
        if not ((t >= 0) & (t <= 1)).all():
            raise UserError(
                f"times run from {float(t.min()):g} to {float(t.max()):g}, expected 0 to 1."
            )

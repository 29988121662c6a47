"""The noise that a model was trained under, as its files carry it."""

from dataclasses import dataclass, field

from unmask.base.config import SettingsError
from unmask.noise.schedules import SCHEDULES, RescaledSchedule, Schedule, is_closed, make_schedule


@dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """What a process needs beside its vocabulary; each kind reads its own part."""

    schedule: str | None = None
    """None: linear, and sigmoid for Gaussian noise; "bump" is GIDD's, for hybrid noise; others are
    cosine, polynomial and geometric, and those of other packages."""
    schedule_settings: dict = field(default_factory=dict)
    """Such as {"power": 3} for polynomial."""
    mixture: bool = False
    """Uniform: whether the network predicts p(x0 | z_t), its own position seen."""
    scores: bool = False
    """Uniform: whether its outputs are log q(z_t), as score entropy trains it."""
    evidence: bool = False
    """Gaussian: whether a position's own log q(z_t | x0) is added to its logits (Plaid)."""
    share_start: float = 0.0
    share_stop: float = 1.0
    """Hybrid: the mask's share in the noise at t = 0 and t = 1; "bump" has a share of its own."""

    settings: dict = field(default_factory=dict)
    """Settings of a process of one's own, by the names in its `settings`."""

    def __post_init__(self) -> None:
        if self.schedule is not None and self.schedule not in SCHEDULES:
            raise SettingsError(
                "noise",
                [f"'schedule' is {self.schedule!r}, expected one of {', '.join(SCHEDULES)}"],
            )
        shares = {"share_start": self.share_start, "share_stop": self.share_stop}
        if wrong := [f"{name!r} is {x}, expected 0 to 1" for name, x in shares.items()
                     if not 0 <= x <= 1]:  # fmt: skip
            raise SettingsError("noise", wrong)
        self.make_schedule("linear")

    def make_closed_schedule(self) -> Schedule:
        """The schedule of noise on tokens: one with open ends is stretched, for sampling."""
        schedule = self.make_schedule("linear")
        return schedule if is_closed(schedule) else RescaledSchedule(schedule)

    def make_schedule(self, default: str) -> Schedule:
        """The schedule, or the one named `default` where none was chosen."""
        name = self.schedule or default
        try:
            return make_schedule(name, **self.schedule_settings)
        except TypeError:
            given = ", ".join(map(str, self.schedule_settings))
            known = ", ".join(getattr(SCHEDULES[name], "__dataclass_fields__", {})) or "none"
            raise SettingsError(
                "noise", [f"schedule {name!r} was given the settings {given}, it has {known}"]
            ) from None

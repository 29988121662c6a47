"""The noise a model was trained under: settings that its files carry, and the process they mean."""

from dataclasses import dataclass, field
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from unmask.base.config import SettingsError
from unmask.base.errors import UserError
from unmask.noise.gaussian import Gaussian
from unmask.noise.hybrid import Hybrid
from unmask.noise.masked import Masked
from unmask.noise.process import Process
from unmask.noise.schedules import SCHEDULES, Rescaled, Schedule, make_schedule
from unmask.noise.uniform import Uniform

_OPEN = ("geometric", "sigmoid")


@dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """What a process needs beside its vocabulary; each kind reads its own part."""

    schedule: Literal["linear", "cosine", "polynomial", "geometric", "sigmoid"] | None = None
    """None: linear, and sigmoid for Gaussian noise."""
    schedule_settings: dict = field(default_factory=dict)
    """Such as {"power": 3} for polynomial."""
    mixture: bool = False
    """Uniform: whether the network predicts p(x0 | z_t), its own position seen."""
    share_start: float = 0.0
    share_stop: float = 1.0
    """Hybrid: the mask's share in the noise at t = 0 and t = 1."""

    def __post_init__(self) -> None:
        self.make_schedule("linear")

    def make_schedule(self, default: str) -> Schedule:
        name = self.schedule or default
        try:
            return make_schedule(name, **self.schedule_settings)
        except TypeError:
            given = ", ".join(map(str, self.schedule_settings))
            known = ", ".join(getattr(SCHEDULES[name], "__dataclass_fields__", {})) or "none"
            raise SettingsError(
                "noise", [f"schedule {name!r} was given the settings {given}, it has {known}"]
            ) from None


def make_process(
    kind: str, config: NoiseConfig, num_logits: int, mask_id: int | None = None
) -> Process:
    """The discrete process of that kind over as many tokens as there are logits.

    Schedules with open ends are stretched to closed ones: sampling needs both.
    """
    schedule = config.make_schedule("linear")
    if config.schedule in _OPEN:
        schedule = Rescaled(schedule)
    if kind == "masked":
        assert mask_id is not None
        return Masked(num_logits - (mask_id < num_logits), mask_id, schedule)
    if kind == "uniform":
        # A mask that stands last, as a tied head has it, is no token to be drawn.
        return Uniform(num_logits - (mask_id == num_logits - 1), schedule, config.mixture)
    if kind == "hybrid":
        if mask_id != num_logits:
            raise UserError(
                f"hybrid noise needs the mask right behind the {num_logits} tokens with logits, "
                f"but the mask id is {mask_id}: leave its row out of the head ('num_logits')."
            )
        return Hybrid(num_logits, schedule, config.share_start, config.share_stop)
    raise UserError(f"a {kind} model has no noise on tokens: expected masked, uniform or hybrid.")


def make_gaussian(config: NoiseConfig, table: Float[Tensor, "V d"]) -> Gaussian:
    """The Gaussian process over a table of token vectors."""
    return Gaussian(table, config.make_schedule("sigmoid"))

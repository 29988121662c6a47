"""How keys and values are extracted: the objective by name, the search, the states asked."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from unmask.base.config import SettingsError, build
from unmask.base.errors import UserError, suggest

ROME_LOSS = 0.05
"""The reference stops once its loss is below this."""


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """Loss = -log p(object) + `kl` KL(p_delta || p) + `norm` ||delta|| / ||v0||^2, and its search.

    The KL is taken on "{subject} is a", the norm over the delta.
    """

    kl: float = 1.0
    norm: float = 0.0
    kl_read: Literal["subject", "last"] = "last"
    """Which next token the KL is about: after the subject, or after "is a"."""
    steps: int = 20
    """Evaluations of the loss; there is one update less. 0 leaves v0 as it is."""
    lr: float = 0.5
    clamp: float | None = 4.0
    """The longest delta, in lengths of v0; None for no limit."""
    stop: str = "steps"
    """`steps`: after all of them; `p=0.9`: once the object has that probability; `rome`: once the
    loss is below 0.05, as the reference does."""
    revealed: tuple[float, ...] = (0.0,)
    """Mask patterns of a masked model: the share of the object's tokens that is shown in each."""
    guidance: float = 0.0
    length: int | None = None
    """Canvas of a masked model in tokens; 52 by default, or what a fact needs."""
    key_text: Literal["prompt", "subject"] = "prompt"
    """What follows a prefix where keys are read: the whole prompt, or the subject alone."""
    seed: int = 0
    """Of prefixes and mask patterns."""

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise SettingsError("extraction", problems)

    @property
    def target(self) -> float | None:
        """The probability to stop at, if one was named."""
        name, equals, number = self.stop.partition("=")
        return float(number) if name == "p" and equals else None

    def _problems(self) -> Iterator[str]:
        for name in ("kl", "norm", "guidance"):
            if not 0 <= getattr(self, name) < math.inf:
                yield f"{name!r} is {getattr(self, name)}, expected a number from 0"
        if self.steps < 0:
            yield f"'steps' is {self.steps}, expected 0 or more"
        if not 0 < self.lr < math.inf:
            yield f"'lr' is {self.lr}, expected a number above 0"
        if self.clamp is not None and not 0 < self.clamp < math.inf:
            yield f"'clamp' is {self.clamp}, expected a number above 0 (--clamp 0: no limit)"
        if not self.revealed or not all(0 <= share < 1 for share in self.revealed):
            yield f"'revealed' is {self.revealed}, expected shares from 0 up to, not including, 1"
        if self.stop not in ("steps", "rome"):
            try:
                found = self.target
            except ValueError:
                found = None
            if found is None or not 0 < found < 1:
                yield f"'stop' is {self.stop!r}, expected steps, rome or p=0.9 (any probability)"


OBJECTIVES: dict[str, dict[str, Any]] = {
    "seed": {"kl": 1.0, "norm": 0.0, "kl_read": "last"},
    "rome": {"kl": 0.0625, "norm": 0.5, "kl_read": "subject"},
}
"""The study's own objective, and the reference's (Meng et al. 2022)."""


def choose_extraction(objective: str = "seed", **changes: Any) -> Extraction:
    """The extraction with an objective by its name, single settings changed."""
    if objective not in OBJECTIVES:
        raise UserError(f"objective {objective!r} is unknown: {suggest(objective, OBJECTIVES)}")
    return build(Extraction, OBJECTIVES[objective] | changes, "extraction")

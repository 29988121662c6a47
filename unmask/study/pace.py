"""How long a study takes on this machine, and numbers of facts and prompts that fit into a time.

A piece of the work itself is run for a moment: sentences of the study, scored in two orders by its
model. What stages cost beside that piece is known (`unmask/assets/study-costs.json`, which
`benchmarks/study.py` writes). Each stage that ends corrects the speed, for the stages after it.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from unmask.base.progress import format_seconds

SAMPLE = "factorization"
"""The stage whose first job, with a sentence of each split, is that piece of work."""
SAMPLE_SECONDS = 2.0
"""How long it is run, once it was run once."""
MOST = 3.0
"""A stage is at most so many times its usual size: more is for the size full."""


@cache
def read_costs() -> Mapping[str, Mapping[str, float]]:
    """Seconds of each stage on one machine, where the piece of work (`sample`) took so long:
    `fixed` whatever its size, and for `each` fact or prompt."""
    return json.loads(files("unmask.assets").joinpath("study-costs.json").read_text("utf-8"))


def find_count(stage: str, values: Mapping[str, Any] | None) -> str | None:
    """The setting that says how many prompts or facts a stage has, if that may be changed."""
    is_sized = read_costs().get(stage, {}).get("each", 0.0) > 0
    return next((name for name in ("limit", "facts") if is_sized and name in (values or {})), None)


def count_usual(stage: str, values: Mapping[str, Any] | None) -> int:
    """How many prompts or facts a stage has, 0 where that cannot be changed."""
    count = find_count(stage, values)
    return (values or {})[count] if count is not None else 0


def count_units(stage: str, number: float) -> float:
    """What a stage costs with so many prompts or facts, as in the table of costs."""
    cost = read_costs().get(stage, {})
    return cost.get("fixed", 0.0) + cost.get("each", 0.0) * number


@dataclass
class Pace:
    """What is left to do, as the usual number of each stage in order, and how fast it goes."""

    left: dict[str, int]
    seconds: float = 1.0
    """What `units` of work took: those of the sample, then more of what is newer."""
    units: float = 1.0

    def time_sample(self, work: Callable[[], object]) -> None:
        """Learn the speed of a piece of work, run again and again for a moment."""
        work()  # which loads the model
        start, runs = time.perf_counter(), 0
        while not runs or time.perf_counter() < start + SAMPLE_SECONDS:
            work()
            runs += 1
        self.seconds, self.units = time.perf_counter() - start, count_units("sample", 0) * runs

    def estimate(self, share: float = 1.0) -> float:
        """Seconds that all stages take which are left, with such a share of their numbers."""
        units = sum(count_units(*each) for each in self._scale(share).items())
        return units * self.seconds / self.units

    def say(self, share: float = 1.0) -> str:
        """The estimate as people say it."""
        return f"about {format_seconds(self.estimate(share))}"

    def _scale(self, share: float) -> dict[str, float]:
        return {name: max(1.0, share * number) for name, number in self.left.items()}

    def choose(self, stage: str, seconds: float) -> int:
        """How many prompts or facts the next stage has, if all that is left takes so long."""
        low, high = 0.0, MOST
        while high - low > 1e-3:
            middle = (low + high) / 2
            low, high = (middle, high) if self.estimate(middle) < seconds else (low, middle)
        return round(self._scale(low)[stage])

    def end(self, stage: str, counts: Mapping[str, int], seconds: float, is_measured: bool) -> None:
        """A stage has ended; one that measured nothing says nothing of the speed."""
        usual = self.left.pop(stage, 0)
        number = next(iter(counts.values()), usual)
        if is_measured and (units := count_units(stage, number)):
            self.seconds, self.units = self.seconds / 2 + seconds, self.units / 2 + units

"""How the learning rate changes with the step."""

import math

from unmask.training.recipe import ScheduleSettings


def rate_at(step: int, total: int | None, schedule: ScheduleSettings) -> float:
    """The rate of a step (from 0) as a share of the highest; `total` None: not known yet.

    It rises in a straight line over the warm-up. Then `cosine` falls along half a wave to the floor
    at the last step, `wsd` stays and falls in a straight line over its last steps.
    """
    if step < schedule.warmup:
        return (step + 1) / (schedule.warmup + 1)
    if schedule.name == "constant" or total is None:
        return 1.0
    start = schedule.warmup
    if schedule.name == "wsd":
        start = max(start, total - round(schedule.decay * total))
    left = 1.0 - min(1.0, max(0.0, (step - start) / max(1, total - 1 - start)))
    shape = left if schedule.name == "wsd" else (1 - math.cos(math.pi * left)) / 2
    return schedule.floor + (1 - schedule.floor) * shape

"""How strong guidance is at each step."""

import math
from collections.abc import Callable, Sequence
from numbers import Real

from unmask.base.errors import UserError, suggest

Guidance = float | str | Sequence[float] | Callable[[float], float]
"""One strength for all steps, a named schedule such as "up=0.8", a strength for each step, or a
function from the share of the steps that are done, 0 at the first and 1 at the last, to it."""

MOST_STRENGTH = 1_000_000
"""Far beyond any use; larger ones leave what logits can hold."""
GUIDANCE_SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "up": lambda done: done,
    "down": lambda done: 1 - done,
    "cosine": lambda done: math.cos(math.pi / 2 * done),
}
"""The share of the strength when a share of the steps is done."""


def guidance_schedule(guidance: Guidance, steps: int) -> list[float]:
    """The strength at every step, each of them at least 0; steps past the last one keep its own."""
    strengths = _list_strengths(guidance, steps)
    for strength in strengths:
        if not 0 <= strength <= MOST_STRENGTH:
            raise UserError(
                f"guidance is {strength}, expected a number of at least 0 and at most "
                f"{MOST_STRENGTH:,}."
            )
    return strengths


def _list_strengths(guidance: Guidance, steps: int) -> list[float]:
    if isinstance(guidance, str):
        name, _, number = guidance.partition("=")
        try:
            strength = float(number or name)
        except ValueError:
            raise UserError(
                f"guidance {guidance!r} was given: expected a number, or a schedule and a number "
                f"such as up=0.8; schedules: {', '.join(GUIDANCE_SCHEDULES)}."
            ) from None
        if not number:
            return [strength] * steps
        if name not in GUIDANCE_SCHEDULES:
            raise UserError(
                f"guidance schedule {name!r} is unknown: {suggest(name, GUIDANCE_SCHEDULES)}"
            )
        share = GUIDANCE_SCHEDULES[name]
        return [strength * share(i / max(1, steps - 1)) for i in range(steps)]
    if isinstance(guidance, int | float | Real):
        return [float(guidance)] * steps
    if callable(guidance) and not isinstance(guidance, Sequence):
        return [float(guidance(i / max(1, steps - 1))) for i in range(steps)]
    try:
        strengths = [float(strength) for strength in guidance]
    except (TypeError, ValueError):
        raise UserError(
            f"guidance was given as {type(guidance).__name__} {guidance!r:.80}: expected a number, "
            "a schedule such as up=0.8, a number for each step, or a function that returns one."
        ) from None
    if len(strengths) != steps:
        raise UserError(
            f"{len(strengths)} guidance strengths were given for {steps} steps: give one for each."
        )
    return strengths

"""How strong guidance is at each step."""

import math
from collections.abc import Callable, Sequence
from numbers import Real

from unmask.base.errors import UserError, suggest

Guidance = float | str | Sequence[float]
"""One strength for all steps, a named course such as "up=0.8", or a strength for each step."""

COURSES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "up": lambda done: done,
    "down": lambda done: 1 - done,
    "cosine": lambda done: math.cos(math.pi / 2 * done),
}
"""The share of the strength when a share of the steps is done: 0 at the first, 1 at the last."""


def set_course(guidance: Guidance, steps: int) -> list[float]:
    """The strength at every step; steps past the last one keep its strength."""
    if isinstance(guidance, str):
        name, _, number = guidance.partition("=")
        try:
            strength = float(number or name)
        except ValueError:
            raise UserError(
                f"guidance {guidance!r} was given: expected a number, or a course and a number "
                f"such as up=0.8; courses: {', '.join(COURSES)}."
            ) from None
        if not number:
            return [strength] * steps
        if name not in COURSES:
            raise UserError(f"guidance course {name!r} is unknown: {suggest(name, COURSES)}")
        return [strength * COURSES[name](i / max(1, steps - 1)) for i in range(steps)]
    if isinstance(guidance, int | float | Real):
        return [float(guidance)] * steps
    course = [float(strength) for strength in guidance]
    if len(course) != steps:
        raise UserError(
            f"{len(course)} guidance strengths were given for {steps} steps: give one for each."
        )
    return course

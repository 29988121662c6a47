"""Strategies by name, with numbers where they have some (`threshold=0.9`), or of one's own."""

from collections.abc import Mapping
from typing import Any

from unmask.base.errors import UserError, suggest


def make_choice(what: str, given: Any, known: Mapping[str, Any]) -> Any:
    """What `name` or `name=number,…` means: a known maker, called with the numbers, if any.

    Anything but a text is the caller's own object or function, and is returned as it is.
    """
    if isinstance(given, type):
        raise UserError(
            f"{what} was given as the class {given.__name__}: expected an object, such as "
            f"{given.__name__}()."
        )
    if not isinstance(given, str):
        return given
    name, equals, numbers = given.partition("=")
    if name not in known:
        raise UserError(f"{what} {name!r} is unknown: {suggest(name, known)}")
    if not equals:
        return known[name]()
    try:
        values = [float(number) for number in numbers.split(",")]
    except ValueError:
        raise UserError(f"{what} {given!r} should end in a number, such as {name}=0.5.") from None
    try:
        return known[name](*values)
    except TypeError:
        if len(values) > 1:
            raise UserError(f"{what} {given!r} has too many numbers: give fewer.") from None
        raise UserError(f"{what} {name!r} takes no number: write just {name}.") from None


def choose(
    what: str, given: Any, known: Mapping[str, Any], kind: Any, wrap: Any, expected: str
) -> Any:
    """What `make_choice` finds, if it is of that kind; a function of the caller's own wrapped."""
    chosen = make_choice(what, given, known)
    if isinstance(chosen, kind):
        return chosen
    if callable(chosen):
        return wrap(chosen)
    raise refuse_type(f"the {what}", given, expected, known)


def refuse_type(what: str, given: object, expected: str, known: Mapping[str, Any]) -> UserError:
    """The error about a choice that is neither a name nor an object or function of its kind."""
    return UserError(
        f"{what} was given as {type(given).__name__} {given!r:.80}: expected {expected}, or one "
        f"of the names {', '.join(known)}."
    )

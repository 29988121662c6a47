"""Strategies by name, with numbers where they have some (`threshold=0.9`), or of one's own."""

from collections.abc import Mapping
from typing import Any

from unmask.base.errors import UserError, suggest


def choose(
    what: str, given: Any, known: Mapping[str, Any], kind: Any, wrap: Any, expected: str
) -> Any:
    """What `name` or `name=number,…` means: a known maker, called with the numbers, if any.

    An object of that kind is returned as it is, a function of the caller's own is wrapped.
    """
    if isinstance(given, type):
        raise UserError(
            f"{what} was given as the class {given.__name__}: expected an object, such as "
            f"{given.__name__}()."
        )
    chosen = _make(what, given, known) if isinstance(given, str) else given
    if isinstance(chosen, kind):
        return chosen
    if callable(chosen):
        return wrap(chosen)
    raise refuse_type(f"the {what}", given, expected, known)


def _make(what: str, given: str, known: Mapping[str, Any]) -> Any:
    name, equals, numbers = given.partition("=")
    if name not in known:
        raise UserError(f"{what} {name!r} is unknown: {suggest(name, known)}")
    try:
        values = [float(number) for number in numbers.split(",")] if equals else []
    except ValueError:
        raise UserError(f"{what} {given!r} should end in a number, such as {name}=0.5.") from None
    try:
        return known[name](*values)
    except TypeError:
        if not values:
            raise
        if len(values) > 1:
            raise UserError(f"{what} {given!r} has too many numbers: give fewer.") from None
        raise UserError(f"{what} {name!r} takes no number: write just {name}.") from None


def refuse_type(what: str, given: object, expected: str, known: Mapping[str, Any]) -> UserError:
    """The error about a choice that is neither a name nor an object or function of its kind."""
    return UserError(
        f"{what} was given as {type(given).__name__} {given!r:.80}: expected {expected}, or one "
        f"of the names {', '.join(known)}."
    )

"""Strategies by name, with numbers where they have some (`threshold=0.9`), or of one's own."""

from typing import Any

from unmask.base.errors import UserError
from unmask.base.plugins import Registry


def choose(given: Any, known: Registry[Any], kind: Any, wrap: Any, *settings: Any) -> Any:
    """What `name` or `name=number,…` means: a known maker, called with settings and the numbers.

    An object of that kind is returned as it is, a function of the caller's own is wrapped. Those
    registered by other packages are objects, functions or classes, which are made with the numbers.
    """
    if isinstance(given, type):
        raise UserError(
            f"{known.kind} was given as the class {given.__name__}: expected an object, such as "
            f"{given.__name__}()."
        )
    chosen = _make(given, known, settings) if isinstance(given, str) else given
    if isinstance(chosen, kind):
        return chosen
    if callable(chosen):
        return wrap(chosen)
    raise refuse_type(given, known)


def _make(given: str, known: Registry[Any], settings: tuple[Any, ...]) -> Any:
    name, equals, numbers = given.partition("=")
    what, thing = known.kind, known.find(name)
    try:
        values = [float(number) for number in numbers.split(",")] if equals else []
    except ValueError:
        raise UserError(f"{what} {given!r} should end in a number, such as {name}=0.5.") from None
    is_own = name in known.own
    try:
        if is_own or isinstance(thing, type):
            return thing(*(settings if is_own else ()), *values)
    except TypeError:
        if not values:
            raise
        if len(values) > 1:
            raise UserError(f"{what} {given!r} has too many numbers: give fewer.") from None
    if values:
        raise UserError(f"{what} {name!r} takes no number: write just {name}.")
    return thing


def refuse_type(given: object, known: Registry[Any]) -> UserError:
    """The error about a choice that is neither a name nor an object or function of its kind."""
    return UserError(
        f"the {known.kind} was given as {type(given).__name__} {given!r:.80}: expected "
        f"{known.expected}, or one of the names {', '.join(known)}."
    )

"""Strategies by name, with a number where they have one: `threshold=0.9`."""

from collections.abc import Mapping
from typing import Any

from unmask.base.errors import UserError, suggest


def make_choice(what: str, text: str, known: Mapping[str, Any]) -> Any:
    """What `name` or `name=number` means: a known maker, called with the number if one is given."""
    name, equals, number = text.partition("=")
    if name not in known:
        raise UserError(f"{what} {name!r} is unknown: {suggest(name, known)}")
    if not equals:
        return known[name]()
    try:
        value = float(number)
    except ValueError:
        raise UserError(f"{what} {text!r} should end in a number, such as {name}=0.5.") from None
    try:
        return known[name](value)
    except TypeError:
        raise UserError(f"{what} {name!r} takes no number: write just {name}.") from None

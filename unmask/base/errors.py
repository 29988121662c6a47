"""The one exception a user is meant to read."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """A user's mistake as a sentence: what was given, what was expected, what to do.

    A `ValueError`, so that callers catch it without knowing this package; the command line prints
    it without a traceback.
    """


def suggest(given: str, known: Iterable[str]) -> str:
    """The end of a sentence about a mistyped name: the nearest known ones, or all of them."""
    known = list(known)
    near = get_close_matches(given, known, n=3, cutoff=0.6)
    if near:
        return "did you mean " + " or ".join(repr(name) for name in near) + "?"
    return "known: " + ", ".join(known)

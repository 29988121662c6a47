"""The exceptions a user is meant to read: a mistake, and what could not be measured."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any


class UserError(ValueError):
    """A user's mistake as a sentence: what was given, what was expected, what to do.

    A `ValueError`, so that callers catch it without knowing this package; the command line prints
    it without a traceback.
    """


NOTICES = {
    "no exchanges": "No states were exchanged: expected facts asked in both directions and "
    "in more phrasings than are searched on, whose answers differ in a token.",
    "none recalled": "None of the facts that were asked is recalled by {models}, and only recalled "
    "facts are traced: ask other facts, or trace these all the same with --any-answer.",
    "one direction": "These facts are asked in one direction only: keys and values are compared "
    "between directions.",
    "few pairs": "{group} has {count} facts with keys and values in both directions at layer "
    "{layer} ({diverged} more diverged): at least {needed} are needed; extract more facts, or "
    "search more gently by a smaller learning rate.",
    "no runs": "There is no run of `unmask {measure}` to read.",
    "error": "{message}",
}
"""Why something was not measured, by code; runs store the code and the values, not the words."""


class NotMeasuredError(UserError):
    """Something that cannot be measured for a reason that lies in models or data."""

    def __init__(self, code: str, **values: Any):
        self.code, self.values = code, values
        super().__init__(describe_notice(code, values))


def describe_notice(code: str, values: Mapping[str, Any]) -> str:
    """The sentence of a code; one of another version is shown as it is."""
    if code not in NOTICES:
        return f"Not measured ({code}: {', '.join(f'{k} {v}' for k, v in values.items())})."
    return NOTICES[code].format(**values)


def suggest(given: str, known: Iterable[str]) -> str:
    """The end of a sentence about a mistyped name: the nearest known ones, or all of them."""
    known = list(known)
    near = get_close_matches(given, known, n=3, cutoff=0.6)
    if near:
        return "did you mean " + " or ".join(repr(name) for name in near) + "?"
    return "known: " + ", ".join(known)

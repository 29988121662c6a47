"""Settings as frozen dataclasses, built from JSON or YAML; all problems are reported at once."""

import dataclasses
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from unmask.base.errors import UserError, suggest

Settings = TypeVar("Settings")


class SettingsError(UserError):
    """Every problem of one set of settings, in one message."""

    def __init__(self, source: str, problems: Iterable[str]):
        self.problems = list(problems)
        super().__init__(f"{source}: " + "; ".join(self.problems))


def build(cls: type[Settings], values: Mapping[str, Any], source: str) -> Settings:
    """An instance of the dataclass `cls` from `values`; unknown, missing and ill-typed keys raise.

    `source` names the file or command the values came from. A dataclass that checks itself in
    `__post_init__` raises its own `SettingsError`, which is passed on under the same source.
    """
    assert dataclasses.is_dataclass(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = get_type_hints(cls)
    problems = [
        f"unknown key {key!r} ({suggest(str(key), fields)})" for key in values if key not in fields
    ]
    accepted: dict[str, Any] = {}
    for name, field in fields.items():
        if name in values:
            if _fits(values[name], hints[name]):
                accepted[name] = _convert(values[name], hints[name])
            else:
                problems.append(f"{name!r} is {values[name]!r}, expected {_describe(hints[name])}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            problems.append(f"{name!r} is missing, expected {_describe(hints[name])}")
    if problems:
        raise SettingsError(source, problems)
    try:
        return cls(**accepted)
    except SettingsError as error:
        raise SettingsError(source, error.problems) from None


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if origin is tuple:
        element = get_args(hint)[0]
        return isinstance(value, list | tuple) and all(_fits(item, element) for item in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _convert(value: Any, hint: Any) -> Any:
    if hint is float:
        return float(value)
    return tuple(value) if isinstance(value, list) else value


def _describe(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(option) for option in get_args(hint))
    if origin is Literal:
        return "one of " + ", ".join(repr(option) for option in get_args(hint))
    if origin is tuple:
        return "a list of " + _describe(get_args(hint)[0])
    names = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}
    return names.get(
        hint, "nothing" if hint is type(None) else getattr(hint, "__name__", str(hint))
    )

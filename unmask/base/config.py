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

    `source` names the file or command the values came from. Fields that are dataclasses themselves
    are built from mappings, their keys told with dots. A dataclass that checks itself in
    `__post_init__` raises its own `SettingsError`, which is passed on under the same source.
    """
    problems: list[str] = []
    built = _build(cls, values, "", problems)
    if built is None:
        raise SettingsError(source, problems)
    return built


def _build(
    cls: type[Settings], values: Mapping[str, Any], prefix: str, problems: list[str]
) -> Settings | None:
    """The instance, or None with what is wrong added to `problems`."""
    assert dataclasses.is_dataclass(cls)
    before = len(problems)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = get_type_hints(cls)
    problems += [
        f"unknown key {f'{prefix}{key}'!r} ({suggest(str(key), fields)})"
        for key in values
        if key not in fields
    ]
    accepted: dict[str, Any] = {}
    for name, field in fields.items():
        label, hint = repr(prefix + name), hints[name]
        if name not in values:
            if field.default is field.default_factory is dataclasses.MISSING:
                problems.append(f"{label} is missing, expected {_describe(hint)}")
        elif dataclasses.is_dataclass(hint) and isinstance(values[name], Mapping):
            accepted[name] = _build(hint, values[name], f"{prefix}{name}.", problems)
        elif _fits(values[name], hint):
            accepted[name] = _convert(values[name], hint)
        else:
            problems.append(f"{label} is {values[name]!r}, expected {_describe(hint)}")
    if len(problems) > before:
        return None
    try:
        return cls(**accepted)
    except SettingsError as error:
        problems += error.problems
        return None


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

"""Settings as frozen dataclasses, built from JSON or YAML; all problems are reported at once.

A field made by `option` carries its help, its range and its choices, so that the command line, the
checks and the documentation of a setting are one declaration.
"""

import dataclasses
import functools
import inspect
import math
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path, PurePath
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from unmask.base.errors import UserError, suggest
from unmask.base.reading import SURROGATE

Settings = TypeVar("Settings")
Function = TypeVar("Function", bound=Callable[..., Any])

LARGEST = 2**63 - 1
"""The largest whole number without a limit of its own: what tensors and tables can hold."""
LARGEST_FLOAT = 3.4e38
"""The largest number without a limit of its own: what a float of 32 bits can hold."""


class SettingsError(UserError):
    """Every problem of one set of settings, in one message."""

    def __init__(self, source: str, problems: Iterable[str]):
        self.problems = list(problems)
        super().__init__(f"{source}: " + "; ".join(self.problems))


def option(
    default: Any,
    help: str,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Callable[[], Iterable[str]] | None = None,
    is_identity: bool = True,
    plugin: str | None = None,
) -> Any:
    """A field of a `CheckedSettings`: its default and what a command line says about it.

    `least` and `most` are inclusive, `above` and `below` are not; in a tuple they hold for every
    item. A whole number without an upper end is at most `LARGEST`.
    `choices` lists the names a text may be, before an `=`; it is called late, since the tables it
    reads may be heavy to import. What is no `is_identity` (a device, a limit on memory) may differ
    when a run is resumed. `plugin` is the kind of things that it names (`unmask.base.plugins`).
    """
    limits = {"least": least, "most": most, "above": above, "below": below}
    more = {"help": help, "choices": choices, "is_identity": is_identity, "plugin": plugin}
    return dataclasses.field(default=default, metadata=limits | more)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckedSettings:
    """Settings whose types, ranges and choices are checked wherever they are made."""

    renamed: ClassVar[Mapping[str, str]] = {}
    """Fields by the names that they had in records of earlier runs."""
    dropped: ClassVar[frozenset[str]] = frozenset()
    """Fields that records of earlier runs have and nothing reads any more."""
    filled: ClassVar[tuple[str, ...]] = ()
    """Fields of several values that have at least one, beside those of the classes above."""
    distinct: ClassVar[tuple[str, ...]] = ()
    """Fields of several values that have none twice, beside those of the classes above."""

    def __init_subclass__(cls) -> None:
        """Add to the class's docstring what its options say about themselves."""
        super().__init_subclass__()
        options = {name: field for name, field in vars(cls).items() if _is_option(field)}
        if options and cls.__doc__:
            lines = [f"    {name}: {field.metadata['help']}" for name, field in options.items()]
            cls.__doc__ = "\n".join([inspect.cleandoc(cls.__doc__), "", "Args:", *lines])

    def __post_init__(self) -> None:
        problems: list[str] = []
        are_typed, hints = True, get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value, hint = getattr(self, field.name), hints[field.name]
            if isinstance(value, Real) and not _fits(value, hint) and _fits((value,), hint):
                value = (value,)  # a number is a list of one, as on the command line
            if _fits(value, hint):
                object.__setattr__(self, field.name, _convert(value, hint))
            else:
                are_typed = False
            problems += _check(field, value, hint)
        if are_typed:
            problems += dict.fromkeys([*self._count_values(), *self._problems()])
        if problems:
            raise SettingsError(type(self).__name__, problems)

    def _count_values(self) -> Iterator[str]:
        """Which fields have too few values, or one twice."""
        for cls in reversed(type(self).__mro__):
            for name in vars(cls).get("filled", ()):
                if getattr(self, name) == ():
                    yield f"{name!r} is empty, expected at least one value"
            for name in vars(cls).get("distinct", ()):
                if len(set(values := getattr(self, name))) < len(values):
                    yield f"{name!r} is {values}, expected none twice"

    def _problems(self) -> Iterator[str]:
        """What is wrong between fields of the right types; for subclasses."""
        return iter(())

    def to_record(self) -> dict[str, Any]:
        """The settings as JSON holds them."""
        fields = dataclasses.fields(self)
        return {field.name: _to_json(getattr(self, field.name)) for field in fields}


def option_of(cls: type[CheckedSettings], name: str) -> Any:
    """A field that is declared in another `CheckedSettings`: its default, help and limits."""
    field = cls.__dataclass_fields__[name]
    return dataclasses.field(default=field.default, metadata=field.metadata)


def _is_option(value: Any) -> bool:
    return isinstance(value, dataclasses.Field) and "help" in value.metadata


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    return str(value) if isinstance(value, PurePath) else value


def _check(field: dataclasses.Field, value: Any, hint: Any, prefix: str = "") -> Iterator[str]:
    """What is wrong with a field's value: its type, or the limits and choices the field names."""
    label = repr(prefix + field.name)
    if not _fits(value, hint):
        yield f"{label} is {_show(value)}, expected {_describe(hint)}"
        return
    limits = field.metadata
    ends = {name: limits.get(name) for name in ("least", "most", "above", "below")}
    for item in value if isinstance(value, list | tuple) else (value,):
        if limits and isinstance(item, float) and not math.isfinite(item):
            yield f"{label} is {item}, expected a finite number"
        elif isinstance(item, Real) and not isinstance(item, bool):
            yield from (f"{label} is {_show(item)}, {wrong}" for wrong in _compare(item, **ends))
        elif isinstance(item, str) and "help" in limits and SURROGATE.search(item):
            yield f"{label} is {_show(item)}, expected a text without halves of surrogate pairs"
        elif isinstance(item, str) and limits.get("choices") is not None:
            known = list(limits["choices"]())
            if item.partition("=")[0] not in known:
                yield f"{label} is {_show(item)}, expected one of {', '.join(known)}"


def _compare(
    number: float, least: float | None, most: float | None, above: float | None, below: float | None
) -> Iterator[str]:
    """What a number should have been instead."""
    if least is not None and number < least:
        yield f"expected at least {least:,}"
    if above is not None and number <= above:
        yield f"expected more than {above:,}"
    if below is not None and number >= below:
        yield f"expected less than {below:,}"
    if most is None and below is None:
        most = LARGEST if isinstance(number, int) else LARGEST_FLOAT
    if (
        most is not None and most < number < math.inf
    ):  # each class says itself what it holds of infinity
        yield f"expected at most {most:,}"


def _show(value: Any) -> str:
    """A value in an error message, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        text = "a number of more digits than can be shown"
    return text if len(text) <= 200 else f"{text[:200]}…"


def build(
    cls: type[Settings], values: Mapping[str, Any], source: str, start: Settings | None = None
) -> Settings:
    """An instance of the dataclass `cls` from `values`; unknown, missing and ill-typed keys raise.

    `source` names the file or command the values came from. Of `start`, settings that there are
    already, `values` are changes, else of the defaults. Fields that are dataclasses themselves
    are built from mappings, their keys told with dots. A dataclass that checks itself in
    `__post_init__` raises its own `SettingsError`, which is passed on under the same source.
    """
    problems: list[str] = []
    if start is not None:
        cls, values = type(start), {**vars(start), **values}
    built = _build(cls, values, "", problems)
    if built is None:
        raise SettingsError(source, problems)
    return built


def adjust(
    function: Callable,
    cls: type[Settings],
    settings: Settings | None,
    changes: Mapping[str, Any],
    leave_out: Collection[str] = (),
) -> Settings:
    """The settings, or the defaults for None, with those changed that keyword arguments name.

    `function` took them as its `**changes`; fields to `leave_out` are none of its arguments.
    """
    assert dataclasses.is_dataclass(cls)
    caller = getattr(function, "__name__", "the function")
    if settings is not None and not isinstance(settings, cls):
        raise UserError(
            f"{caller} was given {_show(settings)} as its settings: expected "
            f"{cls.__name__}(…), or each setting by its name."
        )
    fields = [field.name for field in dataclasses.fields(cls) if field.name not in leave_out]
    for name in (each for each in changes if each not in fields):
        parameters = inspect.signature(function).parameters.values()
        known = fields + [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
        raise UserError(f"{caller} has no argument {name!r}: {suggest(name, known)}")
    chosen: Any = cls() if settings is None else settings
    return dataclasses.replace(chosen, **changes)


def list_settings(
    cls: type[CheckedSettings], leave_out: Collection[str] = ()
) -> Callable[[Function], Function]:
    """Have a function's docstring list its `**changes`: every option and its meaning.

    They take the place of `{settings}`, which stands on a line of its own.
    """

    def document(function: Function) -> Function:
        fields = [field for field in dataclasses.fields(cls) if field.name not in leave_out]
        lines = [f"    {field.name}: {field.metadata['help']}" for field in fields]
        if function.__doc__ is not None:  # python -OO
            text = inspect.cleandoc(function.__doc__)
            function.__doc__ = text.replace("    {settings}", "\n".join(lines))
        return function

    return document


def check_arguments(
    leave_out: Collection[str] = (), **limits: tuple[float, float]
) -> Callable[[Function], Function]:
    """Have a public function refuse arguments that are not what its annotations say.

    Numbers that `limits` names lie within these ends. Arguments to `leave_out` it checks itself.
    """

    def decorate(function: Function) -> Function:
        signature, name = inspect.signature(function), getattr(function, "__name__", "")
        single = [
            each
            for each in signature.parameters.values()
            if each.kind.name[:3] != "VAR" and each.name not in leave_out
        ]

        @functools.wraps(function)
        def checked(*args: Any, **values: Any) -> Any:
            arguments = signature.bind(*args, **values).arguments
            given = {
                each.name: arguments[each.name]
                for each in single
                if arguments.get(each.name, each.default) is not each.default
            }
            if problems := check_values(given, get_type_hints(function), **limits):
                raise SettingsError(name, problems)
            return function(*args, **values)

        return checked  # ty: ignore[invalid-return-type]

    return decorate


def check_values(
    values: Mapping[str, Any], hints: Mapping[str, Any], **limits: tuple[float, float]
) -> list[str]:
    """What is wrong with values: other types than their hints, or out of their limits."""
    problems: list[str] = []
    for name in values.keys() & hints.keys():
        least, most = limits.get(name, (None, None))
        field = dataclasses.field(metadata={"least": least, "most": most})
        field.name, value = name, values[name]
        problems += _check(field, value, hints[name])
        if Path in get_args(hints[name]) and "\0" in str(value):
            problems.append(f"{name!r} is {_show(value)}, expected a path without null characters")
    return problems


def _build(
    cls: type[Settings], values: Mapping[str, Any], prefix: str, problems: list[str]
) -> Settings | None:
    """The instance, or None with what is wrong added to `problems`."""
    assert dataclasses.is_dataclass(cls)
    before = len(problems)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = get_type_hints(cls)
    renamed: Mapping[str, str] = getattr(cls, "renamed", {})
    values = {renamed.get(key, key): value for key, value in values.items()}
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
        elif wrong := list(_check(field, values[name], hint, prefix)):
            problems += wrong
        else:
            accepted[name] = _convert(values[name], hint)
    if len(problems) > before:
        return None
    try:
        return cls(**accepted)
    except SettingsError as error:
        problems += error.problems
        return None


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return False
        element, *others = get_args(hint)
        is_long = not others or others[-1] is ... or len(value) == 1 + len(others)
        return is_long and all(_fits(item, element) for item in value)
    if origin is Sequence:
        if not isinstance(value, Sequence) and hasattr(value, "tolist"):
            value = value.tolist()  # another library's array
        is_one = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        return is_one and all(_fits(item, get_args(hint)[0]) for item in value)
    if origin is Mapping:
        keys, values = get_args(hint)
        return isinstance(value, Mapping) and all(
            _fits(key, keys) and _fits(item, values) for key, item in value.items()
        )
    if hint is float:
        is_large = isinstance(value, int) and abs(value) > sys.float_info.max
        return isinstance(value, Real) and not isinstance(value, bool) and not is_large
    if hint is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    return isinstance(value, origin or hint)


def _convert(value: Any, hint: Any) -> Any:
    if hint in (int, float):
        return hint(value)  # another library's numbers become Python's
    return tuple(value) if isinstance(value, list) and hint is not Any else value


def _describe(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(option) for option in get_args(hint))
    if origin is Literal:
        return "one of " + ", ".join(repr(option) for option in get_args(hint))
    if origin in (tuple, Sequence):
        return "a list of " + _describe(get_args(hint)[0])
    names: dict[Any, str] = {
        int: "an integer",
        float: "a number",
        str: "a text",
        bool: "true or false",
        dict: "entries by name",
    }
    return names.get(
        hint, "nothing" if hint is type(None) else getattr(hint, "__name__", str(hint))
    )

"""Commands derived from settings: options, defaults, choices and help are the dataclass's own."""

import dataclasses
import inspect
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from unmask.base.config import CheckedSettings, build
from unmask.base.errors import UserError
from unmask.base.plugins import list_installed
from unmask.measures.contract import Argument


def make_command(
    name: str,
    help: str,
    arguments: Sequence[Argument],
    settings: type[CheckedSettings],
    extras: Sequence[inspect.Parameter],
    call: Callable[[Mapping[str, Any], Any, Mapping[str, Any]], None],
    leave_out: Collection[str] = (),
) -> Callable[..., None]:
    """A function that typer makes a command of; it calls `call(arguments, settings, extras)`.

    Settings to `leave_out` are no options.
    """
    fields = [field for field in list_fields(settings) if field.name not in leave_out]
    hints = get_type_hints(settings)
    parameters = [_make_argument(each) for each in arguments]
    parameters += [_make_option(field, hints[field.name]) for field in fields]
    parameters += extras

    def command(**values: Any) -> None:
        given = {each.name: values.pop(each.name) for each in arguments}
        more = {each.name: values.pop(each.name) for each in extras}
        parsed = {
            key: _parse(value, hints[key], f"--{key.replace('_', '-')}")
            for key, value in values.items()
        }
        call(given, build(settings, parsed, f"unmask {name}"), more)

    command.__doc__ = help
    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def list_fields(settings: type[CheckedSettings]) -> list[dataclasses.Field]:
    """The fields, those of the class itself before those it inherits."""
    by_name = {field.name: field for field in dataclasses.fields(settings)}
    ordered = [name for base in settings.__mro__ for name in vars(base).get("__annotations__", {})]
    return [by_name[name] for name in dict.fromkeys(ordered) if name in by_name]


def list_models() -> list[str]:
    """The names that stand for models, for a shell to complete."""
    from unmask.net.hub import shipped_models
    from unmask.net.known import KNOWN

    return [*shipped_models(), *KNOWN]


def add_option(
    name: str, kind: Any, default: Any, help: str, *flags: str, choices: Sequence[str] = ()
) -> inspect.Parameter:
    """An option that is not a setting, such as where to write; a shell completes its choices.

    One that is true or false is false unless its flag is given.
    """
    if kind is bool and not flags:
        flags = (f"--{name.replace('_', '-')}",)
    spec = typer.Option(default, *flags, help=help, autocompletion=lambda: list(choices))
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=spec, annotation=kind)


def _make_argument(argument: Argument) -> inspect.Parameter:
    kind: Any = list[str] if argument.is_list else str
    name, help, metavar = argument.name, argument.help, argument.metavar
    default: Any = ... if argument.is_required else None
    if argument.is_option:
        return add_option(name, kind if argument.is_required else kind | None, default, help)
    completion = list_models if (metavar or "").startswith("MODEL") else None
    spec = typer.Argument(default, metavar=metavar, help=help, autocompletion=completion)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=spec, annotation=kind)


def _make_option(field: dataclasses.Field, hint: Any) -> inspect.Parameter:
    flag = f"--{field.name.replace('_', '-')}"
    option_type, default, flags = _choose_type(hint), field.default, (flag,)
    if option_type is bool:
        flags = (f"{flag}/--no-{flag[2:]}",)
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    given = field.metadata.get("choices")
    choices = list(given()) if given is not None else _list_literals(hint)
    help = field.metadata.get("help", "") + (f" One of: {', '.join(choices)}." if choices else "")
    help += " Separated by commas." if _is_tuple(hint) else ""
    if theirs := list_installed(kind) if (kind := field.metadata.get("plugin")) else {}:
        help += f" Of other packages: {', '.join(f'{n} ({of})' for n, of in theirs.items())}."
        choices += list(theirs)
    return add_option(field.name, option_type, default, help, *flags, choices=choices)


def _list_literals(hint: Any) -> list[str]:
    if get_origin(hint) is Literal:
        return [str(option) for option in get_args(hint)]
    return [name for option in get_args(hint) for name in _list_literals(option)]


def _options_of(hint: Any) -> tuple[Any, ...]:
    is_union = get_origin(hint) in (Union, types.UnionType)
    return get_args(hint) if is_union else (hint,)


def _is_tuple(hint: Any) -> bool:
    return any(get_origin(option) is tuple for option in _options_of(hint))


def _choose_type(hint: Any) -> Any:
    """The type that typer reads: lists and names are texts, parsed and checked by the settings."""
    options = [option for option in _options_of(hint) if option is not type(None)]
    chosen = next((each for each in (bool, int, float, Path) if options == [each]), str)
    return chosen if type(None) not in _options_of(hint) else chosen | None


def _parse(value: Any, hint: Any, flag: str) -> Any:
    """A text as the setting wants it: a list by its commas, numbers as numbers."""
    if not isinstance(value, str) or not _is_tuple(hint):
        return value
    (item,) = (get_args(option)[0] for option in _options_of(hint) if get_origin(option) is tuple)
    words = [word.strip() for word in value.split(",") if word.strip()]
    number = {int: int, float: float}.get(item, str)
    try:
        return tuple(number(word) for word in words)
    except ValueError:
        what = "whole numbers" if number is int else "numbers"
        raise UserError(f"{flag} is {value!r}: expected {what}, separated by commas.") from None

"""Code known by its contents: digests of functions, so that two of one name are told apart.

A function is its bytecode, with its defaults, the variables of functions around it that it uses,
and what it uses of its own module: values, classes and other functions. The code of libraries and
of this package is known by its names alone: records of runs have the versions of these.
Another version of Python has other bytecode.
"""

import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import PurePath
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from unmask.base.identity import digest_values

PLAIN = (bool, int, float, complex, str, bytes, PurePath, type(None), type(...))
"""Values without code, known by what they print."""
_ARRAYS = ("torch", "numpy")
"""Whose arrays are known by their numbers, whose classes and functions by their names alone."""
_LIBRARIES = tuple(map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))


def digest_code(*values: object) -> str:
    """A digest of functions, classes or objects that have some, and of what is used in them.

    What may refer to itself is a number where it is met, and taken apart after the rest.
    """
    first = next(map(_unwrap, values), None)
    home = str(getattr(first, "__module__", "")).partition(".")[0]
    home = "" if home in _ARRAYS else home
    numbers, met = dict[int, int](), list[object]()
    contents = [part for each in values for part in _list_parts(each, home, numbers, met)]
    for value in met:  # which grows
        contents.append(type(value).__qualname__)
        for each in _take_apart(value, home):
            contents += _list_parts(each, home, numbers, met)
    return digest_values(contents)


def _unwrap(value: Any) -> Any:
    return _unwrap(value.func) if isinstance(value, partial) else value


def _list_parts(
    value: Any, home: str, numbers: dict[int, int], met: list[object]
) -> Iterator[object]:
    """A value in plain parts, in an order that is the same in every process."""
    # Libraries wrap functions when they like: torch an optimiser's step once it is used.
    while hasattr(value, "__wrapped__") and _is_of_library(value):
        value = value.__wrapped__
    kind = type(value)
    if isinstance(value, PLAIN):
        yield value if isinstance(value, bytes) else (kind.__qualname__, str(value))
    elif isinstance(value, set | frozenset):
        yield len(value)
        known = (*PLAIN, tuple)
        yield sorted(digest_code(each) if isinstance(each, known) else "" for each in value)
    elif kind.__module__.partition(".")[0] in _ARRAYS and isinstance(
        getattr(value, "shape", None), tuple
    ):
        yield from _list_numbers(value)
    elif isinstance(value, tuple | CodeType):  # of which equal ones may or may not be one object
        parts = value if isinstance(value, tuple) else _take_code_apart(value)
        yield len(parts)
        for part in parts:
            yield from _list_parts(part, home, numbers, met)
    else:
        if id(value) not in numbers:
            numbers[id(value)] = len(met)
            met.append(value)
        yield numbers[id(value)]


def _take_code_apart(code: CodeType) -> tuple[Any, ...]:
    names = (code.co_names, code.co_varnames, code.co_freevars)
    counts = (code.co_argcount, code.co_kwonlyargcount, code.co_flags)
    return (code.co_code, code.co_exceptiontable, *names, *counts, code.co_consts)


def _take_apart(value: Any, home: str) -> Iterator[Any]:
    """What a value consists of, as far as it decides what code does."""
    kind = type(value)
    if isinstance(value, list):
        yield from value
    elif isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, staticmethod | classmethod):
        yield value.__func__
    elif isinstance(value, property):
        yield value.fget
    elif isinstance(value, re.Pattern):
        yield from (value.pattern, value.flags)
    elif isinstance(value, ModuleType):
        yield value.__name__
    elif isinstance(value, CellType):
        yield from _open_cell(value)
    elif isinstance(value, FunctionType | type):
        yield from (value.__module__, value.__qualname__)
        if isinstance(value, FunctionType):
            yield from (value.__defaults__, value.__kwdefaults__, value.__closure__)
        if _is_own(value.__module__, home):
            yield from _list_own(value)
    elif "torch" in sys.modules and isinstance(value, sys.modules["torch"].nn.Module):
        yield value.state_dict()
    elif hasattr(value, "__wrapped__"):  # what `functools.cache` makes of a function
        yield value.__wrapped__
    else:
        yield kind.__module__
        if is_own := _is_own(kind.__module__, home):
            yield kind
        if is_dataclass(value):
            yield from (getattr(value, each.name) for each in fields(value))
        elif is_own:
            yield from getattr(value, "__dict__", {}).items()


def _open_cell(cell: CellType) -> Iterator[Any]:
    try:
        yield cell.cell_contents
    except ValueError:  # a variable that has no value yet
        return


def _list_own(value: Any) -> Iterator[Any]:
    """What a function or a class of one's own consists of."""
    if isinstance(value, type):
        yield value.__bases__
        for name, each in vars(value).items():
            if isinstance(each, FunctionType) or not name.startswith("__"):
                yield (name, each)
        return
    yield value.__code__
    for name in dict.fromkeys(_list_names(value.__code__)):
        if name in value.__globals__:
            yield (name, value.__globals__[name])


def _list_names(code: CodeType) -> Iterator[str]:
    """Names that code uses and does not define, functions inside it included."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _list_names(each)


def _is_own(name: str | None, home: str) -> bool:
    """Whether a module is of the package that was asked about, or of no library."""
    top = str(name).partition(".")[0]
    if top in ("unmask", home):
        return top != "unmask"
    file = getattr(sys.modules.get(top), "__file__", None)
    return file is not None and not file.startswith(_LIBRARIES)


def _is_of_library(value: Any) -> bool:
    """Whether a function's code is a library's, whatever module it says that it is of."""
    code = getattr(value, "__code__", None)
    return code is not None and code.co_filename.startswith(_LIBRARIES)


def _list_numbers(value: Any) -> Iterator[object]:
    """An array or a tensor."""
    yield (str(value.dtype), tuple(value.shape))
    if hasattr(value, "detach"):
        import torch

        value = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    yield value.tobytes()

"""Shapes and dtypes of tensors are checked at run time, wherever a signature of unmask names them.

Other types are the static checker's work: it sees them all, and tests may pass stand-ins. To keep
tests fast, only functions that name an array are wrapped (jaxtyping's own import hook wraps all),
and a call is checked where its arguments have shapes that the function has not been called with,
if it is among the function's first calls in a test.
"""

import ast
import collections.abc
import dataclasses
import functools
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, get_args, get_origin

import jaxtyping
import numpy as np
import torch
from beartype import BeartypeConf, beartype
from jaxtyping import _storage

CONF = BeartypeConf(is_random=False)
"""Of a list of tensors the first is checked, not a random one: a test fails always or never."""
SUFFIX = f".checked-{zlib.crc32(Path(__file__).read_bytes()):08x}.pyc"
"""Ends the names of compiled files with checks; other checks, other files."""
MOST_CALLS = 40
"""Calls of one function that are looked at in a test; some are called ten thousands of times."""
_test = 0


def install() -> None:
    """From here on every module of unmask that is imported checks its shapes when called."""
    sys.meta_path.insert(0, _Finder())


def check(decorated: Any) -> Any:
    """The function or dataclass, raising where an array differs from what its annotation says."""
    if isinstance(decorated, type):
        if dataclasses.is_dataclass(decorated):
            decorated.__init__ = check(decorated.__init__)
        return decorated
    if not any(_has_array(hint) for hint in decorated.__annotations__.values()):
        return decorated
    seen, test, left = set(), -1, 0

    @functools.cache
    def make_checked() -> Callable:  # most functions are not called by most processes
        return jaxtyping.jaxtyped(decorated, typechecker=_check_arrays)

    @functools.wraps(decorated)
    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal test, left
        if jaxtyping.config.jaxtyping_disable:  # first: a compiler follows what comes before
            return decorated(*args, **kwargs)
        if test != _test:
            test, left = _test, MOST_CALLS
        left -= 1
        if left < 0:
            return decorated(*args, **kwargs)
        shapes = _describe(args)
        if kwargs:
            shapes = shapes, *kwargs, _describe(kwargs.values())
        if shapes in seen:
            return decorated(*args, **kwargs)
        depth = _count_calls()
        try:
            result = make_checked()(*args, **kwargs)
        except BaseException:
            forget_calls(depth)  # a signal or full stack may come before the checker's own clean-up
            raise
        seen.add(shapes)
        return result

    return run


def begin_test() -> None:
    """Look at the first calls of every function again; what an earlier test broke off is gone."""
    global _test
    _test += 1
    forget_calls()


def forget_calls(depth: int = 0) -> None:
    """Have the checker forget the sizes of all calls but the outermost `depth`."""
    del getattr(_storage._shape_storage, "memo_stack", [])[depth:]


def _count_calls() -> int:
    return len(getattr(_storage._shape_storage, "memo_stack", []))


def _check_arrays(function: Callable) -> Callable:
    hints = function.__annotations__
    for name in [name for name, hint in hints.items() if not _has_array(hint)]:
        del hints[name]
    return beartype(function, conf=CONF)


def _has_array(hint: Any) -> bool:
    """Whether an array stands in the annotation, as in a list of arrays."""
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    if get_origin(hint) is collections.abc.Callable:
        return False  # nobody can tell before the call
    return any(_has_array(part) for part in get_args(hint))


def _describe(values: Iterable[Any]) -> tuple:
    """What a check can depend on: shapes and dtypes of arrays, types of all else."""
    found = []
    for value in values:
        kind = type(value)
        found.append(kind)
        if (base := _find_base(kind)) is not None:
            if base in (list, tuple):
                found.append(_describe(value[:1]))
            elif base is Mapping:
                found.append(_describe([*value.values()][:1]))
            else:
                found += value.shape, value.dtype
    return tuple(found)


@functools.cache
def _find_base(kind: type) -> type | None:
    """Which of these a type is; looking it up is quicker than asking at each of many calls."""
    bases = (torch.Tensor, np.ndarray, list, tuple, Mapping)
    return next((base for base in bases if issubclass(kind, base)), None)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "unmask":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    """Compiles a module with `check` above its classes and below its functions' own decorators.

    Compiled files have names of their own: the package uses the others unchecked.
    """

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:
        tree = ast.fix_missing_locations(_Decorate().visit(ast.parse(data)))
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)

    def get_data(self, path: str) -> bytes:
        return super().get_data(_name_checked(path))

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        super().set_data(_name_checked(path), data, _mode=_mode)


def _name_checked(path: str) -> str:
    return path.removesuffix(".pyc") + SUFFIX if path.endswith(".pyc") else path


class _Decorate(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.decorator_list.append(_name_check(node))
        return node  # functions inside are left alone: they are made again at every call

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        node.decorator_list.insert(0, _name_check(node))
        self.generic_visit(node)
        return node


def _name_check(node: ast.stmt) -> ast.expr:
    """`check` as a decorator of the node, in its line."""
    expression = ast.parse(f"__import__('sys').modules[{__name__!r}].check", mode="eval").body
    for part in ast.walk(expression):
        ast.copy_location(part, node)
    return expression

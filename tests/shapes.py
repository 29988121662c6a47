"""Shapes and dtypes of tensors are checked at run time, wherever a signature of unmask names them.

Other types are the static checker's work: it sees them all, and tests may pass stand-ins. jaxtyping
has an import hook of its own, which wraps every function; wrapping only those that name an array
takes a third of the time.
"""

import ast
import collections.abc
import dataclasses
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, TypeVar, get_args, get_origin

from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, jaxtyped

Decorated = TypeVar("Decorated", bound=Callable)

CONF = BeartypeConf(is_random=False)
"""Of a list of tensors the first is checked, not a random one: a test fails always or never."""


def install() -> None:
    """From here on every module of unmask that is imported checks its shapes when called."""
    sys.meta_path.insert(0, _Finder())


def check(decorated: Decorated) -> Decorated:
    """The function or dataclass, raising where an array differs from what its annotation says."""
    made = decorated.__init__ if dataclasses.is_dataclass(decorated) else decorated
    hints = getattr(made, "__annotations__", {}).values()
    return (
        jaxtyped(decorated, typechecker=_check_arrays) if any(map(_has_array, hints)) else decorated
    )


def _check_arrays(function: Callable) -> Callable:
    hints = function.__annotations__
    for name in [name for name, hint in hints.items() if not _has_array(hint)]:
        del hints[name]
    return beartype(function, conf=CONF)


def _has_array(hint: Any) -> bool:
    """Whether an array stands in the annotation, as in a list of arrays."""
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    if get_origin(hint) is collections.abc.Callable:
        return False  # nobody can tell before the call
    return any(_has_array(part) for part in get_args(hint))


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
    """Compiles a module with `check` above its classes and below its functions' own decorators."""

    def get_code(self, fullname: str) -> CodeType:
        # Never from or into the cache of compiled files, which the package uses unchecked.
        tree = _Decorate().visit(ast.parse(self.get_data(self.path)))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


class _Decorate(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.decorator_list.append(_name_check())
        return node  # functions inside are left alone: they are made again at every call

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        node.decorator_list.insert(0, _name_check())
        self.generic_visit(node)
        return node


def _name_check() -> ast.expr:
    return ast.parse(f"__import__('sys').modules[{__name__!r}].check", mode="eval").body

"""Shapes and dtypes of tensors are checked at run time, wherever a signature of unmask names them.

Other types are the static checker's work: it sees them all, and tests may pass stand-ins.
"""

import collections.abc
from collections.abc import Callable
from typing import Any, get_args, get_origin

from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, install_import_hook

CONF = BeartypeConf(is_random=False)
"""Of a list of tensors the first is checked, not a random one: a test fails always or never."""


def install() -> None:
    """From here on every module of unmask that is imported checks its shapes when called."""
    install_import_hook("unmask", typechecker="tests.shapes.check")


def check(function: Callable) -> Callable:
    """The function, raising where an array differs from what its annotation says."""
    hints = function.__annotations__
    for name in [name for name, hint in hints.items() if not _names_array(hint)]:
        del hints[name]
    return beartype(function, conf=CONF)


def _names_array(hint: Any) -> bool:
    """Whether an array stands in the annotation, as in a list of arrays."""
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    if get_origin(hint) is collections.abc.Callable:
        return False  # nobody can tell before the call
    return any(_names_array(part) for part in get_args(hint))

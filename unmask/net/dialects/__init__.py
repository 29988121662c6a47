"""Checkpoint dialects, one small file each: how others name and lay out the same network.

A dialect is a module of this folder with a `DIALECT` (or a few akin to each other, `DIALECTS`); a
new one is found by being there, one of another package by its entry point. Most are a `Layout`: a
table of settings and one of tensor names.
"""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from unmask.base.errors import UserError
from unmask.base.plugins import Registry
from unmask.net.dialects.dialect import Dialect, Source

_NOT_DIALECTS = ("dialect", "layouts", "names")


@cache
def _import_own() -> dict[str, Dialect]:
    """This package's dialects by name."""
    modules = (module.name for module in iter_modules(__path__) if module.name not in _NOT_DIALECTS)
    known: dict[str, Dialect] = {}
    for name in modules:
        module = import_module(f"{__name__}.{name}")
        akin = module.DIALECTS if hasattr(module, "DIALECTS") else (module.DIALECT,)
        known |= {dialect.name: dialect for dialect in akin}
    return known


DIALECTS = Registry[Dialect](
    "dialect",
    _import_own,
    lambda thing: isinstance(thing, Dialect),
    "a unmask.net.dialects.dialect.Dialect",
)


def recognise(source: Source) -> Dialect:
    """The dialect that a checkpoint is written in."""
    kind = source.config.get("model_type")
    if not isinstance(kind, str | None):
        raise UserError(f"{source.label} has the model_type {kind!r:.80}: expected a text.")
    for _, dialect in DIALECTS.load_each():
        if dialect.recognise(source):
            return dialect
    given = f"model_type {kind!r}" if kind else "no model_type in a config.json beside it"
    raise UserError(
        f"{source.label} has {given} and tensors such as "
        f"{', '.join(sorted(source.shapes)[:3])}: none of the known dialects "
        f"({', '.join(DIALECTS)}) has these."
    )

"""Unmask: train, sample, evaluate and open up diffusion language models.

The public names, which `__init__.pyi` lists, are loaded on first use, so that `import unmask` and
`unmask --help` do not wait for torch.
"""

from functools import cache
from importlib import import_module
from pathlib import Path

__version__ = "0.2.0.dev0"


@cache
def _find_homes() -> dict[str, tuple[str, str]]:
    """The module of each public name, and what it is called there."""
    import ast

    homes: dict[str, tuple[str, str]] = {}
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8")).body:
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                homes |= {str(each.asname): (module, each.name) for each in names}
            case ast.Assign([ast.Name(name)], ast.Attribute(ast.Name(measure), attribute)):
                homes[name] = (".".join(homes[measure]), attribute)
    return {name: home for name, home in homes.items() if not name.startswith("_")}


def __getattr__(name: str) -> object:
    if name == "__all__":
        return __dir__()
    if name.startswith("_") or name not in _find_homes():
        raise AttributeError(f"module 'unmask' has no attribute {name!r}")
    home, own_name = _find_homes()[name]
    if home == __name__:
        return import_module(f"{home}.{own_name}")
    return getattr(import_module(home), own_name)


def __dir__() -> list[str]:
    return sorted([*_find_homes(), "__version__"])

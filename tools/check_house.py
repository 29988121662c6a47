"""The rules of the house that no linter knows: rooms import in one direction, files stay small.

python tools/check_house.py [ROOT]
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOMS = (
    "base",
    "data",
    "noise",
    "net",
    "objectives",
    "sampling",
    "evaluation",
    "training",
    "tracing",
    "representation",
    "editing",
    "blocks",
    "measures",
    "report",
    "toy",
    "study",
    "explorer",
    "cli",
)
TOP_LEVEL = ("unmask/__init__.py", "unmask/__main__.py")
"""Files of the package that belong to no room; `__init__` only names what the rooms offer."""
MOST_LINES = 400
UPPER = ("measures", "report", "study", "cli")
"""Packages whose files are held to a narrower range."""
MOST_UPPER_LINES, LEAST_LINES, MOST_SMALL = 350, 50, 9
"""Lines of a file there, lines below which it is small, and how many may be."""


def find_breaches(root: Path) -> Iterator[str]:
    """Every breach of the rules below `root`, as `file:line: what`."""
    for file in sorted((root / "unmask").rglob("*.py")):
        name = file.relative_to(root).as_posix()
        yield from _find_order_breaches(file, name)
    small = []
    for file in sorted(path for path in root.rglob("*.py") if not _is_foreign(path, root)):
        count, name = _count_lines(file), file.relative_to(root).as_posix()
        is_upper = any(name.startswith(f"unmask/{package}/") for package in UPPER)
        most = MOST_UPPER_LINES if is_upper else MOST_LINES
        if count > most:
            yield f"{name}:{count}: {count} lines, more than {most}: it holds two things"
        if is_upper and count < LEAST_LINES:
            small.append(name)
    if len(small) > MOST_SMALL:
        yield (
            f"{small[0]}:1: {len(small)} files of {', '.join(UPPER)} have fewer than {LEAST_LINES} "
            f"lines, more than {MOST_SMALL}: {', '.join(small)}"
        )


def _count_lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def _find_order_breaches(file: Path, name: str) -> Iterator[str]:
    room = _room_of(name.removesuffix(".py").replace("/", "."))
    if room is None:
        if name not in TOP_LEVEL and not name.startswith("unmask/assets/"):
            yield f"{name}:1: a room that tools/check_house.py does not know"
        return
    tree = ast.parse(file.read_text(encoding="utf-8"))
    yield from (f"{name}:{line}: {what}" for line, what in _find_hidden_rooms(tree))
    reached = {(line, _room_of(module)) for line, module in _imported(tree)}
    for line, other in sorted((line, other) for line, other in reached if other is not None):
        if ROOMS.index(other) > ROOMS.index(room):
            yield f"{name}:{line}: {room} imports from {other}, a later room"


def _imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _find_hidden_rooms(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Imports that do not say which room they reach."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield node.lineno, "a relative import hides its room"
        elif isinstance(node, ast.ImportFrom) and node.module == "unmask":
            for alias in node.names:
                if alias.name not in (*ROOMS, "__version__"):
                    yield node.lineno, f"`from unmask import {alias.name}` hides its room"


def _room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "unmask" and len(parts) > 1 and parts[1] in ROOMS else None


def _is_foreign(path: Path, root: Path) -> bool:
    return any(
        part.startswith(".") or part in ("build", "dist") for part in path.relative_to(root).parts
    )


if __name__ == "__main__":
    found = list(find_breaches(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
    print("\n".join(found) or "the house is in order")
    sys.exit(bool(found))

"""The rules that no linter knows: layers, circles, sizes, no printing, plain words, names, kinds.

python tools/check_layers.py [ROOT]
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

LAYERS = (
    "base",
    "data",
    "noise",
    "net",
    "compiled",
    "objectives",
    "sampling",
    "evaluation",
    "training",
    "tracing",
    "representation",
    "dictionaries",
    "editing",
    "blocks",
    "results",
    "measures",
    "experiments",
    "report",
    "toy",
    "study",
    "explorer",
    "harness",
    "sweep",
    "cli",
)
"""The packages of `unmask`; each imports only from itself and from those before it."""
TOP_LEVEL = ("unmask/__init__.py", "unmask/__main__.py", "unmask/corruptions.py")
"""Files that belong to no package; they only name what the packages offer."""
MEASURED = ("measures", "experiments")
FLOOR = re.compile(
    r"unmask\.measures(\.(calls|contract|inputs|measure|result|runner|settings|stored|table"
    r"|trainings)\b.*)?|unmask\.experiments(\.\w+\.corpus\b.*)?"
)
"""What later packages import of measures and experiments: nothing that is of one measure alone,
but the corpora that `unmask data make` makes."""
PRINTING = ("unmask/cli/", "unmask/__main__.py")
"""Where the built-in `print` may be called; a library logs."""
MOST_LINES = 400
UPPER = ("measures", "experiments", "report", "study", "cli")
"""Packages whose files are held to a narrower range."""
MOST_UPPER_LINES, LEAST_LINES, MOST_SMALL = 350, 50, 5
"""Lines of a file there, lines below which it is small, and how many may be, `__init__` apart."""

PHRASES = re.compile(
    r"\bnats a\b|\bis no (number|mask|bound|token)\b|\bat one stroke\b|\bnumber formats?\b"
    r"|\bgone on with\b|\ba row a fact\b|\bone sentence a\b|\bmask impossible\b"
)
"""Not the English of the field: per token, not a number, atomically, dtype, resumed, …"""
NAMES = re.compile(r"_?(told|found|mine|whose|said|asked|how|lesson|bench|tell_\w+)")
"""Names of variables, arguments and functions that do not say what they hold or do."""
HOOKS = ("prepare", "conclude", "list_jobs", "summarise", "judge", "describe", "pool")
HOOKED = ("unmask/measures/", "unmask/experiments/")
"""Functions that a measure's record names, and where each measure may have its own."""
UNREADABLE = re.compile(r"(The same|Of|Those|What it|Whether they)\b")
"""Beginnings of docstrings that cannot be read alone."""
MOST_KINDS = 5
"""Files that may compare the kind of a model; all others ask `unmask.net.paradigm.Paradigm`."""


def find_breaches(root: Path) -> Iterator[str]:
    """Every breach of the rules below `root`, as `file:line: what`."""
    names: dict[tuple[str, str], list[str]] = defaultdict(list)
    kinds, trees = [], {}
    for file in sorted((root / "unmask").rglob("*.py")):
        name = file.relative_to(root).as_posix()
        text = file.read_text(encoding="utf-8")
        tree = trees[name] = ast.parse(text)
        yield from (f"{name}:{line}: {what}" for line, what in _find_order_breaches(tree, name))
        if not name.startswith(PRINTING):
            yield from (f"{name}:{line}: print: use logging" for line in _find_prints(tree))
        kinds += [f"{name}:{line}" for line in _find_kinds(tree)[:1]]
        for line, word in _find_words(text, tree):
            yield f"{name}:{line}: {word} is not plain English of the field"
        for line, first in _find_unreadable(tree):
            yield f"{name}:{line}: a docstring begins with {first!r}: say the whole thing"
        for line, each in _find_classes(tree):
            names["class or alias", each.lstrip("_")].append(f"{name}:{line}")
        for line, each in _find_functions(tree):
            if not (each in HOOKS and name.startswith(HOOKED)):
                names["public function", each].append(f"{name}:{line}")
    for (what, each), places in names.items():
        if len(places) > 1:
            yield f"{places[1]}: another {what} {each}, the first is at {places[0]}"
    for circle in _find_circles(trees):
        yield f"{circle[0]}:1: a circle of imports: {' → '.join(circle)}"
    if len(kinds) > MOST_KINDS:
        yield (
            f"{len(kinds)} files compare the kind of a model, more than {MOST_KINDS}: "
            f"{', '.join(kinds)}; ask its paradigm, or name another sort of kind otherwise"
        )
    yield from _find_wrong_sizes(root)


def _find_wrong_sizes(root: Path) -> Iterator[str]:
    small = []
    for file in sorted(path for path in root.rglob("*.py") if not _is_foreign(path, root)):
        name = file.relative_to(root).as_posix()
        count = len(file.read_text(encoding="utf-8").splitlines())
        is_upper = _package_of(name) in UPPER
        most = MOST_UPPER_LINES if is_upper else MOST_LINES
        if count > most:
            yield f"{name}:{count}: {count} lines, more than {most}: it holds two things"
        if is_upper and count < LEAST_LINES and file.name != "__init__.py":
            small.append(name)
    if len(small) > MOST_SMALL:
        yield (
            f"{small[0]}:1: {len(small)} files of {', '.join(UPPER)} have fewer than {LEAST_LINES} "
            f"lines, more than {MOST_SMALL}: {', '.join(small)}"
        )


def _find_order_breaches(tree: ast.Module, name: str) -> Iterator[tuple[int, str]]:
    package = _package_of(name)
    if package is None:
        if name not in TOP_LEVEL and not name.startswith("unmask/assets/"):
            yield 1, "a package that tools/check_layers.py does not know"
        return
    yield from _find_hidden_packages(tree)
    reached = {(line, _package_of(module.replace(".", "/"))) for line, module in _imported(tree)}
    for line, other in sorted((line, other) for line, other in reached if other is not None):
        if LAYERS.index(other) > LAYERS.index(package):
            yield line, f"{package} imports from {other}, a later layer"
    if LAYERS.index(package) > LAYERS.index("experiments"):
        for line, module in _imported(tree):
            if _package_of(module.replace(".", "/")) in MEASURED and not FLOOR.fullmatch(module):
                yield line, f"{module} is of one measure: what {package} needs is for its `Measure`"


def _imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _find_circles(trees: Mapping[str, ast.Module]) -> Iterator[list[str]]:
    """The shortest circle of imports of each file that is on one, each circle once."""
    imports = {name: set(_find_files_imported(tree, trees)) for name, tree in trees.items()}
    seen = set()
    for name in imports:
        ways, paths = {name}, [[name]]
        for path in paths:  # grows while it is gone through: the shortest paths come first
            if name in imports[path[-1]]:
                if frozenset(path) not in seen:
                    seen.add(frozenset(path))
                    yield [*path, name]
                break
            further = sorted(imports[path[-1]] - ways)
            ways.update(further)
            paths += [[*path, each] for each in further]


def _find_files_imported(tree: ast.Module, files: Collection[str]) -> Iterator[str]:
    """The files that a file imports when it runs, at its top or in its functions."""
    for node in _walk_what_runs(tree):
        modules: list[tuple[str, ...]] = []
        if isinstance(node, ast.Import):
            modules = [(alias.name,) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [(f"{node.module}.{alias.name}", node.module) for alias in node.names]
        for candidates in modules:
            paths = [each.replace(".", "/") for each in candidates]
            places = [place for path in paths for place in (f"{path}.py", f"{path}/__init__.py")]
            yield from [place for place in places if place in files][:1]


def _walk_what_runs(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below one, without what stands under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        yield child
        yield from _walk_what_runs(child)


def _find_hidden_packages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Imports that do not say which package they reach."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield node.lineno, "a relative import hides its package"
        elif isinstance(node, ast.ImportFrom) and node.module == "unmask":
            for alias in node.names:
                if alias.name not in (*LAYERS, "__version__"):
                    yield node.lineno, f"`from unmask import {alias.name}` hides its package"


def _find_prints(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "print":
            yield node.lineno


def _find_words(text: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Phrases and names that are not plain, with their lines."""
    for i, line in enumerate(text.splitlines(), 1):
        yield from ((i, repr(match[0])) for match in PHRASES.finditer(line))
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                pass
            case ast.FunctionDef(name=name):
                pass
            case _:
                continue
        if NAMES.fullmatch(name):
            yield node.lineno, f"`{name}`"


def _find_unreadable(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings, those of attributes among them, that need another text to be understood."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))) if match := UNREADABLE.match(text):
                yield node.lineno, match[0]


def _find_functions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Public functions of a module."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node.lineno, node.name


def _find_classes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Classes, and what a module calls like one: aliases of types and type variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.lineno, node.name
    for node in tree.body:
        match node:
            # One letter is a type variable that is used nowhere else, all capitals a constant.
            case ast.Assign(targets=[ast.Name(id=name)]) if (
                name[0].isupper() and not name.isupper()
            ):
                yield node.lineno, name


def _find_kinds(tree: ast.Module) -> list[int]:
    """Lines that compare `kind`, `x.kind` or `x["kind"]`, or match it."""
    lines = []
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, ops=ops, comparators=others):
                # `is` compares the kinds of `inspect`'s parameters.
                compared = [] if isinstance(ops[0], ast.Is | ast.IsNot) else [left, *others]
            case ast.Match(subject=subject):
                compared = [subject]
            case _:
                continue
        for each in compared:
            match each:
                case (
                    ast.Name(id="kind")
                    | ast.Attribute(attr="kind")
                    | ast.Subscript(slice=ast.Constant(value="kind"))
                ):
                    lines.append(node.lineno)
    return sorted(lines)


def _package_of(path: str) -> str | None:
    """The package of a file, or of a module whose dots are slashes."""
    parts = path.split("/")
    return parts[1] if parts[0] == "unmask" and len(parts) > 1 and parts[1] in LAYERS else None


def _is_foreign(path: Path, root: Path) -> bool:
    return any(
        part.startswith(".") or part in ("build", "dist") for part in path.relative_to(root).parts
    )


if __name__ == "__main__":
    breaches = list(find_breaches(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
    print("\n".join(breaches) or "the layers are in order")
    sys.exit(bool(breaches))

"""Things known by a name: this package's, other packages' by entry point, one's own by a call.

Another package names what it adds in its pyproject.toml, the kind before the name:

    [project.entry-points."unmask.plugins"]
    "order.ends" = "their_package:from_the_ends"

Only what is used is imported: a package that is broken breaks nothing that does without it.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from typing import Any, Generic, TypeVar, cast

from unmask.base.code import digest_code
from unmask.base.errors import UserError, suggest

T = TypeVar("T")

GROUP = "unmask.plugins"
KINDS = {
    "measure": "unmask.measures.table:MEASURES",
    "order": "unmask.sampling.orders:ORDERS",
    "plan": "unmask.sampling.plans:PLANS",
    "remasking": "unmask.sampling.remasking:REMASKINGS",
    "corrector": "unmask.sampling.correctors:CORRECTORS",
    "noise": "unmask.noise.processes:PROCESSES",
    "schedule": "unmask.noise.schedules:SCHEDULES",
    "objective": "unmask.training.tables:OBJECTIVES",
    "optimiser": "unmask.training.tables:OPTIMISERS",
    "source": "unmask.training.examples:SOURCES",
    "dialect": "unmask.net.dialects:DIALECTS",
    "corruption": "unmask.tracing.corruption:CORRUPTIONS",
    "metric": "unmask.tracing.metrics:METRICS",
    "rule": "unmask.evaluation.metrics:RULES",
    "method": "unmask.experiments.bench.methods:METHODS",
}
"""Where the table of each kind is; it is imported once something of the kind is asked for."""
_NAME = re.compile(r"\w[\w.-]*")


class Registry(Mapping[str, T], Generic[T]):
    """The things of one kind by name; a lookup imports the thing, a list of the names does not.

    `own` are this package's: things, texts `module:NAME` that are imported when they are asked for,
    or a function that gives all of them. What comes from elsewhere `fits`, or is refused as not
    what is `expected`.
    """

    def __init__(
        self,
        kind: str,
        own: Mapping[str, T | str] | Callable[[], Mapping[str, T | str]],
        fits: Callable[[Any], bool],
        expected: str,
    ):
        self.kind, self.fits, self.expected = kind, fits, expected
        self._own, self._given = own, dict[str, T]()
        self._loaded: dict[str, T] = {}

    @property
    def own(self) -> Mapping[str, T | str]:
        """This package's, as they were declared."""
        own: Any = self._own
        return own() if callable(own) else own

    def __getitem__(self, name: str) -> T:
        if name in self.own:
            thing = self.own[name]
            return resolve_name(thing) if isinstance(thing, str) else thing
        if name in self._given:
            return self._given[name]
        if name not in self._loaded:
            self._loaded[name] = self._load(_find_installed(self.kind)[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.own, *self._given, *_find_installed(self.kind)]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in list(iter(self))

    def find(self, name: str) -> T:
        """The thing of that name, or a sentence about names there are."""
        if name not in self:
            raise UserError(f"{self.kind} {name!r} is unknown: {suggest(name, self)}")
        return self[name]

    def load_each(self) -> Iterator[tuple[str, T]]:
        """Names and things, one after the other; what cannot be imported is a warning."""
        for name in self:
            try:
                yield name, self[name]
            except UserError as error:
                _warn_once(str(error))

    def add(self, thing: T, name: str) -> None:
        """Add a thing in this process, in place of one that was added before under its name."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UserError(
                f"the name of the {self.kind} is {name!r:.60}: expected letters, digits, dots, "
                "dashes or underscores."
            )
        if name in self.own or name in _find_installed(self.kind):
            raise UserError(
                f"the name {name!r} is that of another {self.kind} already: choose another."
            )
        self._check(thing, name, f"the {self.kind} {name!r}")
        self._given[name] = thing

    def remove(self, name: str) -> None:
        """Take out what was added in this process."""
        self._given.pop(name, None)

    def find_origin(self, name: str) -> tuple[str, str] | None:
        """The package and version of what is not this package's; None for what is.

        What was added by a call has the module that it was made in, and no version.
        """
        if name in self.own:
            return None
        if name in self._given:
            thing = self._given[name]
            return str(getattr(thing, "__module__", type(thing).__module__)), ""
        return _name_package(_find_installed(self.kind)[name][0])

    def _load(self, points: list[EntryPoint]) -> T:
        packages = [" ".join(_name_package(point)).strip() for point in points]
        what = f"the {self.kind} {_split(points[0])[1]!r} of {packages[0]}"
        if len(points) > 1:
            raise UserError(f"{what} is also one of {packages[1]}: remove one of the two packages.")
        try:
            thing = points[0].load()
        except (Exception, SystemExit) as error:  # whatever another package raises
            raise UserError(
                f"{what} cannot be imported ({type(error).__name__}: {error}): reinstall or remove "
                "that package."
            ) from error
        self._check(thing, _split(points[0])[1], what)
        return thing

    def _check(self, thing: Any, name: str, what: str) -> None:
        if not self.fits(thing):
            raise UserError(f"{what} is {thing!r:.80}: expected {self.expected}.")
        own_name = None if isinstance(thing, type) else getattr(thing, "name", None)
        if isinstance(own_name, str) and own_name != name:
            raise UserError(f"{what} calls itself {own_name!r}: expected the same name.")


def register(kind: str, thing: T, name: str | None = None) -> T:
    """Add something of one's own by a name, in this process, and give it back.

    An entry point of the group `unmask.plugins` does so in every process, for the command line too.

    Args:
        kind: Such as "order", "noise" or "measure"; `unmask.base.plugins.KINDS` lists them.
        thing: What the page "Building on Unmask" says of its kind.
        name: By default the thing's own. One that is taken is refused, unless by such a call.

    >>> def from_the_right(state, streams):
    ...     return torch.arange(state.open.shape[1]).expand(state.open.shape)
    >>> _ = unmask.register("order", from_the_right)
    >>> unmask.Sampling(order="from_the_right").order
    'from_the_right'
    """
    find_registry(kind).add(thing, name_thing(kind, thing) if name is None else name)
    return thing


def name_thing(kind: str, thing: object) -> str:
    """The name that a function, a class or an object has itself."""
    name = None if isinstance(thing, type) else getattr(thing, "name", None)
    name = name if isinstance(name, str) else getattr(thing, "__name__", None)
    if not isinstance(name, str) or name == "<lambda>":
        raise UserError(f"the {kind} {thing!r:.60} has no name of its own: give it one by `name`.")
    return name


def find_registry(kind: str) -> Registry[Any]:
    """The table of a kind."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise UserError(f"there is no kind {kind!r:.60} of plug-in: {suggest(str(kind), KINDS)}")
    return cast("Registry[Any]", resolve_name(KINDS[kind]))


def list_installed(kind: str) -> dict[str, str]:
    """The names that other packages add to a kind, each with its package; nothing is imported."""
    points = _find_installed(kind)
    return {name: " ".join(_name_package(own[0])).strip() for name, own in points.items()}


def describe_plugins(chosen: Iterable[tuple[str, object]]) -> dict[str, dict[str, str]]:
    """The package, version and digest of code of those chosen things that are of others.

    Names may end in numbers (`cap=0.1`); whatever is not a name is left out.
    """
    described = {}
    for kind, given in chosen:
        name = given.partition("=")[0] if isinstance(given, str) else ""
        table = find_registry(kind)
        if not name or name in table.own or name not in table:
            continue
        package, version = cast("tuple[str, str]", table.find_origin(name))
        own = {"package": package, "version": version, "code": _digest(table[name])}
        described[f"{kind}.{name}"] = own
    return described


def _digest(thing: Any) -> str:
    """A digest of code; of a record of this package's, such as a dialect, of its functions."""
    is_record = type(thing).__module__.startswith("unmask.")
    functions = [each for each in vars(thing).values() if callable(each)] if is_record else []
    return digest_code(*functions, thing)


def name_plugins(described: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """What files say of the plug-ins that they need: package and version by `kind.name`."""
    return {key: f"{own['package']} {own['version']}".strip() for key, own in described.items()}


def require_plugins(needed: Mapping[str, str], label: str) -> None:
    """Raise a sentence about the first thing that a file needs and that is not there."""
    for key, origin in needed.items():
        kind, _, name = key.partition(".")
        if kind in KINDS and name in find_registry(kind):
            continue
        package, _, version = origin.partition(" ")
        if version:
            way = f"of the package {package} {version}, which is not installed: install it"
        else:
            way = f"that {package} added by unmask.register: import what makes it, then call that"
        raise UserError(f"{label} needs the {kind} {name!r} {way}.")


@cache
def _read_entries() -> dict[str, dict[str, list[EntryPoint]]]:
    """Entry points by kind and name; several of one name are refused when it is asked for."""
    entries: dict[str, dict[str, list[EntryPoint]]] = {kind: {} for kind in KINDS}
    for point in entry_points(group=GROUP):
        kind, name = _split(point)
        if kind not in KINDS or not _NAME.fullmatch(name):
            _warn_once(
                f"the entry point {point.name!r} of {' '.join(_name_package(point))} is left out: "
                f"expected KIND.NAME, the kind one of {', '.join(KINDS)}."
            )
        else:
            entries[kind].setdefault(name, []).append(point)
    return entries


def _find_installed(kind: str) -> dict[str, list[EntryPoint]]:
    return _read_entries()[kind]


def _split(point: EntryPoint) -> tuple[str, str]:
    kind, _, name = point.name.partition(".")
    return kind, name


def _name_package(point: EntryPoint) -> tuple[str, str]:
    return (
        ("an unknown package", "") if point.dist is None else (point.dist.name, point.dist.version)
    )


@cache
def _warn_once(sentence: str) -> None:
    logging.getLogger("unmask").warning("%s", sentence)

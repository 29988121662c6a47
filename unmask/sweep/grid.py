"""Sweep files: a recipe, a grid of changes to it, what is measured of every model, what is drawn.

    title: Schedules
    recipe: text-mdm
    changes: {network.preset: 19M, budget.tokens: 30000000}
    grids:
      - noise.schedule: [linear, cosine]                 # an axis that is a setting: its values
        size: {small: {network.preset: 6M}, large: {}}   # or named changes of settings
        seed: [0, 1, 2]
    measures:
      bound: {verb: perplexity, data: valid.txt, value: nll, per: tokens, cluster: document}
    figures:
      - {value: bound, x: tokens, line: noise.schedule, panel: size}
    best: bound

A cell is one choice from every axis of one grid. Cells that differ in `seed` alone are one model
trained with several seeds, and share an interval.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any, Literal

from unmask.base.config import SettingsError, build
from unmask.base.errors import UserError
from unmask.base.identity import digest_values
from unmask.base.reading import parse_yaml, read_text
from unmask.sweep.checks import find_missing, find_sweep_problems
from unmask.training.recipe import Recipe
from unmask.training.recipes_io import read_entries, read_recipe

_MOST_BYTES = 255
"""The longest name of a folder on most disks."""


@dataclass(frozen=True, kw_only=True)
class MeasureEntry:
    """A measure of every trained model, and which number of its table is compared."""

    verb: str
    value: str
    """The column of the measure's main table that is compared."""
    data: str | None = None
    settings: dict = field(default_factory=dict)
    per: str | None = None
    """The column that the sum of `value` is divided by the sum of; None: the mean over rows."""
    cluster: str | None = None
    """Rows of one value of this column are not independent: a document, a fact."""
    unit: str = ""
    """What a cluster is called on the page: its column's name by default."""
    by: tuple[str, ...] = ()
    """Columns whose values are kept apart, such as `split` or `steps`."""
    within: tuple[str, ...] = ()
    """Columns among `by` in which rows must agree to be compared, such as `split`."""
    where: dict = field(default_factory=dict)
    """Only rows that have these values."""
    label: str = ""
    better: Literal["lower", "higher", "neither"] = "lower"
    """Neither: rows are not ranked, as of a text's entropy."""
    is_share: bool = False
    """Whether all values lie between 0 and 1."""
    of: str | None = None
    """Another entry of the same verb, whose run is read instead of a run of its own."""
    last_only: bool = False
    """Whether, of copies that cool down, the last alone is measured."""


@dataclass(frozen=True, kw_only=True)
class FigureEntry:
    """A figure of one measured value: a line for each value of an axis."""

    value: str
    x: str
    line: str
    panel: str | None = None
    title: str = ""
    where: dict = field(default_factory=dict)
    """Only rows that have these values."""


@dataclass(frozen=True, kw_only=True)
class CooldownSettings:
    """Copies of a run at a constant rate whose rate falls to the floor over their last steps.

    A copy that ends at step n is what a run of n steps under the schedule `wsd` would be.
    """

    steps: tuple[int, ...]
    """At which the copies end."""
    share: float = 0.2
    """The share of a copy's steps over which its rate falls."""

    def find_start(self, step: int) -> int:
        """Where the rate of the copy that ends at `step` begins to fall, as `wsd` has it."""
        return max(1, step - round(self.share * step))


@dataclass(frozen=True, kw_only=True)
class SweepFile:
    """What a sweep file says."""

    title: str
    recipe: str
    grids: tuple[dict, ...]
    measures: dict
    note: str = ""
    changes: dict = field(default_factory=dict)
    """Settings of every cell, by their names with dots."""
    cooldowns: dict | None = None
    figures: tuple[dict, ...] = ()
    best: str | None = None
    """The measure that says which cell is best; the first by default."""


@dataclass(frozen=True)
class SweepCell:
    """One choice from every axis, and the recipe that it gives."""

    name: str
    """Unique in the sweep; its folder."""
    labels: Mapping[str, str]
    """The choice on every axis, in words."""
    recipe: Recipe


@dataclass(frozen=True)
class Sweep:
    """A sweep file that was read and checked: every cell has a recipe."""

    file: SweepFile
    cells: Sequence[SweepCell]
    measures: Mapping[str, MeasureEntry]
    figures: Sequence[FigureEntry]
    cooldowns: CooldownSettings | None
    values: Mapping[str, Any]
    """All that the file and the command say, for the record of the run."""

    @property
    def axes(self) -> list[str]:
        return list(dict.fromkeys(axis for cell in self.cells for axis in cell.labels))

    @property
    def best(self) -> str:
        return self.file.best or next(iter(self.measures))


def read_sweep(path: str | Path, overrides: Sequence[str] = ()) -> Sweep:
    """The sweep of a file; an override such as `best=bound` replaces an entry of the file.

    All others, such as `budget.steps=10`, are settings of every cell, whatever its axes say.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no sweep file {str(path)!r:.200}: expected a YAML file.")
    values = parse_yaml(read_text(path), str(path))
    if not isinstance(values, dict):
        raise UserError(f"{path} holds no settings: expected `key: value` lines.")
    sweep = make_sweep(values, _override(values, overrides), path)
    if problems := list(find_missing(sweep)):
        raise SettingsError(str(path), problems)
    return sweep


def _override(values: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Put what concerns the file into its values; the settings of all cells come back."""
    forced = dict[str, Any]()
    known = [each.name for each in fields(SweepFile)]
    for override in overrides:
        key, equals, text = override.partition("=")
        if not key or not equals:
            raise UserError(f"{override!r} is not a setting: expected key=value.")
        value = parse_yaml(text, override)
        first, *rest = key.split(".")
        if first not in known:
            forced[key] = value
            continue
        inner = values
        for name in (first, *rest)[:-1]:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise UserError(
                    f"{override!r} names an entry of {name!r}, which has none by name: replace "
                    f"{name!r} as a whole, or change the file."
                )
        inner[(first, *rest)[-1]] = value
    return forced


def make_sweep(
    values: dict[str, Any],
    forced: dict[str, Any],
    path: Path,
    recipes: Mapping[str, dict[str, Any]] | None = None,
) -> Sweep:
    """The sweep that the entries of a file give, checked; `forced` are settings of every cell.

    `recipes` are what recipes said that were read before, by name; all others are read now.
    """
    file = build(SweepFile, values, str(path))
    if not file.measures:
        raise SettingsError(str(path), ["'measures' is empty: name at least one measure"])
    measures = {
        name: build(MeasureEntry, _require_entries(value, name, path), f"{path}: measures.{name}")
        for name, value in file.measures.items()
    }
    figures = [build(FigureEntry, value, f"{path}: figures") for value in file.figures]
    cooldowns = None
    if file.cooldowns is not None:
        cooldowns = build(CooldownSettings, file.cooldowns, f"{path}: cooldowns")
    known = dict(recipes or {})
    cells = list(_list_cells(file, forced, path, known))
    everything = values | {"forced": forced, "recipes": known}
    sweep = Sweep(file, cells, measures, figures, cooldowns, everything)
    if problems := list(find_sweep_problems(sweep)):
        raise SettingsError(str(path), problems)
    return sweep


def _require_entries(value: Any, name: str, path: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        problem = f"'measures.{name}' is {value!r:.60}, expected entries by name"
        raise SettingsError(str(path), [problem])
    return value


def _list_cells(
    file: SweepFile, forced: Mapping[str, Any], path: Path, recipes: dict[str, dict[str, Any]]
) -> Iterator[SweepCell]:
    """Every cell of every grid; two that are alike are refused. What is read joins `recipes`."""
    problems, known = list[str](), dict[str, str]()
    if not file.grids:
        problems.append("'grids' is empty: expected a list of axes with their values")
    for number, grid in enumerate(file.grids, 1):
        axes = {axis: _list_choices(axis, given, problems) for axis, given in grid.items()}
        if not axes:
            problems.append(f"grid {number} is empty: it has no axes")
        problems += [f"grid {number} is empty: its axis {axis!r} has no values"
                     for axis, choices in axes.items() if not choices]  # fmt: skip
        if problems:
            break
        for choice in product(*axes.values()):
            labels = {axis: label for axis, (label, _) in zip(axes, choice, strict=True)}
            changes = dict(file.changes)
            for _, own in choice:
                changes |= own
            name = _name_folder(f"{axis}-{label}" for axis, label in labels.items())
            recipe = _make_recipe(file.recipe, {**changes, **forced}, path, name, recipes)
            key = name.casefold()  # not every disk tells A from a
            if (other := known.get(key, known.get(repr(recipe)))) is not None:
                problems.append(f"the cells {other} and {name} are alike")
            known[key] = known[repr(recipe)] = name
            yield SweepCell(name, labels, recipe)
    if problems:
        raise SettingsError(str(path), problems)


def _list_choices(axis: str, given: Any, problems: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """The values of an axis: a label, and the settings it stands for."""
    if isinstance(given, Mapping) and all(isinstance(each, Mapping) for each in given.values()):
        return [(str(label), dict(changes)) for label, changes in given.items()]
    if isinstance(given, list):
        return [(str(value), {axis: value}) for value in given]
    expected = "expected a list of values, or settings by name under each label"
    problems.append(f"'grids' has {axis!r} as {given!r:.80}, {expected}")
    return [("", {})]


def _make_recipe(
    base: str,
    changes: Mapping[str, Any],
    path: Path,
    cell: str,
    recipes: dict[str, dict[str, Any]],
) -> Recipe:
    changes = dict(changes)
    name = str(changes.pop("recipe", base))
    if name not in recipes:
        beside = path.parent / name
        recipes[name], _ = read_entries(beside if beside.is_file() else name)
    overrides = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    try:
        return read_recipe(recipes[name], overrides)
    except SettingsError as error:
        raise SettingsError(f"{path}, cell {cell}", error.problems) from None


def _name_folder(parts: Iterable[str]) -> str:
    """A folder's name, which is also part of a model's path: no `=`, no comma, and not too long."""
    name = "_".join(re.sub(r"[^\w.+-]+", "-", part) for part in parts)
    if len(name.encode()) <= _MOST_BYTES:
        return name
    digest = digest_values([name])[:16]
    return f"{name.encode()[: _MOST_BYTES - 17].decode(errors='ignore')}-{digest}"

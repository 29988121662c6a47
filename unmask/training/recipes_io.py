"""Recipes from YAML: shipped by name, one's own by path, single settings given as key=value."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from unmask.base.config import SettingsError, build
from unmask.base.errors import UserError, suggest
from unmask.base.files import path_exists, replace_file
from unmask.base.plugins import name_plugins, require_plugins
from unmask.base.reading import parse_yaml, read_text
from unmask.net.hub import RECIPE
from unmask.training.data_settings import DataSettings
from unmask.training.recipe import Recipe

_LENGTHS = ("budget.steps", "budget.tokens", "budget.minutes")
RIVALS = {name: tuple(other for other in _LENGTHS if other != name) for name in _LENGTHS}
RIVALS |= {"start.model": ("network.changes", "network.scale")}
"""Settings that, given one by one, take the place of others that a recipe may have instead."""


def list_recipes() -> list[str]:
    """The names of the shipped recipes."""
    folder = files("unmask.assets").joinpath("recipes")
    names = (file.name for file in folder.iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def read_recipe(
    source: str | Path | Recipe | Mapping[str, Any], overrides: Sequence[str] = ()
) -> Recipe:
    """A recipe, the shipped one of a name or the one in a file, with single settings replaced."""
    if isinstance(source, str | Path):
        values, label = read_entries(source)
    else:
        entries = asdict(source) if isinstance(source, Recipe) else source
        values, label = _plain(entries), "the recipe"
    problems = list(_apply(values, overrides))
    _drop_rivals(values, overrides)
    try:
        recipe = build(Recipe, values, label)
    except SettingsError as error:
        raise SettingsError(label, [*problems, *error.problems]) from None
    if problems:
        raise SettingsError(label, problems)
    return recipe


def read_entries(source: str | Path) -> tuple[dict[str, Any], str]:
    """What a shipped recipe or the one in a file says, and what to call it."""
    text, label = _find_text(str(source))
    values = parse_yaml(text, label)
    if not isinstance(values, dict):
        raise UserError(f"{label} holds no settings: expected `key: value` lines.")
    needed = values.pop("plugins", {})
    if not isinstance(needed, dict):
        raise UserError(f"{label}: 'plugins' is {needed!r:.60}, expected `kind.name: package`.")
    require_plugins({str(key): str(origin) for key, origin in needed.items()}, label)
    return values, label


def find_recipe(place: str | Path) -> str | None:
    """The recipe that a place names: a YAML file, a run of training, or a shipped one's name."""
    path = Path(place)
    if path.suffix in (".yaml", ".yml") or (not path_exists(path) and str(path) in list_recipes()):
        return str(path)
    return str(path / RECIPE) if path_exists(path / RECIPE) else None


def _find_text(name: str) -> tuple[str, str]:
    shipped = list_recipes()
    if name in shipped:
        file = files("unmask.assets").joinpath("recipes", f"{name}.yaml")
        return file.read_text("utf-8"), f"recipe {name}"
    path = Path(name)
    if path.is_file():
        return read_text(path), str(path)
    raise UserError(
        f"recipe {name!r} is neither a file nor shipped: {suggest(name, shipped)}"
        + ("" if "known:" in suggest(name, shipped) else f" (known: {', '.join(shipped)})")
    )


def _apply(values: dict[str, Any], overrides: Sequence[str]) -> Iterator[str]:
    """Put `section.key=value` into nested settings; problems come back as sentences."""
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            yield f"{override!r} is not a setting, expected key=value such as batch.rows=64"
            continue
        *sections, last = key.split(".")
        inner = values
        for section in sections:
            inner = inner.setdefault(section, {})
            if not isinstance(inner, dict):
                yield f"{override!r} goes into {section!r}, which holds a single value"
                break
        else:
            try:
                inner[last] = parse_yaml(text, override)
            except UserError:
                yield f"{override!r} has a value that YAML cannot read: put it in quotes"


def _drop_rivals(values: dict[str, Any], overrides: Sequence[str]) -> None:
    """Leave out what overrides take the place of; two rivals among these are left to be refused."""
    given = {override.partition("=")[0] for override in overrides}
    for key in given & RIVALS.keys():
        for rival in RIVALS[key]:
            section, _, name = rival.partition(".")
            inner = values.get(section)
            is_own = any(each == rival or each.startswith(f"{rival}.") for each in given)
            if isinstance(inner, dict) and not is_own:
                inner.pop(name, None)


def write_recipe(recipe: Recipe, path: str | Path) -> None:
    """Write every setting of a recipe, so that `read_recipe` gives the same one."""
    with replace_file(path) as draft:
        draft.write_text(format_recipe(recipe), encoding="utf-8")


def format_recipe(recipe: Recipe) -> str:
    """The whole recipe as YAML, with the packages that it needs beside this one."""
    values, needed = _plain(asdict(recipe)), name_plugins(recipe.describe_plugins())
    values |= {"plugins": needed} if needed else {}
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def format_changes(recipe: Recipe) -> str:
    """Every setting that is not the default, as `key=value`, one on a line."""
    sections = {name: each for name, each in vars(recipe).items() if is_dataclass(each)}
    usual: dict[str, Any] = {"seed": 0, "data": asdict(DataSettings(source=""))}
    usual |= {name: asdict(type(each)()) for name, each in sections.items() if name != "data"}
    defaults = dict(_flatten(_plain(usual)))
    return "\n".join(
        f"{key}={_write_value(value)}"
        for key, value in _flatten(_plain(asdict(recipe)))
        if key not in defaults or defaults[key] != value
    )


def _write_value(value: Any) -> str:
    """A value as one line of YAML."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...")


def list_changes(before: Recipe, now: Recipe) -> list[str]:
    """What differs between two recipes, one sentence per setting."""
    old, new = (dict(_flatten(asdict(recipe))) for recipe in (before, now))
    keys = [*old, *(key for key in new if key not in old)]
    return [
        f"{key} was {old.get(key)!r} and is now {new.get(key)!r}"
        for key in keys
        if old.get(key) != new.get(key)
    ]


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value

"""The table of measures: those of this package, of others by entry point, of a notebook by a call.

Another package names its measure in its pyproject.toml:

    [project.entry-points."unmask.measures"]
    calibration = "their_package.calibration:CALIBRATION"
"""

import logging
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from unmask.base.errors import UserError, suggest

if TYPE_CHECKING:
    from unmask.measures.measure import Measure

ENTRY_POINT = "unmask.measures"
GROUPS = {
    "Facts": ("recall", "order", "nll", "factorization", "knowns"),
    "Texts": ("perplexity", "quality", "mending"),
    "Mechanism": (
        "trace", "knockout", "paths", "represent", "symmetry", "interchange", "erasure", "slots",
        "edit",
    ),
    "Steering": ("guidance", "correctors", "planted"),
}  # fmt: skip
"""This package's measures by heading; the order of stages and sections. The line that
`unmask --help` has of each stands in `unmask/assets/verbs.json`."""
EXPERIMENTS = ("mending", "guidance", "correctors", "planted")
"""Measures that are folders of `unmask.experiments`; each other one is a module beside this one."""
OTHERS = "Measures of other packages"
_REGISTERED: "dict[str, Measure]" = {}


def list_measures() -> "dict[str, Measure]":
    """Every measure by name. One that cannot be imported is a warning, and the rest are there."""
    return _import_all() | _REGISTERED


def find_measure(name: str) -> "Measure":
    """The measure of that name; where it is this package's no other is imported."""
    if any(name in group for group in GROUPS.values()):
        return _import(name)
    measures = list_measures()
    if name not in measures:
        raise UserError(f"there is no measure {name!r}: {suggest(name, measures)}")
    return measures[name]


def add_measure(measure: "Measure") -> None:
    """Add a measure in this process, in place of one that was added before under its name."""
    if measure.name in _import_all():
        raise UserError(f"there is a measure {measure.name!r} already: choose another name.")
    _REGISTERED[measure.name] = measure


def _import(name: str) -> "Measure":
    home = f"experiments.{name}.measure" if name in EXPERIMENTS else f"measures.{name}"
    return import_module(f"unmask.{home}").MEASURE


@cache
def _import_all() -> "dict[str, Measure]":
    measures = {name: _import(name) for group in GROUPS.values() for name in group}
    for point in entry_points(group=ENTRY_POINT):
        try:
            measure = point.load()
        except Exception as error:  # whatever another package raises when it is imported
            logging.getLogger("unmask").warning(
                "the measure %r of another package cannot be imported (%s: %s): reinstall or "
                "remove that package.",
                point.name,
                type(error).__name__,
                error,
            )
            continue
        measures.setdefault(measure.name, measure)
    return measures

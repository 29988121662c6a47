"""The table of measures: those of this package, of others by entry point, of a notebook by a call.

Another package names its measure in its pyproject.toml:

    [project.entry-points."unmask.measures"]
    calibration = "their_package.calibration:CALIBRATION"
"""

import logging
import sys
from functools import cache, partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
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
_INSTALLED: "dict[str, tuple[Measure, dict[str, str]]]" = {}
"""Measures of other packages, each with its package's version by name."""


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


def is_shipped(measure: "Measure") -> bool:
    """Whether a measure is this package's."""
    is_known = any(measure.name in group for group in GROUPS.values())
    return is_known and _import(measure.name) is measure


def find_distribution(measure: "Measure") -> dict[str, str]:
    """The version of the other package that a measure was installed with, by the package's name."""
    if is_shipped(measure):
        return {}
    _import_all()
    known, versions = _INSTALLED.get(measure.name, (None, {}))
    return versions if known is measure else {}


def list_own_files(measure: "Measure") -> list[Path]:
    """The files of a measure alone, not those that it shares; none of one without a file."""
    home = Path(__file__).parent
    if is_shipped(measure):
        if measure.name in EXPERIMENTS:
            return sorted(home.parent.glob(f"experiments/{measure.name}/*.py"))
        return sorted(home.glob(f"{measure.name}*.py"))
    jobs = measure.jobs.func if isinstance(measure.jobs, partial) else measure.jobs
    file = getattr(sys.modules.get(jobs.__module__), "__file__", None)
    return [Path(file)] if file is not None and Path(file).is_file() else []


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
        if point.dist is not None:
            _INSTALLED[measure.name] = measure, {point.dist.name: point.dist.version}
    return measures

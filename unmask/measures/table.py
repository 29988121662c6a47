"""The table of measures: those of this package by heading, and those of others.

Another package names its measure in its pyproject.toml (`unmask.base.plugins`):

    [project.entry-points."unmask.plugins"]
    "measure.calibration" = "their_package.calibration:CALIBRATION"
"""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.base.plugins import Registry

if TYPE_CHECKING:
    from unmask.measures.measure import Measure

GROUPS = {
    "Facts": ("recall", "order", "nll", "factorization", "knowns"),
    "Texts": ("perplexity", "quality", "mending", "infilling", "parallel", "transparency"),
    "Mechanism": (
        "trace", "knockout", "paths", "represent", "symmetry", "interchange", "erasure", "slots",
        "subspaces", "circuit", "features", "lens", "edit", "relearn", "alignment", "bench",
    ),
    "Steering": ("guidance", "steer", "correctors", "planted", "gradients"),
}  # fmt: skip
"""This package's measures by heading; the order of stages and sections. The line that
`unmask --help` has of each stands in `unmask/assets/verbs.json`."""
EXPERIMENTS = (
    "bench", "relearn", "mending", "infilling", "parallel", "transparency", "guidance",
    "correctors", "planted", "gradients", "circuit", "subspaces",
)  # fmt: skip
"""Measures that are folders of `unmask.experiments`; each other one is a module beside this one."""


def _find_home(name: str) -> str:
    home = f"experiments.{name}.measure" if name in EXPERIMENTS else f"measures.{name}"
    return f"unmask.{home}:MEASURE"


MEASURES = Registry["Measure"](
    "measure",
    {name: _find_home(name) for group in GROUPS.values() for name in group},
    lambda thing: hasattr(thing, "jobs") and hasattr(thing, "make_summary"),
    "a unmask.measures.measure.Measure",
)


def list_measures() -> "dict[str, Measure]":
    """Every measure by name. One that cannot be imported is a warning, and the rest are there."""
    return dict(MEASURES.load_each())


def find_measure(name: str) -> "Measure":
    """The measure of that name; no other is imported."""
    return MEASURES.find(name)


def is_shipped(measure: "Measure") -> bool:
    """Whether a measure is this package's."""
    return measure.name in MEASURES.own and MEASURES[measure.name] is measure


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

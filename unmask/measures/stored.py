"""Full-scale results that come with the package, to stand beside what a small study leaves open.

They lie in `unmask/assets/results`, written by `tools/store_results.py`; `stored.yaml` there lists
those of each measure, which says how one is drawn (`Measure.draw_stored`).
"""

import csv
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from typing import Any

from unmask.base.reading import parse_yaml
from unmask.measures.result import Result


@dataclass(frozen=True)
class StoredResult:
    """A result under `unmask/assets/results`, and how it was made."""

    file: str
    pair: str
    about: str
    command: str
    """As one would make it today."""
    version: str = "0.2"
    """The version of this package with whose weights it was made."""


def list_stored(measure: str) -> list[StoredResult]:
    """The results of a measure, the shipped pair's first."""
    text = files("unmask.assets").joinpath("results", "stored.yaml").read_text("utf-8")
    return [StoredResult(**each) for each in parse_yaml(text, "stored.yaml").get(measure, ())]


def read_csv_rows(file: str, counts: Sequence[str], numbers: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of a table: whole numbers, where there are any, and numbers are told from texts."""
    lines = files("unmask.assets").joinpath("results", file).read_text("utf-8").splitlines()

    def convert(row: Mapping[str, str]) -> dict[str, Any]:
        whole = {name: int(row[name]) if row[name] else None for name in counts}
        return {**row, **whole, **{name: float(row[name]) for name in numbers}}

    return [convert(row) for row in csv.DictReader(lines)]


@contextmanager
def open_stored_run(folder: str) -> Generator[Result]:
    """A run folder that comes with the package, with the summary it was given instead of rows."""
    from unmask.measures.runner import read_result, read_summary

    with as_file(files("unmask.assets").joinpath("results", folder)) as path:
        result = read_result(path)
        yield result.with_summary(read_summary(result.measure, path))

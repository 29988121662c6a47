"""Full-scale results that come with the package, to stand beside what a small study leaves open.

A measure names its own (`Measure.stored`), and how each is drawn; they lie in
`unmask/assets/results`, written by `tools/store_results.py`.
"""

import csv
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from typing import Any

from unmask.blocks.blocks import ReportBlock
from unmask.measures.result import Result


@dataclass(frozen=True)
class StoredResult:
    """A result under `unmask/assets/results`, how it was made, and how it is read."""

    file: str
    pair: str
    about: str
    command: str
    """As one would make it today."""
    read: Callable[[str], list[ReportBlock]]
    version: str = "0.2"
    """The version of this package with whose weights it was made."""


def read_csv_rows(file: str, counts: Sequence[str], numbers: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of a table: whole numbers, where there are any, and numbers are told from texts."""
    lines = files("unmask.assets").joinpath("results", file).read_text("utf-8").splitlines()

    def convert(row: Mapping[str, str]) -> dict[str, Any]:
        whole = {name: int(row[name]) if row[name] else None for name in counts}
        return {**row, **whole, **{name: float(row[name]) for name in numbers}}

    return [convert(row) for row in csv.DictReader(lines)]


@contextmanager
def open_stored_run(folder: str) -> Generator[Result]:
    """A run folder that comes with the package, with the summary that is stored in it: what that
    was computed from is left out."""
    from unmask.base.tables import read_table
    from unmask.measures.runner import SUMMARY, read_result, summary_schema

    with as_file(files("unmask.assets").joinpath("results", folder)) as path:
        result = read_result(path)
        tables = {
            file.stem: read_table(file, summary_schema(result.measure, file.stem)).to_pylist()
            for file in sorted((path / SUMMARY).glob("*.parquet"))
        }
        yield result.with_summary(tables)

"""Reads full-scale results that come with the package, for a measure's `draw_stored`.

They lie in `unmask/assets/results`, written by `tools/store_results.py`; `unmask/report/stored.py`
shows them beside what a small study leaves open.
"""

import csv
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import as_file, files
from typing import Any

from unmask.measures.result import Result


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

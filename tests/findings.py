"""What README, docs/findings.md, details.md and limits.md say, and the pages they say it of."""

import csv
import functools
import re
from collections.abc import Iterable
from pathlib import Path

from unmask.measures.runner import read_result
from unmask.results.summaries import Summary

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
FINDINGS = (ROOT / "docs" / "findings.md").read_text("utf-8")
DETAILS = (ROOT / "docs" / "details.md").read_text("utf-8")
LIMITS = (ROOT / "docs" / "limits.md").read_text("utf-8")
RESULTS = ROOT / "docs" / "results"
TABLES = RESULTS / "tables"


def read_page(name: str) -> str:
    return (ROOT / "docs" / "results" / name).read_text("utf-8")


def read_csv(*parts: str) -> list[dict[str, str]]:
    """The rows of a page's table."""
    with RESULTS.joinpath(*parts).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@functools.cache
def summarise(name: str) -> Summary:
    """The statistics of a page's run, which several tests read and whose resampling is slow."""
    return read_result(TABLES / name).summary


def span(values: Iterable[float]) -> list[float]:
    """The least and the largest, as "4 to 7 %" says them."""
    values = list(values)
    return [min(values), max(values)]


def read_numbers(pattern: str) -> list[float]:
    """The numbers of a sentence of docs/details.md, wherever its lines break."""
    return [
        float(x.replace("−", "-")) for x in re.search(pattern, " ".join(DETAILS.split())).groups()
    ]


def read_rows(page: str, beginning: str) -> list[list[str]]:
    """The cells of a table's rows that begin so."""
    found = [line for line in page.splitlines() if line.startswith(beginning)]
    return [[cell.strip(" *") for cell in line.strip("| ").split("|")] for line in found]

"""Computes the summaries of kept runs anew and holds them against what was recorded of them.

    python tools/check_summaries.py [MEASURE…]
    python tools/check_summaries.py --write     record them anew; review the difference

Of every column of every summary of every run below docs/results/tables, summaries.csv has the sum
of its numbers and of their sizes, how many there are, and a digest of its texts. A sum must come
out again to a millionth of the sizes; a table or column that is new is no difference.
"""

import csv
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from unmask.base.files import replace_file
from unmask.base.identity import digest_values
from unmask.base.runs import read_record
from unmask.measures.runner import read_result

TABLES = Path(__file__).parents[1] / "docs" / "results" / "tables"
RECORDED = TABLES / "summaries.csv"
NAMES = ("run", "table", "column", "numbers", "sum", "sizes", "texts")
CLOSE = 1e-6
PROCESSES = 2


def find_runs(measures: Sequence[str] = ()) -> Iterator[Path]:
    """The kept runs: all, or those of some measures."""
    for record in sorted(TABLES.rglob("run.json")):
        if not measures or read_record(record.parent).verb in measures:
            yield record.parent


def add_up(folder: Path) -> list[dict[str, Any]]:
    """What is recorded of each column of a run's summary."""
    run, sums = folder.relative_to(TABLES).as_posix(), []
    for table, rows in read_result(folder).summary.items():
        for column in dict.fromkeys(name for row in rows for name in row):
            values = list(_flatten(row.get(column) for row in rows))
            numbers = [float(value) for value in values if isinstance(value, int | float)]
            finite = [value for value in numbers if math.isfinite(value)]
            texts = sorted(value for value in values if isinstance(value, str))
            added = (len(numbers), math.fsum(finite), math.fsum(map(abs, finite)))
            digest = digest_values(texts)[:16] if texts else ""
            sums.append(dict(zip(NAMES, (run, table, column, *added, digest), strict=True)))
    return sums


def add_up_all(measures: Sequence[str] = ()) -> Iterator[list[dict[str, Any]]]:
    """The sums of each run, two runs at a time."""
    with ProcessPoolExecutor(PROCESSES) as pool:
        yield from pool.map(add_up, find_runs(measures))


def _flatten(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flatten(value)
        else:
            yield value


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """What differs in a column's sums, in words."""
    if int(before["numbers"]) != after["numbers"]:
        yield f"{before['numbers']} numbers → {after['numbers']}"
    for name in ("sum", "sizes"):
        old, new = float(before[name]), after[name]
        if abs(new - old) > CLOSE * max(float(before["sizes"]), after["sizes"]):
            yield f"{name} {old:.9g} → {new:.9g}"
    if before["texts"] != after["texts"]:
        yield "other texts"


def list_differences(measures: Sequence[str] = ()) -> Iterator[str]:
    """Columns of kept runs that do not come out as they were recorded."""
    with RECORDED.open(encoding="utf-8", newline="") as file:
        recorded: dict[str, list[dict[str, str]]] = {}
        for row in csv.DictReader(file):
            recorded.setdefault(row["run"], []).append(row)
    for sums in add_up_all(measures):
        columns = {(row["table"], row["column"]): row for row in sums}
        for row in recorded.get(sums[0]["run"], []):
            new = columns.get((row["table"], row["column"]))
            wrong = ["is gone"] if new is None else list(compare(row, new))
            if wrong:
                yield f"{row['run']}: {row['table']}: {row['column']}: {', '.join(wrong)}"


def write() -> None:
    """Record the sums of all kept runs."""
    with replace_file(RECORDED) as draft, draft.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, NAMES, lineterminator="\n")
        writer.writeheader()
        for sums in add_up_all():
            writer.writerows(sums)


def main(words: Sequence[str]) -> int:
    """Record, or compare and print what differs; 1 where something does."""
    if words == ["--write"]:
        write()
        return 0
    differences = list(list_differences(words))
    for line in differences:
        print(line)
    print(f"{len(differences)} columns of kept runs differ from what was recorded of them")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

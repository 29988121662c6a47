"""Computes the summaries of kept runs anew and holds them against those stored beside their tables.

    python tools/check_summaries.py [MEASURE…]

Every number that is stored must come out again to 1e-9; a table, row or column that is new is no
difference. What differs is printed row by row, and the exit code says whether anything does.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.base.runs import read_record
from unmask.measures.runner import SUMMARY, read_result, read_summary

TABLES = Path(__file__).parents[1] / "docs" / "results" / "tables"
CLOSE = 1e-9


def compare_run(folder: Path) -> Iterator[str]:
    """What is stored in a run's summary and does not come out again."""
    result = read_result(folder)
    for table, stored in read_summary(result.measure, folder).items():
        if table not in result.summary:
            yield f"{table}: the table is gone"
            continue
        # An outcome is words that follow from the numbers.
        names = [name for name in (stored[0] if stored else ()) if name != "outcome"]
        groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for new in result.summary[table]:
            groups.setdefault(_name(new, names), []).append(new)
        for old in stored:
            same, keys = groups.get(_name(old, names), []), _name(old, names)
            wrong = [_list_wrong(old, new, names) for new in same]
            if not same:
                yield f"{table}: {', '.join(filter(None, keys))}: the row is gone"
            elif least := min(wrong, key=len):
                new = same[wrong.index(least)]
                changes = ", ".join(f"{name} {old[name]} → {new.get(name)}" for name in least)
                yield f"{table}: {', '.join(filter(None, keys))}: {changes}"


def _name(row: Mapping[str, Any], names: Sequence[str]) -> tuple[str | None, ...]:
    """What tells a row from others: its texts. Rows of the same texts are told apart by numbers."""
    values = (row.get(name) for name in names)
    return tuple(value if isinstance(value, str) else None for value in values)


def _list_wrong(old: Mapping[str, Any], new: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [name for name in names if not _is_close(old[name], new.get(name))]


def _is_close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=CLOSE, abs_tol=CLOSE) or (one != one != other)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return all(map(_is_close, one, other))
    return one == other


def find_runs(measures: Sequence[str] = ()) -> Iterator[Path]:
    """The kept runs that have a stored summary: all, or those of some measures."""
    for record in sorted(TABLES.rglob("run.json")):
        folder = record.parent
        if (folder / SUMMARY).is_dir() and (not measures or read_record(folder).verb in measures):
            yield folder


def main(measures: Sequence[str]) -> int:
    """Compare every kept run, or those of some measures; 1 where one differs."""
    runs, wrong = list(find_runs(measures)), 0
    for folder in runs:
        differences = list(compare_run(folder))
        wrong += bool(differences)
        for line in differences:
            print(f"{folder.relative_to(TABLES)}: {line}")
    print(f"{len(runs) - wrong} of {len(runs)} kept runs have the summaries that are stored")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

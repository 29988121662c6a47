"""Averages of traces by group: which there are, their rows, best layers and placebos."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unmask.tracing.averages import OTHER_TOKEN, TOTAL
from unmask.tracing.table import ASKED, OTHER_FACT, RESULT, SHUFFLED

Row = Mapping[str, Any]
"""A row of the table of averages."""
GROUP = ("kind", "direction", "trained", "corruption", "stage")


def key_of(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in GROUP)


def find_groups(rows: Iterable[Row], numbered: bool) -> list[dict[str, str]]:
    """The groups with results at steps known by number, in their order, or by name."""
    keys = {
        key_of(row)
        for row in rows
        if row["control"] == RESULT and row["stage"].isdecimal() == numbered
    }
    # By number, not by the letters of the number.
    ordered = sorted(keys, key=lambda key: (*key[:-1], int(key[-1]) if numbered else key[-1]))
    return [dict(zip(GROUP, key, strict=True)) for key in ordered]


def rows_of(rows: Iterable[Row], group: Mapping[str, Any]) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in group.items())]


def find_total(rows: Iterable[Row]) -> Row:
    """What the corruption takes, in the rows of one group."""
    return next(row for row in rows if row["part"] == TOTAL and row["control"] == RESULT)


def find_asked(rows: Iterable[Row]) -> float | None:
    """How many answer tokens were asked for, the mean over facts; None in older tables."""
    return next((row["mean"] for row in rows if row["part"] == ASKED), None)


def find_peaks(rows: Sequence[Row]) -> list[Row]:
    """The best layer of each part and role, of heads the best head and layer."""
    best: dict[tuple[str, str], Row] = {}
    for row in rows:
        if row["control"] == RESULT and row["layer"] >= 0:
            at = (row["part"], row["role"])
            if at not in best or row["mean"] > best[at]["mean"]:
                best[at] = row
    return list(best.values())


def name_layer(cell: Row) -> str:
    """A cell's layer, and its head where it has one."""
    return f"{cell['layer']}" + (f", head {cell['head']}" if cell["head"] >= 0 else "")


def find_placebos(rows: Sequence[Row], cell: Row) -> tuple[Row | None, Row | None, Row | None]:
    """Beside a cell: another token, another fact's state, another answer; None is not measured."""
    same = {name: cell[name] for name in ("part", "layer", "head")}

    def find(role: str, control: str) -> Row | None:
        wanted = same | {"role": role, "control": control}
        return next(iter(rows_of(rows, wanted)), None)

    return (
        find("placebo", OTHER_TOKEN),
        find(cell["role"], OTHER_FACT),
        find(cell["role"], SHUFFLED),
    )

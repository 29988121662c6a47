"""Causal traces in the terminal: a heatmap of one fact, a summary of many."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unmask.report.tracing_figures import (
    PART_NAMES,
    describe_grid,
    describe_group,
    grid_effects,
)
from unmask.report.tracing_groups import name_layer
from unmask.tracing.averages import TOTAL
from unmask.tracing.grid import TraceGrid
from unmask.tracing.table import RESULT

_SHADES = " ░▒▓█"
"""Readable without colours, too."""


def show_grid(console: Console, grid: TraceGrid, words: Sequence[str]) -> None:
    """One fact's heatmaps, and what they stand between."""
    console.print(describe_grid(grid), highlight=False, markup=False)
    for part, effects in grid_effects(grid).items():
        show_heatmap(console, part, effects, words, grid.subject)


def show_heatmap(
    console: Console,
    part: str,
    effects: np.ndarray,
    labels: Sequence[str],
    subject: tuple[int, int],
) -> None:
    """Effects [token, layer], two characters a cell; purple gives back, orange takes away."""
    most = float(np.abs(effects).max()) or 1.0
    width = max(len(label) for label in labels) + 1
    console.print(f"{PART_NAMES.get(part, part)}: darkest is {most:.4f}", highlight=False)
    for i, label in enumerate(labels):
        inside = subject[0] <= i < subject[1]
        line = Text(f"{label + ('*' if inside else ' '):>{width}} ")
        if inside:
            line.stylize("bold cyan")
        for value in effects[i]:
            shade = _SHADES[round(abs(value) / most * (len(_SHADES) - 1))]
            line.append(2 * shade, style="purple" if value >= 0 else "dark_orange")
        console.print(line, highlight=False)
    layers = "".join(
        f"{layer:<2d}" if layer % 2 == 0 else "  " for layer in range(effects.shape[1])
    )
    console.print(f"{'layer':>{width}} {layers[: 2 * effects.shape[1]]}", highlight=False)


def show_averages(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Each group's total effect and, part by part, the cell that gives most of it back."""
    table = Table("group", "facts", "ATE", "part", "best role", "layer", "AIE", "interval")
    keys = ("direction", "trained", "kind", "corruption", "stage")
    results = [row for row in rows if row["control"] == RESULT]
    for group in dict.fromkeys(tuple(row[key] for key in keys) for row in results):
        names = dict(zip(keys, group, strict=True))
        mine = [row for row in results if all(row[name] == names[name] for name in names)]
        total = next(row for row in mine if row["part"] == TOTAL)
        first = [describe_group(names), str(total["facts"]), f"{total['mean']:.4f}"]
        for part in dict.fromkeys(row["part"] for row in mine if row["layer"] >= 0):
            best = max((row for row in mine if row["part"] == part), key=lambda row: row["mean"])
            interval = f"{best['low']:.4f} to {best['high']:.4f}"
            cells = [part, best["role"], name_layer(best), f"{best['mean']:.4f}", interval]
            table.add_row(*first, *cells)
            first = ["", "", ""]
    console.print(table)

"""Small heatmaps in the terminal: shaded cells, panels side by side."""

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text as RichText

from unmask.blocks.blocks import Figure, MapPanel
from unmask.report.style import find_range

SHADES = " ░▒▓█"
"""Readable without colours, too."""
MOST_VIEWS, MOST_PANELS, MOST_ROWS = 2, 3, 60
"""Of a heatmap that is shown; a larger one is for a page."""


def show_heatmap(console: Console, figure: Figure) -> None:
    """The first views of a heatmap that is small, panels side by side under one scale."""
    for choice, panels in list(figure.views.items())[:MOST_VIEWS]:
        maps = [panel for panel in panels if isinstance(panel, MapPanel) and panel.x and panel.y]
        if not maps or len(maps) > MOST_PANELS or max(len(panel.y) for panel in maps) > MOST_ROWS:
            return
        chosen = zip(figure.controls, choice, strict=True)
        named = "; ".join(f"{control.label}: {control.options[i]}" for control, i in chosen)
        darkest = max(map(abs, find_range(figure, [maps])))
        heading = f"{figure.title} ({named}); darkest is {darkest:.3g}, {figure.ylabel}"
        console.print(RichText(heading, style="dim"))
        console.print(draw_maps(maps, darkest, figure.xlabel, console.width))


def draw_maps(maps: Sequence[MapPanel], darkest: float, xlabel: str, width: int) -> RichTable:
    """Two characters a cell, or one where the terminal is narrow; row labels once if they agree."""
    labels = max(len(label) for panel in maps for label in panel.y)
    size = 2 if labels + 2 * sum(len(panel.x) + 2 for panel in maps) <= width else 1
    has_labels = [i == 0 or panel.y != maps[0].y for i, panel in enumerate(maps)]
    table = RichTable(box=None, padding=(0, 1), show_edge=False)
    for panel, is_labelled in zip(maps, has_labels, strict=True):
        if is_labelled:
            table.add_column("", justify="right", no_wrap=True)
        title = min(len(panel.title), width // 4)
        table.add_column(RichText(panel.title), width=max(title, size * len(panel.x)))
    for row in range(max(len(panel.y) for panel in maps) + 1):
        cells: list[RichText] = []
        for panel, is_labelled in zip(maps, has_labels, strict=True):
            names = [*panel.y, xlabel]
            if is_labelled:
                cells.append(RichText(names[row] if row < len(names) else ""))
            cells.append(_shade_row(panel, row, size, darkest))
        table.add_row(*cells)
    return table


def _shade_row(panel: MapPanel, row: int, size: int, darkest: float) -> RichText:
    """The values of a row, purple above 0 and orange below; after the last row, the axis."""
    if row >= len(panel.y):
        ticks = panel.x[::2] if row == len(panel.y) else ()
        return RichText("".join(f"{tick:<{2 * size}}" for tick in ticks).rstrip())
    text = RichText()
    for cell in panel.z[row]:
        value = 0.0 if cell is None or math.isnan(cell) else cell
        shade = SHADES[round(min(1.0, abs(value) / darkest) * (len(SHADES) - 1))]
        text.append(size * shade, style="dark_orange" if value < 0 else "purple")
    return text

"""Figures as files for papers, PNG and PDF: the same data that the page draws.

The options of a figure's first control become rows of panels; every choice of the others that has
something to show is a file of its own, of a slider three positions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from unmask.blocks.blocks import Control, Figure, Panel, TextPanel
from unmask.blocks.tidy import describe_picture
from unmask.report.panels import (
    MOST_SIGNS,
    WIDTHS,
    Painter,
    list_labels,
    make_scale,
    measure_panel,
    plain,
    wrap,
)
from unmask.report.render_html import slug
from unmask.report.style import find_range, new_figure, save_figure

MOST_COLUMNS = {"lines": 4, "dots": 2, "heatmap": 3, "unmasking": 1}
MOST_HEIGHT = 14.0
"""Inches of a picture; more rows of panels go to further files."""


@dataclass(frozen=True)
class Cell:
    """A place in the grid of a picture: a panel, and what stands above it."""

    title: str
    panel: Panel | None


def draw_figure(
    figure: Figure, folder: Path, name: str, is_paper: bool = True
) -> list[tuple[str, str]]:
    """Draw the pictures of a figure into `folder`: (what it shows in words, its file).

    For a paper every choice as PNG and PDF; for a page of text the first choice, as PNG alone.
    """
    drawn = []
    rest = [_name_options(control) for control in figure.controls[1:]]
    slugs = [_choose_slugs(options) for options in rest]
    there = {choice[1:] for choice in figure.views}
    choices = product(*map(_choose_drawn, figure.controls[1:]))
    measured = [choice for choice in choices if choice in there]
    for choice in measured if is_paper else measured[:1]:
        pages = list(_split(figure, _list_rows(figure, choice)))
        for number, rows in enumerate(pages, start=1):
            chosen = [options[i] for options, i in zip(rest, choice, strict=True)]
            parts = [name, *(each[i] for each, i in zip(slugs, choice, strict=True))]
            if len(pages) > 1:
                chosen.append(f"{number} of {len(pages)}")
                parts.append(str(number))
            shown, file = ", ".join(chosen), "-".join(parts)
            _draw_picture(figure, rows, shown, folder / file, is_paper)
            panels = [(cell.title, cell.panel) for row in rows for cell in row if cell.panel]
            drawn.append((describe_picture(figure, panels, shown), f"{file}.png"))
    return drawn


def _choose_drawn(control: Control) -> list[int]:
    """The options that get pictures: of a slider the first, the middle and the last."""
    count = len(control.options)
    return sorted({0, count // 2, count - 1}) if control.is_slider else list(range(count))


def _name_options(control: Control) -> list[str]:
    """The options in words: a number says what it counts."""
    return [f"{control.label} {each}" if each.isdecimal() else each for each in control.options]


def _choose_slugs(options: Sequence[str]) -> list[str]:
    """Parts of file names, each different."""
    names = [slug(option)[:40].strip("-") for option in options]
    return [
        name if name and names.count(name) == 1 else f"{name}-{i + 1}".strip("-")
        for i, name in enumerate(names)
    ]


def _list_rows(figure: Figure, rest: tuple[int, ...]) -> list[list[Cell]]:
    """The grid for one choice of the controls after the first; a choice without a view is empty."""
    if figure.controls:
        options = figure.controls[0].options
        views = [(each, figure.views.get((i, *rest), ())) for i, each in enumerate(options)]
    else:
        views = [("", figure.views.get((), ()))]
    rows, most = [], MOST_COLUMNS[figure.chart]
    for option, panels in views:
        # A text asked the other way round has a row of its own.
        own = [each for each in panels if getattr(each, "way", "") in ("", option)]
        cells = [Cell(_write_title(option, panel), panel) for panel in own]
        cells = cells or [Cell(f"{option}: nothing was measured".removeprefix(": "), None)]
        rows += [cells[i : i + most] for i in range(0, len(cells), most)]
    return rows


def _write_title(option: str, panel: Panel) -> str:
    lines = [option, panel.title]
    if isinstance(panel, TextPanel) and panel.expected:
        lines.append(f"{'recalled' if panel.is_hit else 'not recalled'}: {panel.expected}")
    return "\n".join(line for line in lines if line)


def _split(figure: Figure, rows: list[list[Cell]]) -> Iterator[list[list[Cell]]]:
    """The rows, as many in each picture as its height holds."""
    page: list[list[Cell]] = []
    for row in rows:
        if page and sum(_find_height(figure, each) for each in (*page, row)) > MOST_HEIGHT:
            yield page
            page = []
        page.append(row)
    yield page


def _find_height(figure: Figure, row: Sequence[Cell]) -> float:
    """Inches of a row of panels, titles and axes included."""
    lines = max(1 + wrap(cell.title, WIDTHS[figure.chart]).count("\n") for cell in row)
    axis = 0.1 if figure.chart == "unmasking" else 0.5
    return max(measure_panel(cell.panel) for cell in row) + axis + 0.16 * lines


def _draw_picture(
    figure: Figure, rows: list[list[Cell]], shown: str, path: Path, is_paper: bool
) -> None:
    cells = [cell for row in rows for cell in row]
    labels = [label for cell in cells for label in list_labels(cell.panel)]
    room = 0.4 + 0.06 * min(MOST_SIGNS, max(map(len, labels), default=0))
    columns, heights = max(map(len, rows)), [_find_height(figure, row) for row in rows]
    labelled = {i for row in rows for i in range(len(row)) if _has_labels(row, i)}
    inches = WIDTHS[figure.chart] * (1.6 if figure.chart == "lines" and columns == 1 else 1)
    width = inches * columns + room * len(labelled)
    height = sum(heights) + 0.4
    extent = find_range(figure, [[cell.panel for cell in cells if cell.panel is not None]])
    painter = Painter(figure, extent, inches)
    picture = new_figure(width, height, len(rows), columns, height_ratios=heights)
    with picture as (canvas, axes):
        for line, row in zip(axes, rows, strict=True):
            for axis in line[len(row) :]:
                axis.set_axis_off()
            for i, (axis, cell) in enumerate(zip(line, row, strict=False)):
                axis.set_title(wrap(cell.title, WIDTHS[figure.chart]), loc="left", fontsize=9)
                painter.draw(axis, cell.panel, _has_labels(row, i))
        if figure.chart == "heatmap":
            _add_scale(canvas, axes, figure, extent)
        if painter.legend:
            _add_legend(canvas, painter.legend, width)
        title = f"{figure.title}: {shown}" if shown else figure.title
        canvas.suptitle(wrap(title, width), fontsize=10, x=0.01, ha="left")
        save_figure(canvas, path, is_paper)


def _has_labels(row: Sequence[Cell], i: int) -> bool:
    """Whether a panel shows the names of its lines: not where those on its left are the same."""
    return i == 0 or list_labels(row[i - 1].panel) != list_labels(row[i].panel)


def _add_scale(canvas: Any, axes: Any, figure: Figure, extent: tuple[float, float]) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    colours = ScalarMappable(Normalize(*extent), make_scale(figure))
    size = {"fraction": 0.05, "shrink": 0.9, "aspect": 30}
    canvas.colorbar(colours, ax=axes.ravel().tolist(), label=plain(figure.ylabel), **size)


def _add_legend(canvas: Any, legend: dict[str, Any], width: float) -> None:
    """One legend for all panels, as many names in a line as the width holds, below them."""
    fitting = max(1, int(width / (0.5 + 0.065 * max(map(len, legend)))))
    canvas.set_figheight(canvas.get_figheight() + 0.17 * ((len(legend) - 1) // fitting))
    canvas.legend(
        list(legend.values()),
        # A name that begins with an underscore would be left out.
        [f"\u200b{plain(name)}" for name in legend],
        loc="outside lower center",
        ncols=min(len(legend), fitting),
        fontsize=8,
    )

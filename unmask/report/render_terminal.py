"""Sections in the terminal: sentences, tables, and small heatmaps as shaded cells."""

import math
import re
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text as RichText

from unmask.blocks.blocks import (
    Figure,
    Finding,
    Fold,
    MapPanel,
    Notice,
    ReportBlock,
    RowRole,
    Section,
    Stored,
    Table,
    Text,
    format_value,
)
from unmask.blocks.labels import say_outcome
from unmask.report.style import find_range

_STYLES: dict[RowRole, str] = {
    "plain": "",
    "control": "dim",
    "published": "dim italic",
    "strong": "bold",
}
SHADES = " ░▒▓█"
"""Readable without colours, too."""
MOST_PANELS, MOST_ROWS = 3, 60
"""Panels and rows of the largest heatmap that is shown; a larger one is for a page."""
BRIEF_SENTENCES, BRIEF_ROWS = 8, 12
"""What is shown of a section unless all of it is asked for."""
MARGIN = 3
"""What a column of a table takes besides its text: a space either side, and a line."""


def show_section(console: Console, section: Section, is_full: bool = False) -> None:
    """The section's sentences and one small table; all of its tables and folds where `is_full`.

    The first figure is shown where it is a small heatmap, which then takes the table's place.
    """
    console.print(RichText(section.title, style="bold"))
    blocks = [*section.opening, *section.blocks]
    figure = next((block for block in blocks if isinstance(block, Figure)), None)
    table = next((each for each in blocks if isinstance(each, Table) and _has_numbers(each)), None)
    sentences = 0
    for block in blocks:
        if block is figure and show_heatmap(console, figure):
            table = None
        elif is_full:
            show_blocks(console, [block], is_full)
        elif block is table:
            console.print(make_tables(table, BRIEF_ROWS, console.width, is_brief=True)[0])
        elif isinstance(block, Text | Finding | Notice):
            sentences += 1
            if sentences <= BRIEF_SENTENCES:
                show_blocks(console, [block], is_full)
    if sentences > BRIEF_SENTENCES and not is_full:
        console.print(f"and {sentences - BRIEF_SENTENCES} more sentences", style="dim")


def _has_numbers(table: Table) -> bool:
    """Whether a table has values that are no words, as examples of texts have not."""
    return any(not isinstance(value, str | None) for row in table.rows for value in row.values)


def show_blocks(console: Console, blocks: Sequence[ReportBlock], is_full: bool) -> None:
    """Blocks one below the other; figures are drawn by `unmask report`.

    Texts go to rich as `RichText`, in which nothing is markup.
    """
    for block in blocks:
        match block:
            case Text(text):
                console.print(RichText(text, style="dim"))
            case Notice(text):
                console.print(RichText(text, style="yellow"))
            case Finding(is_further=True):
                pass
            case Finding(text):
                mark = (f"[{say_outcome(block)}]", "green" if block.is_clear else "yellow")
                console.print(RichText.assemble(text, " ", mark))
            case Table():
                most = len(block.rows) if is_full else block.most
                for piece in make_tables(block, most, console.width):
                    console.print(piece)
            case Stored(title, note, inner):
                console.print(RichText(f"Stored result: {title} {note}", style="underline"))
                show_blocks(console, inner, is_full)
            case Fold(title, inner) if is_full:
                console.print(RichText(title, style="underline"))
                show_blocks(console, inner, is_full)
            case Fold() | Figure():
                pass


def make_tables(table: Table, most: int, width: int, *, is_brief: bool = False) -> list[RichTable]:
    """At most so many rows of a table of values, as rich draws it.

    Where it is too wide for whole words, or where `is_brief` for whole values, it becomes several
    below each other, each with the columns that name a row; the first one says what is missing.
    """
    rows = table.rows[:most]
    left_out = len(table.rows) - len(rows)
    texts = [
        [column.label, *(format_value(row.values[i], column) for row in rows)]
        for i, column in enumerate(table.columns)
    ]
    if sum(_find_longest_word(each) + MARGIN for each in texts) >= width:
        # Samplers are one long word, "random;temperature=0.8": it may be broken between settings.
        texts = [[re.sub(r";(?=\S)", "; ", text) for text in each] for each in texts]
    is_number = [
        any(not isinstance(row.values[i], str | None) for row in table.rows)
        for i in range(len(texts))
    ]
    pieces = []
    least = [_find_longest_word(each) for each in texts]
    if is_brief:  # of numbers with their intervals, each in one line
        most_of = (max(map(cell_len, each[1:]), default=0) for each in texts)
        least = [max(least[i], of) if is_number[i] else least[i] for i, of in enumerate(most_of)]
    for group in _group_columns(least, is_number, width):
        widths = _fit([texts[i] for i in group], [least[i] for i in group], width)
        pieces.append(RichTable(title_justify="left"))
        for i, fitted in zip(group, widths, strict=True):
            justify = "right" if is_number[i] else "left"
            # A word that is longer than the line goes on below: cut, it might be another's.
            pieces[-1].add_column(
                RichText(texts[i][0]), justify=justify, width=fitted, overflow="fold"
            )
        for number, row in enumerate(rows, start=1):
            cells = (RichText(texts[i][number]) for i in group)
            pieces[-1].add_row(*cells, style=_STYLES[row.role])
    pieces[0].title = RichText(table.caption)
    missing = [f"{left_out:,} more rows"] if left_out else []
    if is_brief and (columns := len(texts) - len(pieces[0].columns)):
        missing.append(f"{columns} more columns")
    if missing:
        pieces[0 if is_brief else -1].caption = f"and {' and '.join(missing)}"
    return pieces


def _group_columns(least: Sequence[int], is_number: Sequence[bool], width: int) -> list[list[int]]:
    """Columns that stand side by side: all of them, or groups that begin with what names a row.

    That is the first columns of words, such as the model, and any number before them.
    """
    least = [each + MARGIN for each in least]
    if sum(least) < width:
        return [list(range(len(least)))]
    first = is_number.index(False) + 1 if False in is_number else 1
    while first < len(least) and not is_number[first] and sum(least[: first + 1]) <= width / 2:
        first += 1
    groups = [list(range(first))]
    for i in range(first, len(least)):
        if len(groups[-1]) > first and sum(least[j] for j in groups[-1]) + least[i] >= width:
            groups.append(list(range(first)))
        groups[-1].append(i)
    return groups


def _fit(texts: Sequence[Sequence[str]], least: Sequence[int], width: int) -> list[int]:
    """The widths of columns side by side: the widest gives first, down to what it needs."""
    widths = [max(map(cell_len, each)) for each in texts]
    while sum(widths) + MARGIN * len(texts) >= width and max(widths) > 1:
        above = [i for i in range(len(texts)) if widths[i] > least[i]] or range(len(texts))
        widths[max(above, key=widths.__getitem__)] -= 1
    return widths


def _find_longest_word(texts: Sequence[str]) -> int:
    return max((cell_len(word) for text in texts for word in text.split()), default=0)


def show_heatmap(console: Console, figure: Figure) -> bool:
    """Whether a figure's first view is a small heatmap, which is then shown under one scale."""
    choice, panels = next(iter(figure.views.items()), ((), ()))
    maps = [panel for panel in panels if isinstance(panel, MapPanel) and panel.x and panel.y]
    is_small = 0 < len(maps) <= MOST_PANELS and max(len(each.y) for each in maps) <= MOST_ROWS
    if not is_small:
        return False
    chosen = zip(figure.controls, choice, strict=True)
    named = "; ".join(f"{control.label}: {control.options[i]}" for control, i in chosen)
    darkest = max(map(abs, find_range(figure, [maps])))
    heading = f"{figure.title} ({named}); darkest is {darkest:.3g}, {figure.ylabel}"
    console.print(RichText(heading, style="dim"))
    console.print(draw_maps(maps, darkest, figure.xlabel, console.width))
    return True


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

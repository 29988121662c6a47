"""Sections in the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text as RichText

from unmask.blocks.blocks import (
    Block,
    Figure,
    Finding,
    Fold,
    Notice,
    Section,
    Table,
    Text,
    format_value,
)
from unmask.blocks.labels import OUTCOMES
from unmask.report.terminal_heatmap import show_heatmap

if TYPE_CHECKING:
    from unmask.blocks.blocks import RowRole

_STYLES: "dict[RowRole, str]" = {
    "plain": "",
    "control": "dim",
    "published": "dim italic",
    "strong": "bold",
}


def show_section(console: Console, section: Section, is_full: bool = False) -> None:
    """The section's sentences and tables; what is folded away is shown where `is_full`.

    The first figure is shown as well where it is a small heatmap.
    """
    console.print(RichText(section.title, style="bold"))
    blocks = section.blocks
    at = next((i for i, block in enumerate(blocks) if isinstance(block, Figure)), None)
    show_blocks(console, blocks[:at], is_full)
    if at is not None:
        figure = blocks[at]
        if isinstance(figure, Figure) and figure.chart == "heatmap":
            show_heatmap(console, figure)
        show_blocks(console, blocks[at:], is_full)


def show_blocks(console: Console, blocks: Sequence[Block], is_full: bool) -> None:
    """Blocks one below the other; figures are drawn by `unmask report`.

    Texts go to rich as `RichText`, in which nothing is markup.
    """
    for block in blocks:
        match block:
            case Text(text):
                console.print(RichText(text, style="dim"))
            case Notice(text):
                console.print(RichText(text, style="yellow"))
            case Finding(text, verdict):
                mark = (f"[{OUTCOMES[verdict.outcome]}]", "green" if verdict.is_clear else "yellow")
                console.print(RichText.assemble(text, " ", mark))
            case Table():
                console.print(make_table(block, is_full))
            case Fold(title, inner) if is_full:
                console.print(RichText(title, style="underline"))
                show_blocks(console, inner, is_full)
            case Fold() | Figure():
                pass


def make_table(table: Table, is_full: bool) -> RichTable:
    """A table of values as rich draws it, cut where it is long."""
    rows = table.rows if is_full else table.rows[: table.most]
    left_out = len(table.rows) - len(rows)
    caption = f"and {left_out:,} more rows: draw them all by `unmask report`" if left_out else None
    shown = RichTable(title=RichText(table.caption), caption=caption, title_justify="left")
    for i, column in enumerate(table.columns):
        is_number = any(not isinstance(row.values[i], str | None) for row in table.rows)
        shown.add_column(RichText(column.label), justify="right" if is_number else "left")
    for row in rows:
        cells = zip(row.values, table.columns, strict=True)
        texts = (RichText(format_value(value, column)) for value, column in cells)
        shown.add_row(*texts, style=_STYLES[row.role])
    return shown

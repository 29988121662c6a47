"""Documents as Markdown: text is escaped in one place, figures and long tables lie beside it."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.base.files import replace_file
from unmask.blocks.blocks import (
    CellValue,
    Figure,
    Finding,
    Fold,
    Notice,
    ReportBlock,
    Section,
    Stored,
    Table,
    Text,
    format_value,
)
from unmask.blocks.labels import say_outcome
from unmask.evaluation.statistics import Interval
from unmask.report.render_html import CODE

if TYPE_CHECKING:
    from unmask.report.document import Document

PlaceFigure = Callable[[Section, Figure], Sequence[tuple[str, str]]]
"""Draws a figure: of each picture its words, for those who do not see it, and its path."""
Link = Callable[[Section, Table], str]
"""Writes a long table whole and says where."""

# Signs that begin something wherever they stand; underscores inside words do not.
_SIGNS = re.compile(r"[\\`*|<>$~&#]|(?<![A-Za-z0-9])_|(?<=\])[(:\[]")
_LINK_SIGNS = re.compile(rf"{_SIGNS.pattern}|[\[\]]")
_LIST = re.compile(r"^(\d*)([.)+=-])(?=[\s=-]|$)")
"""How the line of a list or a rule begins."""


def render_markdown(document: "Document", place: PlaceFigure, link: Link) -> str:
    """The document under a heading of the first level."""
    parts = [f"# {escape(document.title)}", _write_paragraph(document.lead)]
    parts += render_blocks(Section("", ""), document.notices, place, link)
    for number in document.numbers:
        note = f" ({escape(number.note)})" if number.note else ""
        parts.append(f"**{escape(number.value)}** {escape(number.label)}{note}")
    for section in document.sections:
        if section.title != document.title:
            parts += [f"## {escape(section.title)}"]
        parts += render_blocks(section, [*section.opening, *section.blocks], place, link)
    return "\n\n".join(part for part in parts if part) + "\n"


def render_blocks(
    section: Section, blocks: Sequence[ReportBlock], place: PlaceFigure, link: Link
) -> list[str]:
    """Paragraphs, tables and pictures, one below the other."""
    parts = []
    for block in blocks:
        match block:
            case Text(text):
                parts.append(_write_paragraph(text))
            case Notice(text):
                parts.append(f"> {_write_paragraph(text)}")
            case Finding(is_further=True):
                pass
            case Finding(text):
                parts.append(f"{_write_paragraph(text)} **[{say_outcome(block)}]**")
            case Table():
                parts += _render_table(section, block, link)
            case Figure():
                parts += _render_figure(block, place(section, block))
            case Stored(title, note, inner):
                parts.append(f"> **Stored result: {escape(title)}** {_write_paragraph(note)}")
                parts += render_blocks(section, inner, place, link)
            case Fold(title, inner):
                body = "\n\n".join(render_blocks(section, inner, place, link))
                summary = f"<summary>{escape(title)}</summary>"
                parts.append(f"<details>{summary}\n\n{body}\n\n</details>")
    return parts


def _render_figure(figure: Figure, pictures: Sequence[tuple[str, str]]) -> list[str]:
    """The picture of the first choice; a folder of figures, or the HTML page, has all."""
    parts = [f"![{escape(words, _LINK_SIGNS)}]({path})" for words, path in pictures]
    options = sum(len(control.options) for control in figure.controls[1:])
    more = " Other choices are on the HTML page." if options > len(figure.controls[1:]) else ""
    caption = f" {_write_paragraph(figure.caption)}" if figure.caption else ""
    return [*parts, f"*{escape(figure.title)}.*{caption}{more}"]


def _render_table(section: Section, table: Table, link: Link) -> list[str]:
    rows = table.rows[: table.most]
    lines = [[escape(column.label) for column in table.columns], ["---"] * len(table.columns)]
    marks = {"plain": "", "control": "*", "published": "*", "strong": "**"}
    for row in rows:
        pairs = zip(row.values, table.columns, strict=True)
        cells = [escape(format_value(value, column)).strip() for value, column in pairs]
        mark = marks[row.role]
        lines.append([f"{mark}{cell}{mark}" if cell else "" for cell in cells])
    body = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    caption = escape(table.caption)
    parts = [f"**{caption}**", body] if caption else [body]
    if len(table.rows) > len(rows):
        parts.append(f"{len(rows)} of [{len(table.rows):,} rows]({link(section, table)}).")
    return parts


def escape(text: str, signs: re.Pattern[str] = _SIGNS) -> str:
    """Text that Markdown shows as it is."""
    return signs.sub(r"\\\g<0>", " ".join(text.split()))


def _write_paragraph(text: str) -> str:
    """A paragraph in Markdown, where what stands between backticks is code."""
    pieces = CODE.split(" ".join(text.split()))
    written = "".join(
        f"`{piece}`" if i % 2 else _SIGNS.sub(r"\\\g<0>", piece) for i, piece in enumerate(pieces)
    )
    return _LIST.sub(r"\1\\\2", written)


def write_csv(table: Table, path: Path) -> None:
    """Every row of a table with its values in full; an interval has three columns."""
    spans = [
        any(isinstance(row.values[i], Interval) for row in table.rows)
        for i in range(len(table.columns))
    ]
    heads = []
    for column, is_interval in zip(table.columns, spans, strict=True):
        ends = ("", ", low", ", high") if is_interval else ("",)
        heads += [f"{column.label}{end}" for end in ends]
    lines = [heads]
    for row in table.rows:
        pairs = zip(row.values, spans, strict=True)
        lines.append([cell for value, wide in pairs for cell in _list_cells(value, wide)])
    with replace_file(path) as draft, draft.open("w", encoding="utf-8", newline="") as file:
        file.writelines(",".join(map(quote_csv, line)) + "\n" for line in lines)


def _list_cells(value: CellValue, is_interval: bool) -> list[CellValue]:
    if isinstance(value, Interval):
        return [value.mean, value.low, value.high]
    return [value, *([None, None] if is_interval else [])]


def quote_csv(value: CellValue) -> str:
    """A cell of a CSV file; a text that a spreadsheet would compute is kept a text."""
    text = "" if value is None else str(value)
    if isinstance(value, str) and value.startswith(tuple("=+-@\t\r")):
        text = f"'{text}"
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\r\n') else text

"""Sections as Markdown; text is escaped for it in one place."""

import re
from collections.abc import Callable, Sequence

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

Place = Callable[[Figure], Sequence[tuple[str, str]]]
"""Where the pictures of a figure lie: (what one shows, its path from the page)."""


def render_markdown(
    section: Section, place: Place, link: Callable[[Table], str], level: int = 2
) -> str:
    """The section under a heading of that level.

    `place` draws a figure and says where; `link` writes a long table whole and says where.
    """
    parts = [f"{'#' * level} {escape(section.title)}"]
    parts += render_blocks(section.blocks, place, link)
    return "\n\n".join(parts) + "\n"


def render_blocks(blocks: Sequence[Block], place: Place, link: Callable[[Table], str]) -> list[str]:
    parts = []
    for block in blocks:
        match block:
            case Text(text):
                parts.append(escape(text))
            case Notice(text):
                parts.append(f"> {escape(text)}")
            case Finding(text, verdict):
                parts.append(f"{escape(text)} **[{OUTCOMES[verdict.outcome]}]**")
            case Table():
                parts += _render_table(block, link)
            case Figure():
                parts += [f"![{escape(alt)}]({path})" for alt, path in place(block)]
                parts.append(f"*{escape(block.title)}.* {escape(block.caption)}")
            case Fold(title, inner):
                body = "\n\n".join(render_blocks(inner, place, link))
                summary = f"<summary>{escape(title)}</summary>"
                parts.append(f"<details>{summary}\n\n{body}\n\n</details>")
    return parts


def _render_table(table: Table, link: Callable[[Table], str]) -> list[str]:
    rows = table.rows[: table.most]
    lines = [[escape(column.label) for column in table.columns], ["---"] * len(table.columns)]
    for row in rows:
        pairs = zip(row.values, table.columns, strict=True)
        cells = [escape(format_value(value, column)) for value, column in pairs]
        if row.role in ("control", "published"):
            cells = [f"*{cell}*" if cell else "" for cell in cells]
        elif row.role == "strong":
            cells = [f"**{cell}**" if cell else "" for cell in cells]
        lines.append(cells)
    body = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    parts = [f"**{escape(table.caption)}**", body]
    if len(table.rows) > len(rows):
        parts.append(f"{len(rows)} of {len(table.rows):,} rows; all: {link(table)}")
    return parts


def escape(text: str) -> str:
    """Text that Markdown shows as it is; what stands between backticks stays code."""
    pieces = re.split(r"(`[^`]*`)", text)
    escaped = (
        piece if i % 2 else re.sub(r"([\\|<>])", r"\\\1", piece) for i, piece in enumerate(pieces)
    )
    return "".join(escaped).replace("\n", " ").replace("|", "\\|").replace("\\\\|", "\\|")

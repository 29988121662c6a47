"""Tables that the commands of this folder write beside themselves, in Markdown."""

from collections.abc import Iterable, Sequence
from pathlib import Path


def write_page(
    name: str,
    title: str,
    note: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    is_summed: bool = False,
) -> None:
    """A page of one table in this folder, its numbers added up in a last row if that is wanted."""
    table = [list(row) for row in rows]
    if is_summed:
        table.append(["all", *(sum(row[i] for row in table) for i in range(1, len(columns)))])
    table = [list(columns), ["---"] * len(columns), *table]
    lines = [
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in table
    ]
    text = "\n".join([f"# {title}", "", note, "", *lines]) + "\n"
    Path(__file__).with_name(name).write_text(text, "utf-8")
    print(text)

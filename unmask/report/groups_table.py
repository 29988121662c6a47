"""Groups with their means and intervals as a table in the terminal."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from unmask.evaluation.groups import Group


def show_groups(
    console: Console,
    title: str,
    groups: Sequence[Group],
    labels: Mapping[str, str],
    percent: Sequence[str] = (),
) -> None:
    """A row for each group, a column for each label; `percent` columns are shown in percent."""
    table = Table(*groups[0].key, "rows", *labels.values(), title=title)
    before = None
    for group in groups:
        first = next(iter(group.key.values()))
        if before is not None and first != before:
            table.add_section()
        before = first
        cells = []
        for column in labels:
            if column not in group.means:
                cells.append("")
                continue
            value, scale = group.means[column], 100 if column in percent else 1
            mean, low, high = (
                f"{scale * x:.{1 if scale == 100 else 2}f}"
                for x in (value.mean, value.low, value.high)
            )
            cells.append(escape(f"{mean} [{low}, {high}]"))
        table.add_row(*(escape(str(name)) for name in group.key.values()), str(group.rows), *cells)
    console.print(table)


def show_completions(console: Console, rows: Sequence[Mapping[str, object]]) -> None:
    """Prompts with the likeliest first tokens, as the study's Fig. 3 shows them."""
    table = Table("model", "way", "prompt", "right", "likeliest tokens", "entropy, nats")
    for row in rows:
        top, spread = row["top"], row["entropy"]
        assert isinstance(top, list) and isinstance(spread, float)
        shown = (row["model"], row["way"], row["prompt"], row["answer"], " · ".join(top))
        table.add_row(*(escape(str(text)) for text in shown), f"{spread:.2f}")
    console.print(table)

"""When kinds of tokens are committed: a table and a figure."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from unmask.evaluation.commits import Line
from unmask.report.style import PALETTE, new_figure, save_figure


def show_order(console: Console, title: str, lines: Sequence[Line]) -> None:
    """When each kind of token comes, as shares of the steps."""
    table = Table(title=title, caption="when: 0 the first step, 1 the last")
    for name in ("kind", "tokens", "when", "1st third", "2nd", "3rd", "p"):
        table.add_column(name, no_wrap=True, justify="left" if name == "kind" else "right")
    before = None
    for line in lines:
        if before not in (None, line.by):
            table.add_section()
        before = line.by
        table.add_row(
            line.kind,
            f"{line.tokens:,}",
            f"{line.when.mean:.2f} [{line.when.low:.2f}, {line.when.high:.2f}]",
            *(f"{share:.0%}" for share in line.thirds),
            f"{line.confidence:.2f}",
        )
    console.print(table)


def draw_order(lines: Sequence[Line], path: str | Path) -> None:
    """The mean time of each kind with its interval, PNG and PDF."""
    with new_figure(5.2, 0.3 * len(lines) + 1.1) as (figure, axes):
        axis = axes[0, 0]
        groups = list(dict.fromkeys(line.by for line in lines))
        for y, line in enumerate(lines):
            colour = PALETTE[groups.index(line.by)]
            reach = [[line.when.mean - line.when.low], [line.when.high - line.when.mean]]
            axis.errorbar(line.when.mean, y, xerr=reach, fmt="o", color=colour, capsize=2)
        axis.set_yticks(range(len(lines)), [f"{line.kind} ({line.tokens})" for line in lines])
        axis.invert_yaxis()
        axis.set(xlim=(0, 1), xlabel="committed at (0 first step, 1 last)")
        save_figure(figure, path)

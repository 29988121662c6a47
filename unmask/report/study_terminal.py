"""The end of a study in the terminal: four numbers, and where the files are."""

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from unmask.report.artefacts import PAGE, StudyFolder
from unmask.report.story import tell_numbers


def show_study(console: Console, run: StudyFolder) -> None:
    """A panel with the numbers that matter, and the address of the page."""
    table = Table.grid(padding=(0, 2))
    for number in tell_numbers(run):
        table.add_row(
            Text(number.label), Text(number.value, style="bold"), Text(number.note, style="dim")
        )
    console.print(Panel(table, title=run.names["model"], title_align="left", expand=False))
    lines = {"tables": run.path.resolve()}
    if run.has(PAGE):
        lines = {"page": (run.path / PAGE).resolve().as_uri()} | lines
    for label, place in lines.items():
        console.print(f"{label}: {place}", markup=False, highlight=False, soft_wrap=True)

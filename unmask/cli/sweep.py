"""`unmask sweep`: a grid of recipes, trained, measured and compared."""

from pathlib import Path

import typer

from unmask.cli.exits import note_when_stopped, repeat_command
from unmask.cli.train import EXITS


def sweep(
    file: Path = typer.Argument(..., help="A YAML file: recipe, grids, measures, figures."),
    changes: list[str] = typer.Argument(
        None,
        metavar="[KEY=VALUE …]",
        help="Entries of the file to replace, or settings of every cell, such as budget.steps=10.",
    ),
    out: Path | None = typer.Option(
        None, help="Folder of the sweep, which several processes may share; runs/FILE by default."
    ),
    page: Path | None = typer.Option(
        None, help="Draw the comparison to this .html or .md file; page.html in --out by default."
    ),
    minutes: float | None = typer.Option(
        None, help="Save and stop after so many minutes; by default it runs to the end."
    ),
    device: str = typer.Option("auto", help="auto, cpu, cuda, cuda:N or mps."),
    processes: int = typer.Option(
        1, min=1, help="Processes that share the work on this machine, and its device."
    ),
    show_all: bool = typer.Option(False, "--all", help="Print all tables, whole."),
    dry_run: bool = typer.Option(False, help="List the cells and stop; nothing is trained."),
) -> None:
    """Train and measure a grid of recipes, and compare them; several processes share the work."""
    from rich.console import Console

    from unmask.base.extras import require_extra
    from unmask.base.progress import watch
    from unmask.report.page import check_place
    from unmask.report.render_terminal import show_section
    from unmask.sweep.compare import draw_sweep
    from unmask.sweep.grid import read_sweep
    from unmask.sweep.run import run_sweep
    from unmask.training.run import choose_folder

    require_extra("study", "unmask sweep")
    console, words = Console(), list(changes or [])
    if page is not None:
        check_place(page)
    if dry_run:
        for cell in read_sweep(file, words).cells:
            console.print(cell.name, markup=False, highlight=False, soft_wrap=True)
        return
    folder = choose_folder(file, out)
    resume = f"what is done is kept in {folder}; go on with: {repeat_command()}"
    with note_when_stopped(lambda: resume):
        outcome = run_sweep(
            file, folder, *words, minutes=minutes, device=device, watch=watch, processes=processes
        )
        section, places = draw_sweep(outcome, page)
    show_section(console, section, show_all)
    shown = ", ".join(map(str, places))
    console.print(f"written: {shown}", markup=False, highlight=False, soft_wrap=True)
    if outcome.ended != "done":
        console.print(f"stopped ({outcome.ended}): {resume}", markup=False, soft_wrap=True)
        raise typer.Exit(EXITS.get(outcome.ended, 0))
    raise typer.Exit(1 if outcome.failed else 0)

"""`unmask sweep`: a grid of recipes, trained, measured and compared."""

from pathlib import Path
from textwrap import shorten
from typing import Any

import typer

from unmask.base.engines import ON
from unmask.cli.exits import UNDONE, note_when_stopped, repeat_command
from unmask.cli.train import EXITS


def sweep(
    file: Path = typer.Argument(..., help="A YAML file: recipe, grids, measures, figures."),
    changes: list[str] = typer.Argument(
        None,
        metavar="[KEY=VALUE …]",
        help="Entries of the file to replace, or settings of every cell, such as budget.steps=10.",
    ),
    out: Path | None = typer.Option(
        None, help="Folder of the sweep, which several commands may share; runs/FILE by default."
    ),
    page: Path | None = typer.Option(
        None, help="Draw the comparison to this .html or .md file; page.html in --out by default."
    ),
    minutes: float | None = typer.Option(
        None, help="Save and stop after so many minutes; by default it runs to the end."
    ),
    device: str = typer.Option("auto", help="auto, cpu, cuda, cuda:N or mps."),
    on: str | None = typer.Option(None, help=ON),
    cell: list[str] = typer.Option(None, help="Do this cell alone; may be given several times."),
    wait: bool = typer.Option(
        False, "--wait", help="Wait for cells of other commands, and do what they leave undone."
    ),
    show_all: bool = typer.Option(False, "--all", help="Print all tables, whole."),
    dry_run: bool = typer.Option(False, help="List the cells and stop; nothing is trained."),
) -> None:
    """Train and measure a grid of recipes, and compare them, here or on a cluster."""
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
        for each in read_sweep(file, words).cells:
            console.print(each.name, markup=False, highlight=False, soft_wrap=True)
        return
    folder = choose_folder(file, out)
    resume = f"what is done is kept in {folder}; go on with: {repeat_command()}"
    with note_when_stopped(lambda: resume):
        options: dict[str, Any] = {"minutes": minutes, "device": device, "watch": watch}
        options |= {"on": on, "cells": cell or (), "wait": wait}
        outcome = run_sweep(file, folder, *words, **options)
        section, places = draw_sweep(outcome, page)
    show_section(console, section, show_all)
    shown = ", ".join(map(str, places))
    console.print(f"written: {shown}", markup=False, highlight=False, soft_wrap=True)
    if outcome.ended != "done":
        console.print(f"stopped ({outcome.ended}): {resume}", markup=False, soft_wrap=True)
    elif outcome.left:
        names = shorten(", ".join(outcome.left), 200, placeholder=", …")
        others = f"others are at work on {names}; --wait waits for them"
        console.print(others, markup=False, highlight=False, soft_wrap=True)
    undone = UNDONE if outcome.left else 0
    raise typer.Exit(EXITS.get(outcome.ended, 1 if outcome.failed else undone))

"""`unmask train`: any kind of model from a recipe, resumable."""

import shlex
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from unmask.cli.exits import INTERRUPTED, TERMINATED, note_when_stopped

if TYPE_CHECKING:
    from rich.console import Console

    from unmask.training.loop import TrainingOutcome

EXITS = {"SIGTERM": TERMINATED, "SIGINT": INTERRUPTED}


def describe_recipes() -> list[tuple[str, str]]:
    """The shipped recipes, each with the first line of its file, which says what it trains.

    No code of training is imported: a shell that completes names would wait for it.
    """
    folder = files("unmask.assets").joinpath("recipes")
    recipes = sorted((each for each in folder.iterdir() if each.name.endswith(".yaml")), key=str)
    firsts = (each.read_text("utf-8").partition("\n")[0] for each in recipes)
    return [
        (each.name.removesuffix(".yaml"), first.removeprefix("# "))
        for each, first in zip(recipes, firsts, strict=True)
    ]


def train_recipe(
    words: list[str] = typer.Argument(
        None,
        metavar="RECIPE [KEY=VALUE …]",
        help="A shipped recipe or a YAML file, and single settings such as batch.rows=64.",
        autocompletion=describe_recipes,
    ),
    out: Path | None = typer.Option(None, help="Folder of the run; runs/RECIPE by default."),
    resume: Path | None = typer.Option(None, help="Go on with the run in this folder."),
    fresh: bool = typer.Option(False, help="Remove the run that --out holds, and begin anew."),
    allow_changes: bool = typer.Option(False, help="Resume although settings or data changed."),
    seeds: str | None = typer.Option(
        None, help="Several runs in one process, such as 0,1,2: folders seed-N of --out."
    ),
    minutes: float | None = typer.Option(None, help="Save and stop after so many minutes."),
    device: str = typer.Option("auto", help="auto, cpu, cuda, cuda:N or mps."),
    dry_run: bool = typer.Option(False, help="Show what would be trained, and stop."),
    show_all: bool = typer.Option(
        False, "--all", help="List every recipe, or every setting of --dry-run."
    ),
) -> None:
    """Train a model; without RECIPE the shipped ones are listed."""
    from rich.console import Console
    from rich.table import Table

    from unmask.base.errors import UserError
    from unmask.base.progress import watch
    from unmask.training import run

    words, console = list(words or []), Console()
    name = words.pop(0) if words and "=" not in words[0] else None
    if resume is not None and (name is not None or out is not None):
        raise UserError("--resume takes recipe and folder from the run: leave RECIPE and --out out")
    if resume is None and name is None:
        if words:
            raise UserError(f"no recipe was named: put one before {words[0]!r}.")
        table = Table("recipe", "what it trains")
        recipes = describe_recipes()
        for row in recipes if show_all else _gather_recipes(recipes):
            table.add_row(*row)
        console.print(table)
        if not show_all:
            console.print("each by itself: unmask train --all")
        console.print("train one: unmask train NAME; see its settings: unmask train NAME --dry-run")
        return
    if dry_run:
        _show_plan(console, name, resume, words, device, show_all)
        return
    folder = resume or run.choose_folder(name or "", out)
    shared: dict[str, Any] = {"fresh": fresh, "minutes": minutes, "device": device}
    shared |= {"watch": watch}
    if seeds is not None:
        if resume is not None or allow_changes:
            raise UserError("--seeds resumes its own runs: leave the options of resuming out.")
        numbers = parse_seeds(seeds)
        command = ["unmask", "train", name or "", *words, "--out", str(folder), "--seeds", seeds]
        with note_when_stopped(lambda: f"go on with: {shlex.join(command)}"):
            outcomes = run.train_seeds(name or "", folder, numbers, *words, **shared)
        for seed, outcome in zip(numbers, outcomes, strict=True):
            _show_end(console, folder / f"seed-{seed}", outcome)
        raise typer.Exit(max(EXITS.get(outcome.ended, 0) for outcome in outcomes))
    with note_when_stopped(lambda: _describe_rest(folder)):
        shared |= {"resume": resume, "allow_changes": allow_changes}
        outcome = run.train(name, out, *words, **shared)
    if outcome is not None:
        _show_end(console, folder, outcome)
        raise typer.Exit(EXITS.get(outcome.ended, 0))


def _gather_recipes(recipes: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Recipes whose names begin alike, in one row, which says what one that is no twin trains."""
    groups = groupby(recipes, key=lambda recipe: recipe[0].partition("-")[0])
    rows = [dict(group) for _, group in groups]
    firsts = [next(each for each in row.items() if "twin" not in each[1]) for row in rows]
    return [
        (", ".join(row), f"{name}: {text}" if len(row) > 1 else text)
        for row, (name, text) in zip(rows, firsts, strict=True)
    ]


def parse_seeds(text: str) -> list[int]:
    """The seeds of a list such as 0,1,2."""
    from unmask.base.errors import UserError

    numbers = [part.strip() for part in text.split(",")]
    if not all(number.isdecimal() and len(number) <= 18 for number in numbers):
        raise UserError(f"--seeds {text!r} was given: expected whole numbers such as 0,1,2.")
    return [int(number) for number in numbers]


def _show_end(console: "Console", folder: Path, outcome: "TrainingOutcome") -> None:
    from unmask.net.hub import RUN_MODEL
    from unmask.report.training import draw_training
    from unmask.training.journal import read_journal

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    # Where every step of a record was skipped there is no loss to draw.
    records = [record for record in read_journal(folder) if record.get("loss", 0) is not None]
    draw_training(records, folder / "loss", folder.name)
    if outcome.ended != "done":
        of = "" if outcome.total is None else f" of {outcome.total}"
        say(f"stopped ({outcome.ended}) after {outcome.step}{of} steps; everything is saved.")
        say(_write_resume(folder))
        return
    loss = "" if outcome.loss is None else f", last loss {outcome.loss:.4f}"
    say(f"trained {outcome.step} steps{loss}")
    say(f"run: {folder}  curve: {folder / 'loss.png'}")
    prompt = [outcome.prompt] if outcome.prompt else []
    say(f"try it: {shlex.join(['unmask', 'sample', str(folder / RUN_MODEL), *prompt])}")


def _write_resume(folder: Path) -> str:
    return f"go on with: unmask train --resume {shlex.quote(str(folder))}"


def _describe_rest(folder: Path) -> str | None:
    """For a run that was stopped outside its loop, while it was loading or saving."""
    from unmask.net.hub import RECIPE

    return _write_resume(folder) if (folder / RECIPE).is_file() else None


def _show_plan(
    console: "Console",
    name: str | None,
    resume: Path | None,
    words: list[str],
    device: str,
    show_all: bool,
) -> None:
    from unmask.base.devices import resolve_device
    from unmask.net.hub import RECIPE
    from unmask.report.training import show_plan
    from unmask.training.plan import plan_training
    from unmask.training.recipes_io import format_changes, format_recipe, read_recipe

    recipe = read_recipe(name or "" if resume is None else resume / RECIPE, words)
    show_plan(console, plan_training(recipe, resolve_device(device)))
    if show_all:
        console.print(format_recipe(recipe), markup=False, highlight=False)
    else:
        console.print("settings other than the defaults; --all shows every one:")
        console.print(format_changes(recipe), markup=False, highlight=False)

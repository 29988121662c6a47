"""`unmask train`: any kind of model from a recipe, resumable."""

from pathlib import Path

import typer

SIGTERM_EXIT, SIGINT_EXIT = 143, 130


def train(
    words: list[str] = typer.Argument(
        None,
        metavar="RECIPE [KEY=VALUE …]",
        help="A shipped recipe or a YAML file, and single settings such as batch.rows=64.",
    ),
    out: Path | None = typer.Option(None, help="Folder of the run; runs/RECIPE by default."),
    resume: Path | None = typer.Option(None, help="Go on with the run in this folder."),
    allow_changes: bool = typer.Option(False, help="Resume although settings changed."),
    minutes: float | None = typer.Option(None, help="Save and stop after so many minutes."),
    device: str = typer.Option("auto", help="auto, cpu, cuda, cuda:N or mps."),
    dry_run: bool = typer.Option(False, help="Show what would be trained, and stop."),
) -> None:
    """Train a model; without RECIPE the shipped ones are listed."""
    from rich.console import Console

    from unmask.base.errors import UserError
    from unmask.training.cookbook import list_recipes, read_recipe
    from unmask.training.folder import reopen_run

    words, console = list(words or []), Console()
    name = words.pop(0) if words and "=" not in words[0] else None
    if resume is not None and (name is not None or out is not None):
        raise UserError("--resume takes recipe and folder from the run: leave RECIPE and --out out")
    if resume is not None:
        recipe, folder = reopen_run(resume, words, allow_changes), resume
    elif name is not None:
        recipe = read_recipe(name, words)
        folder = out or Path("runs") / Path(name).name.removesuffix(".yaml")
    elif words:
        raise UserError(f"settings were given without a recipe: name one of {list_recipes()}.")
    else:
        console.print("shipped recipes: " + ", ".join(list_recipes()), markup=False)
        return
    if dry_run:
        _show_plan(console, recipe, device)
        return
    raise typer.Exit(_run(console, recipe, folder, resume is not None, device, minutes))


def _run(console, recipe, folder: Path, resumed: bool, device: str, minutes: float | None) -> int:
    from contextlib import nullcontext

    from unmask.base.progress import watch
    from unmask.report.training_figures import draw_training
    from unmask.toy.examples import SOURCES
    from unmask.training.assembly import prepare_job
    from unmask.training.cookbook import write_recipe
    from unmask.training.folder import FILE, begin_run
    from unmask.training.journal import read_journal
    from unmask.training.loop import MODEL, Hooks, train
    from unmask.training.parallel import join
    from unmask.training.probe import make_recall, make_sampler
    from unmask.training.trainer import Trainer

    with join(device) as world:
        _prepare_device(recipe)
        job = prepare_job(recipe, world, SOURCES)
        if world.leads:
            begin_run(folder, recipe) if not resumed else write_recipe(recipe, folder / FILE)
        world.wait()
        trainer = Trainer(job)
        cadence, corpus = recipe.cadence, job.examples.corpus
        evaluate = None
        if corpus is not None and cadence.facts and recipe.kind in ("masked", "causal"):
            evaluate = make_recall(corpus, recipe)
        with watch(folder.name) if world.leads else nullcontext(_say_nothing) as tell:
            hooks = Hooks(evaluate, make_sampler(recipe, corpus), tell)
            outcome = train(trainer, folder, hooks, minutes)
        if not world.leads:
            return 0
    draw_training(read_journal(folder), folder / "loss", folder.name)
    steps = f"{outcome.step} of {outcome.total or 'as yet unknown'} steps"
    if outcome.ended != "done":
        console.print(f"stopped ({outcome.ended}) after {steps}; everything is saved.")
        console.print(f"go on with: unmask train --resume {folder}", markup=False, soft_wrap=True)
        return {"SIGTERM": SIGTERM_EXIT, "SIGINT": SIGINT_EXIT}.get(outcome.ended, 0)
    console.print(f"trained {outcome.step} steps, last loss {outcome.loss:.4f}")
    console.print(f"run: {folder}  curve: {folder / 'loss.png'}", markup=False, soft_wrap=True)
    prompt = corpus["train"][0].prompt if corpus is not None else ""
    console.print(
        f'try it: unmask sample {folder / MODEL} "{prompt}"', markup=False, soft_wrap=True
    )
    return 0


def _say_nothing(done: int, total: int | None, note: str) -> None:
    pass


def _prepare_device(recipe) -> None:
    """Ask for the same bits every time where the recipe wants them, before the device wakes up."""
    import os

    import torch

    if recipe.machine.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)


def _show_plan(console, recipe, device: str) -> None:
    from unmask.base.devices import resolve_device
    from unmask.report.training_tables import show_plan
    from unmask.toy.examples import SOURCES
    from unmask.training.cookbook import format_recipe
    from unmask.training.plan import plan_job

    plan = plan_job(recipe, resolve_device(device), SOURCES)
    show_plan(console, plan)
    console.print(format_recipe(recipe), markup=False, highlight=False)

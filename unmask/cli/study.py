"""`unmask study`: the main job."""

from pathlib import Path

import typer


def study(
    out: Path = typer.Option(Path("runs/study"), help="Folder for the artefacts."),
    facts: int = typer.Option(30, help="Facts in each group of the corpus."),
    seed: int = typer.Option(0, help="Seed of the corpus and the network."),
) -> None:
    """Run the study; for now it makes the reversal corpus and a tiny network and shows both."""
    from rich.console import Console

    from unmask.study import run_study

    run_study(out, Console(), facts, seed)

"""`unmask toy`: a language of 57 sentences under every process."""

from pathlib import Path

import typer


def toy(
    variants: str = typer.Option(
        "gaussian,uniform,hybrid,masked,causal", help="Which to train, separated by commas."
    ),
    steps: int | None = typer.Option(None, help="Training steps; by default each has its own."),
    samples: int = typer.Option(20_000, help="Samples to draw from each."),
    seed: int = typer.Option(0, help="Seed of the networks, the noise and the samples."),
    out: Path = typer.Option(Path("runs/toy"), help="Folder for toy.json."),
) -> None:
    """Train every kind of model on a toy language and tell how well each speaks it."""
    from rich.console import Console

    from unmask.toy.run import Settings, run_toy
    from unmask.toy.show import show_report

    names = [name.strip() for name in variants.split(",")]
    report = run_toy(names, Settings(steps, samples, seed), out)
    console = Console()
    show_report(console, report)
    console.print(f"all numbers: {out / 'toy.json'}", markup=False)

"""`unmask perplexity`: what a text costs a model."""

from pathlib import Path

import typer

from unmask.cli.measures import DEVICE, DTYPE, JSON


def perplexity(
    model: str = typer.Argument(..., metavar="MODEL", help="A model's name, folder or file."),
    file: Path = typer.Argument(..., metavar="FILE", help="A .txt or .jsonl file, also .xz."),
    limit: int | None = typer.Option(None, help="Characters to score; all by default."),
    context: int | None = typer.Option(None, help="Tokens of a window; the model's by default."),
    stride: int | None = typer.Option(None, help="Tokens windows move on by; half a window."),
    repeats: int = typer.Option(8, help="Independent draws of the noise, for the error."),
    seed: int = typer.Option(0, help="Seed of the noise."),
    dtype: str = DTYPE,
    device: str = DEVICE,
    as_json: bool = JSON,
) -> None:
    """Perplexity with its error: a bound for masked models, exact for causal ones."""
    import json
    from dataclasses import asdict

    from rich.console import Console

    from unmask.data.text import read_documents
    from unmask.evaluation.perplexity import PerplexitySettings, cut_documents, measure_perplexity
    from unmask.net.loading import load
    from unmask.report.perplexity_table import show_perplexity

    documents = cut_documents(list(read_documents([file])), limit)
    settings = PerplexitySettings(context, stride, repeats=repeats, seed=seed)
    found = measure_perplexity(load(model, device, dtype, quiet=True), documents, settings)
    if as_json:
        print(json.dumps({**asdict(found), **found.derived()}))
    else:
        show_perplexity(Console(), model, found)

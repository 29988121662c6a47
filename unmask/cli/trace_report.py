"""`unmask trace-report`: the page of some finished traces, with figures and tests."""

from pathlib import Path

import typer


def trace_report(
    runs: list[Path] = typer.Argument(..., metavar="RUN...", help="Folders of `unmask trace`."),
    out: Path = typer.Option(Path("runs/tracing.md"), help="The page; figures go beside it."),
    seed: int = typer.Option(0, help="Seed of the intervals and tests."),
) -> None:
    """Write what some traces say together, diffusion beside autoregressive, from their tables."""
    from rich.console import Console

    from unmask.report.tracing_page import write_page
    from unmask.tracing.together import combine

    tables = out.with_suffix("")
    combine(runs, tables, seed)
    write_page(runs, tables, out)
    Console().print(f"page: {out}", markup=False, highlight=False)

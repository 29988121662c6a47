"""`unmask report`: the page of a finished study, or of two beside each other."""

from pathlib import Path

import typer


def report(
    runs: list[Path] = typer.Argument(..., metavar="RUN [RUN]", help="Folders of `unmask study`."),
    out: Path | None = typer.Option(
        None, help="The page; by default page.html in the run, or runs/comparison.html for two."
    ),
) -> None:
    """Draw the page again from its tables, without a model; two runs are compared."""
    from rich.console import Console

    from unmask.base.errors import UserError
    from unmask.report.artefacts import PAGE, StudyFolder
    from unmask.study.redrawing import redraw

    if len(runs) > 2:
        raise UserError(f"{len(runs)} runs were given: a page holds one or two.")
    usual = runs[0] / PAGE if len(runs) == 1 else Path("runs/comparison.html")
    place = usual if out is None else out
    redraw([StudyFolder(run) for run in runs], place)
    Console().print(
        f"page: {place.resolve().as_uri()}", markup=False, highlight=False, soft_wrap=True
    )

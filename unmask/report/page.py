"""Pages of runs: one HTML file that needs nothing else, Markdown with pictures, or figures alone.

Everything is drawn from the tables of the runs; no model is loaded.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from unmask.base.config import check_arguments
from unmask.base.errors import UserError
from unmask.base.files import replace_file
from unmask.blocks.blocks import Figure, Section, Table
from unmask.measures.result import Result
from unmask.report.document import Document, read_document
from unmask.report.render_figures import draw_figure
from unmask.report.render_html import name_block, render_html
from unmask.report.render_markdown import render_markdown, write_csv

MOST_BYTES = 8_000_000
"""A page must pass as a mail attachment."""
COMPARISON = Path("runs") / "comparison.html"


@check_arguments()
def draw_report(
    runs: Sequence[str | Path | Result],
    out: str | Path | None = None,
    join: bool = False,
    title: str | None = None,
) -> Path:
    """Draw runs of any measures, studies with all their stages, or results, and say where.

    Args:
        runs: Run folders or what a measure returned. Those of one measure are pooled where that is
            possible, else shown one after the other.
        out: A .html file, a .md file (figures and long tables go into a folder of its name beside
            it) or a folder for figures alone; by default page.html in the run.
        join: Whether models of one name are one model, trained apart: runs of one measure with the
            same settings become one.
        title: The page's heading; by default what is drawn.
    """
    place = _choose_place(runs) if out is None else Path(out)
    check_place(place)
    document = read_document(runs, join)
    write_document(document if title is None else replace(document, title=title), place)
    return place


def check_place(place: Path) -> None:
    """Raise where no page can be drawn to a path of that name."""
    if place.suffix not in (".html", ".md", ""):
        raise UserError(f"{place} ends in {place.suffix}: expected .html, .md or a folder.")


def write_document(document: Document, place: Path) -> None:
    """Write a page to a .html file, a .md file, or its figures alone to a folder."""
    if place.suffix == ".html":
        _write_html(document, place)
    elif place.suffix == ".md":
        _write_markdown(document, place)
    else:
        _draw_figures(document, place)


def _choose_place(runs: Sequence[str | Path | Result]) -> Path:
    if len(runs) != 1:
        return COMPARISON
    (run,) = runs
    return (run.folder if isinstance(run, Result) else Path(run)) / "page.html"


def _write_html(document: Document, place: Path) -> None:
    text = render_html(document)
    size = len(text.encode())
    if size > MOST_BYTES:
        raise UserError(
            f"the page would have {size / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:.0f}: report "
            "fewer runs at once, or write Markdown."
        )
    with replace_file(place) as draft:
        draft.write_text(text, encoding="utf-8")


def _write_markdown(document: Document, place: Path) -> None:
    beside = place.with_suffix("")

    def draw(section: Section, figure: Figure) -> list[tuple[str, str]]:
        drawn = draw_figure(figure, beside, name_block(section, figure), is_paper=False)
        return [(words, f"{beside.name}/{file}") for words, file in drawn]

    def link(section: Section, table: Table) -> str:
        name = f"{name_block(section, table)}.csv"
        write_csv(table, beside / name)
        return f"{beside.name}/{name}"

    text = render_markdown(document, draw, link)
    with replace_file(place) as draft:
        draft.write_text(text, encoding="utf-8")


def _draw_figures(document: Document, folder: Path) -> None:
    drawn = [
        file
        for section in document.sections
        for block in section.walk()
        if isinstance(block, Figure)
        for file in draw_figure(block, folder, name_block(section, block))
    ]
    if not drawn:
        raise UserError("these runs have no figures: draw them as .html or .md.")

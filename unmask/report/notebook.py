"""`unmask.show`: models, trajectories, traces, lenses, edits and results as pictures in a notebook.

Each becomes a section of the page, drawn by the page's own renderers. In a cell it is a frame of
its own, so that neither styles nor scripts meet those of the notebook, and it holds all it needs:
it works offline, in an exported notebook and after other cells were cleared.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from unmask.base.config import check_arguments
from unmask.base.errors import UserError
from unmask.base.extras import require_extra
from unmask.base.files import replace_file
from unmask.blocks.blocks import Figure, Section
from unmask.editing.edit import Edit
from unmask.measures.result import Result
from unmask.net.model import Model
from unmask.report.document import Document
from unmask.report.pictures import (
    describe_edit,
    describe_grids,
    describe_lens,
    describe_model,
    describe_trajectory,
    write_states,
)
from unmask.report.render_html import read_template, render_html
from unmask.representation.lens import Lens
from unmask.sampling.trajectory import Trajectory
from unmask.tracing.grid import TraceGrid


@dataclass(frozen=True, repr=False)
class Picture:
    """What a notebook shows: interactive in a frame, or still as an image; elsewhere a text."""

    section: Section
    text: str
    is_still: bool = False

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str | None:
        return None if self.is_still else _frame(self._document)

    def _repr_png_(self) -> bytes | None:
        if not self.is_still:
            return None
        with TemporaryDirectory() as folder:
            return self.save(Path(folder) / "picture.png").read_bytes()

    def save(self, path: str | Path) -> Path:
        """Write it as a page (.html) or its first figure as an image (.png, .pdf)."""
        path = Path(path)
        if path.suffix == ".html":
            with replace_file(path) as draft:
                draft.write_text(render_html(self._document), "utf-8")
            return path
        if path.suffix not in (".png", ".pdf"):
            raise UserError(f"{path} ends in {path.suffix!r}: expected .html, .png or .pdf.")
        from unmask.report.render_figures import draw_figure

        figure = next((each for each in self.section.walk() if isinstance(each, Figure)), None)
        if figure is None:
            raise UserError(f"{self.section.title} has no figure: save it as .html.")
        with TemporaryDirectory() as folder:
            is_paper = path.suffix == ".pdf"
            ((_, name), *_) = draw_figure(figure, Path(folder), "figure", is_paper)
            with replace_file(path) as draft:
                draft.write_bytes((Path(folder) / name).with_suffix(path.suffix).read_bytes())
        return path

    @property
    def _document(self) -> Document:
        return Document(self.section.title, "", [], [self.section])


@check_arguments(leave_out=("thing",))
def show(thing: Any, is_still: bool = False) -> Picture:
    """A picture of a model, a trajectory, a trace, a logit lens, an edit or a measure's result.

    Notebooks call it by themselves for what stands last in a cell. Traces of several steps, a list
    of grids, are one picture with a slider.

    Args:
        thing: What to show.
        is_still: An image of the first figure instead, which every viewer of notebooks shows.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> unmask.show(unmask.sample(model, "We sat down", steps=2, length=6))  # doctest: +ELLIPSIS
    before step 1: We sat down ░ ░ ░
    ...
    """
    require_extra("study", "showing pictures", "jinja2", "plotly", "matplotlib")
    grids = [thing] if isinstance(thing, TraceGrid) else thing
    match thing:
        case Model():
            picture = Picture(describe_model(thing), repr(thing))
        case Edit():
            picture = Picture(describe_edit(thing), repr(thing))
        case Trajectory():
            picture = Picture(describe_trajectory(thing), write_states(thing))
        case Lens():
            picture = Picture(describe_lens(thing), repr(thing))
        case Result():
            picture = Picture(thing.section, repr(thing))
        case _ if _are_grids(grids):
            picture = Picture(describe_grids(grids), "\n".join(map(repr, grids)))
        case _:
            raise UserError(
                f"a {type(thing).__name__} was given to show: expected a model, a trajectory, a "
                "trace or several, a logit lens, an edit or the result of a measure."
            )
    return replace(picture, is_still=is_still)


def _are_grids(given: object) -> bool:
    is_list = isinstance(given, Sequence) and len(given) > 0
    return is_list and all(isinstance(each, TraceGrid) for each in given)


def _frame(document: Document) -> str:
    """A page without its head in a frame that is as high as it needs."""
    page = render_html(document, read_template("cell.js"), read_template("cell.css"))
    return (
        f'<iframe srcdoc="{html.escape(page)}" title="{html.escape(document.title)}" '
        'style="width: 100%; height: 420px; border: 0"></iframe>'
    )

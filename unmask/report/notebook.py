"""`unmask.show`: models, trajectories, traces, lenses, edits and results as pictures in a notebook.

Each becomes a section of the page, drawn by the page's own renderers. In a cell it is a frame of
its own, so that neither styles nor scripts meet those of the notebook. It works offline and in an
exported notebook: the first cell with a chart brings plotly along, and the charts of others take it
from there.
"""

import html
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

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
    describe_pattern,
    describe_trajectory,
    write_states,
)
from unmask.report.render_html import read_template, render_html
from unmask.representation.lens import Lens
from unmask.sampling.trajectory import Trajectory
from unmask.tracing.grid import TraceGrid

_carrier: str | None = None
"""The cell of this kernel that brought plotly along."""


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
def show(thing: Any, is_still: bool = False, words: Sequence[str] = ()) -> Picture:
    """A picture of a model, trajectory, trace, lens, attention pattern, edit or measure's result.

    Notebooks call it by themselves for what stands last in a cell. Traces of several steps, a list
    of grids, are one picture with a slider.

    Args:
        thing: What to show.
        is_still: An image of the first figure instead, which every viewer of notebooks shows.
        words: What stands at each position of a pattern of attention [H, L, L], as captured at
            `layers.*.attn_pattern`.

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
        case Tensor():
            check_pattern(thing, words)
            shape = " × ".join(map(str, thing.shape))
            picture = Picture(describe_pattern(thing, words), f"pattern of attention, {shape}")
        case _ if _are_grids(grids):
            picture = Picture(describe_grids(grids), "\n".join(map(repr, grids)))
        case _:
            raise UserError(
                f"a {type(thing).__name__} was given to show: expected a model, a trajectory, a "
                "trace or several, a logit lens, a pattern of attention, an edit or the result of "
                "a measure."
            )
    return replace(picture, is_still=is_still)


def check_pattern(pattern: Tensor, words: Sequence[str]) -> None:
    """Raise where a tensor is no pattern of one text, or the words are not its positions'."""
    sizes = tuple(pattern.shape)
    is_pattern = len(sizes) in (2, 3, 4) and sizes[-2] <= sizes[-1] and 0 not in sizes
    if not is_pattern or (len(sizes) == 4 and sizes[0] != 1):
        raise UserError(
            f"a tensor of shape {list(sizes)} was given to show: expected the attention of one "
            "text, [heads, length, length], such as pattern[0] of a batch."
        )
    if words and len(words) != sizes[-1]:
        raise UserError(
            f"{len(words)} words were given for {sizes[-1]} positions: give one for each."
        )


def _are_grids(given: object) -> bool:
    is_list = isinstance(given, Sequence) and len(given) > 0
    return is_list and all(isinstance(each, TraceGrid) for each in given)


def brings_library() -> bool:
    """Whether a chart that is shown now brings plotly along: those of the first cell of a notebook
    with charts do, whenever it runs, and all where a cell cannot read another's output."""
    global _carrier
    cell = find_cell()
    _carrier = _carrier or cell
    return cell is None or cell == _carrier


def find_cell() -> str | None:
    """The cell that runs, by its id or else its number; None outside of notebooks, and in Colab,
    which keeps the outputs of cells apart."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if not hasattr(shell, "get_parent") or "google.colab" in sys.modules:
        return None
    metadata = (shell.get_parent() or {}).get("metadata", {})
    return str(metadata.get("cellId") or shell.execution_count)


def _frame(document: Document) -> str:
    """A page without its head in a frame that is as high as it needs."""
    page = render_html(
        document, read_template("cell.js"), read_template("cell.css"), brings_library
    )
    return (
        f'<iframe srcdoc="{html.escape(page)}" title="{html.escape(document.title)}" '
        'style="width: 100%; height: 420px; border: 0"></iframe>'
    )

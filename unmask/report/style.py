"""How figures look: one palette that colour-blind readers can tell apart, one way to save."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.base.files import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#000000")
DIFFUSION, CAUSAL, CONTROL = PALETTE[0], PALETTE[1], "#888888"
EFFECTS = "PuOr"
"""Colours of effects with a sign, neutral at zero."""

_SETTINGS: dict[Any, Any] = {
    "figure.dpi": 150,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "image.cmap": "viridis",
    "pdf.fonttype": 42,  # text stays text
}


@contextmanager
def new_figure(width: float, height: float, rows: int = 1, columns: int = 1) -> Generator:
    """A figure of that size in inches and its axes [rows, columns]; nothing global changes."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.subplots(rows, columns, squeeze=False)


def save_figure(figure: "Figure", path: str | Path) -> None:
    """Write the figure as PNG and PDF beside each other; `path` is given without an ending."""
    # Laid out and framed once; left to itself each file would be, with a drawing for each.
    figure.draw_without_rendering()
    figure.set_layout_engine(None)
    frame = figure.get_tightbbox().padded(0.1)
    # Without the time of day, so that the same figure is the same file.
    for ending, told in (("png", {}), ("pdf", {"CreationDate": None})):
        with replace_file(Path(f"{path}.{ending}")) as draft:
            figure.savefig(draft, format=ending, bbox_inches=frame, metadata=told)

"""How figures look, on the page and on paper: colours, ranges of values, one way to save.

Colours have names in figures (`diffusion`, `causal`, `control`, `p0`, `p1`, …), so that a model
has the same one everywhere.
"""

import math
import warnings
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.base.files import replace_file
from unmask.blocks.blocks import DotPanel, Figure, LinePanel, MapPanel, Panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

# Okabe and Ito's palette, which colour-blind readers can tell apart: darker on a light ground,
# brighter on a dark one. The two nearest to others (a second orange, a second blue) come last.
COLOURS: dict[str, dict[str, str]] = {
    "light": dict(
        diffusion="#0072B2", causal="#C26A00", control="#767676", p0="#0072B2", p1="#C26A00",
        p2="#00795A", p3="#A8568A", p4="#8A7A00", p5="#4A4A4A", p6="#B34700", p7="#2B7FB0",
    ),
    "dark": dict(
        diffusion="#56B4E9", causal="#E69F00", control="#9a9a9a", p0="#56B4E9", p1="#E69F00",
        p2="#2fc79c", p3="#e39cc6", p4="#F0E442", p5="#d0d0d0", p6="#ff8a4a", p7="#9fd3f5",
    ),
}  # fmt: skip
# Effects with a sign: purple gives, orange takes away, the ground's own colour is nothing.
SCALES: dict[str, dict[str, Sequence[str]]] = {
    "light": {
        "signed": ("#9a4a00", "#eba55b", "#fbfaf7", "#a294c9", "#3d1a78"),
        "unsigned": ("#fbfaf7", "#6aa6c8", "#003a5d"),
    },
    "dark": {
        "signed": ("#ffb35c", "#a8682a", "#1c1f26", "#7a66b8", "#cdbcff"),
        "unsigned": ("#1c1f26", "#2f7fae", "#c4e7ff"),
    },
}
PAPER_SCALES = SCALES["light"]
CONFIDENCE = ("#8a5a9e", "#4a67a8", "#237575", "#2f772f", "#6f6800")
"""Colours of a token's confidence when it was written, a fifth each; as in the style sheet."""
NUM_COLOURS = 8
PALETTE = tuple(COLOURS["light"][f"p{i}"] for i in range(NUM_COLOURS))
DIFFUSION, CAUSAL, CONTROL = (COLOURS["light"][each] for each in ("diffusion", "causal", "control"))
MARGIN = 0.05
"""The share of an axis's range beside it, so that the end of an interval is seen to be its end."""

_SETTINGS: dict[Any, Any] = {
    "figure.dpi": 150,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # text stays text
}


def choose_colour(name: str) -> str:
    """The colour of that name on paper; numbers beyond the palette start again."""
    known = COLOURS["light"]
    return known[name] if name in known else known[f"p{int(name[1:]) % NUM_COLOURS}"]


def find_range(figure: Figure, views: Iterable[Sequence[Panel]]) -> tuple[float, float]:
    """The range that panels of a figure share: of values with a margin, of colours around 0."""
    if figure.limits is not None:
        low, high = figure.limits
    else:
        panels = (panel for view in views for panel in view)
        values = [v for each in panels for v in _list_values(each) if math.isfinite(v)] or [0.0]
        low, high = min(values), max(values)
    if figure.chart == "heatmap":
        most = max(abs(low), abs(high)) or 1.0
        return (-most, most) if figure.is_signed else (min(low, 0.0), high if high > 0 else most)
    reach = MARGIN * (high - low) or MARGIN * abs(high) or MARGIN
    return low - reach, high + reach


def _list_values(panel: Panel) -> Iterator[float]:
    match panel:
        case LinePanel(lines=lines):
            for line in lines:
                yield from (*line.y, *(line.low or ()), *(line.high or ()))
        case DotPanel(dots=dots):
            for dot in dots:
                yield from (dot.value.mean, dot.value.low, dot.value.high)
                if dot.null is not None:
                    yield from (dot.null.low, dot.null.high)
        case MapPanel(z=z, unscaled=unscaled):
            cells = ((i, j, value) for i, row in enumerate(z) for j, value in enumerate(row))
            yield from (x for i, j, x in cells if x is not None and (i, j) not in unscaled)


@contextmanager
def new_figure(
    width: float, height: float, rows: int = 1, columns: int = 1, **more: Any
) -> Generator:
    """A figure of that size in inches and its axes [rows, columns]; nothing global changes."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context(_SETTINGS):
        figure = Canvas(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.subplots(rows, columns, squeeze=False, **more)


def save_figure(figure: "Canvas", path: str | Path, is_paper: bool = True) -> None:
    """Write the figure as PNG, for a paper also as PDF; `path` is given without an ending."""
    with warnings.catch_warnings():
        # A sign that the font lacks is a box in the figure, not a reason to stop.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        # Laid out and framed once; left to itself each file would be, with a drawing for each.
        figure.draw_without_rendering()
        figure.set_layout_engine(None)
        frame = figure.get_tightbbox().padded(0.1)
        # Without the time of day, so that the same figure is the same file.
        endings = {"png": {}, "pdf": {"CreationDate": None}} if is_paper else {"png": {}}
        for ending, metadata in endings.items():
            with replace_file(Path(f"{path}.{ending}")) as draft:
                figure.savefig(draft, format=ending, bbox_inches=frame, metadata=metadata)
                if ending == "png":
                    _use_palette(draft)


def _use_palette(path: Path) -> None:
    """Write a picture with a palette of 256 colours: a third of the bytes, and no eye sees it."""
    from PIL import Image

    with Image.open(path) as image:
        drawn = image.convert("RGB").quantize(
            256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
    drawn.save(path, format="png", optimize=True)

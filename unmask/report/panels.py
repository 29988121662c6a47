"""Single panels of figures for papers, one function for each kind of chart."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.base.units import format_tick
from unmask.blocks.blocks import Dot, DotPanel, Figure, LinePanel, MapPanel, Panel, TextPanel
from unmask.report.style import CONFIDENCE, CONTROL, PAPER_SCALES, choose_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

WIDTHS = {"lines": 2.5, "dots": 3.0, "heatmap": 2.3, "unmasking": 6.4}
"""Inches of a panel."""
SIGNS_PER_INCH = 13.5
TEXT_SIGNS = int(WIDTHS["unmasking"] * 13.5)
"""Signs of fixed width in a line of a text that is un-masked."""
MOST_TICKS = 12
"""Values of a logarithmic axis that each have a tick; more are measured ones."""
MOST_SIGNS = 44
"""The longest label at the side."""
HEIGHT_SIGNS = 20
"""In a line of the label that stands upright beside a panel."""
_STYLES = {"solid": "-", "dash": "--", "dot": ":"}
_MARKERS = "osD^"


def measure_panel(panel: Panel | None) -> float:
    """The inches that a panel is high, without title and axis."""
    match panel:
        case LinePanel():
            return 1.6
        case DotPanel():
            return 0.15 + len(list_labels(panel)) * _room(panel)
        case MapPanel(y=y):
            return max(0.5, 0.155 * len(y))
        case TextPanel():
            return 0.36 * len(_wrap_pieces(panel))
    return 0.1


def _room(panel: DotPanel) -> float:
    """Inches for a label: a little more for every dot that shares its line."""
    sharing = [len(_list_groups([panel], label)) for label in list_labels(panel)]
    return max(0.2, 0.11 * max(sharing, default=0) + 0.06)


def _list_groups(panels: Iterable[Panel], label: str | None = None) -> list[str]:
    """The groups of dots, of all labels or of one."""
    dots = [dot for panel in panels if isinstance(panel, DotPanel) for dot in panel.dots]
    return list(dict.fromkeys(dot.group for dot in dots if label in (None, dot.label)))


def list_labels(panel: Panel | None) -> list[str]:
    """What stands at the left of a panel."""
    match panel:
        case DotPanel(dots=dots):
            return list(dict.fromkeys(dot.label for dot in dots))
        case MapPanel(y=y):
            return list(y)
    return []


@dataclass
class Painter:
    """Draws the panels of one picture; what its legend must explain is gathered on the way."""

    figure: Figure
    extent: tuple[float, float]
    """The range of values, or of colours, that all panels share."""
    inches: float
    """The width of a panel."""
    legend: dict[str, Any] = field(default_factory=dict)

    def draw(self, axis: "Axes", panel: Panel | None, is_first: bool) -> None:
        """Draw a panel; only the first in its row has its labels written at the left."""
        match panel:
            case LinePanel() if any(line.x for line in panel.lines):
                self._draw_lines(axis, panel, is_first)
            case DotPanel() if panel.dots:
                self._draw_dots(axis, panel, is_first)
            case MapPanel() if panel.x and panel.y:
                self._draw_map(axis, panel, is_first)
            case TextPanel():
                self._draw_text(axis, panel)
            case _:
                axis.set_axis_off()
        if axis.axison:
            axis.set_xlabel(plain(self.figure.xlabel))

    def _draw_lines(self, axis: "Axes", panel: LinePanel, is_first: bool) -> None:
        for line in panel.lines:
            colour, is_main = choose_colour(line.colour), line.dash == "solid"
            size, width = (3.5, 1.4) if is_main else (2, 1)
            (drawn,) = axis.plot(
                line.x, line.y, _STYLES[line.dash], color=colour, marker="o", ms=size, lw=width
            )
            self.legend.setdefault(line.name, drawn)
            if line.low is not None and line.high is not None:
                axis.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, lw=0)
        places = sorted({x for line in panel.lines for x in line.x})
        if self.figure.is_log2:
            axis.set_xscale("log", base=2)
            axis.minorticks_off()
            # Of many measured values powers of two are named instead.
            if len(places) > MOST_TICKS and places[0] > 0:
                first, last = np.ceil(np.log2(places[0])), np.floor(np.log2(places[-1]))
                places = [2.0**i for i in np.arange(first, last + 1)] or places[:1]
        if self.figure.is_log2 or len(places) <= 8:
            scaled = np.log2(places) if self.figure.is_log2 else np.array(places)
            axis.set_xticks(places, self._fit_ticks([format_tick(x) for x in places], scaled))
        elif all(float(x).is_integer() for x in places):
            axis.locator_params(axis="x", integer=True)
        axis.set_ylim(*self.extent)
        label = textwrap.fill(plain(self.figure.ylabel), HEIGHT_SIGNS)
        axis.set_ylabel(label if is_first else "")

    def _fit_ticks(self, names: list[str], places: np.ndarray) -> list[str]:
        """Names of ticks; those that would run into the one before are left empty."""
        scale = 0.8 * self.inches / max(places[-1] - places[0], 1e-9)
        shown, end = [], -np.inf
        for name, place in zip(names, places * scale, strict=True):
            half = 0.5 * (len(name) + 1) / SIGNS_PER_INCH
            shown.append(name if place - half >= end else "")
            end = place + half if shown[-1] else end
        return shown

    def _draw_dots(self, axis: "Axes", panel: DotPanel, is_first: bool) -> None:
        labels, room = list_labels(panel), _room(panel)
        # A group has one marker in all pictures of the figure.
        order = _list_groups(each for view in self.figure.views.values() for each in view)

        def place(dot: Dot) -> float:
            """The line of its label, each group a little below the one before."""
            groups = _list_groups([panel], dot.label)
            below = groups.index(dot.group) - (len(groups) - 1) / 2
            return labels.index(dot.label) + 0.11 / room * below

        for dot in panel.dots:
            colour, y = choose_colour(dot.colour), place(dot)
            if dot.null is not None:
                ends = [dot.null.low, dot.null.high]
                (drawn,) = axis.plot(ends, [y, y], color=CONTROL, alpha=0.4, lw=6)
                drawn.set_solid_capstyle("butt")
                self.legend.setdefault("by chance", drawn)
            axis.plot([dot.value.low, dot.value.high], [y, y], color=colour, lw=1.3)
            mark = _MARKERS[order.index(dot.group) % len(_MARKERS)]
            face = "none" if dot.colour == "control" else colour
            (drawn,) = axis.plot([dot.value.mean], [y], mark, color=colour, mfc=face, ms=4.5)
            if dot.group:
                self.legend.setdefault(dot.group, drawn)
        if self.extent[0] < 0 < self.extent[1]:
            axis.axvline(0.0, color="black", lw=0.6)
        axis.set_xlim(*self.extent)
        axis.set_ylim(len(labels) - 0.4, -0.6)
        _name_rows(axis, labels, is_first, 8)

    def _draw_map(self, axis: "Axes", panel: MapPanel, is_first: bool) -> None:
        from matplotlib.patches import Rectangle

        rows = [[np.nan if value is None else value for value in row] for row in panel.z]
        low, high = self.extent
        values = np.array(rows, dtype=float)
        axis.imshow(values, cmap=make_scale(self.figure), vmin=low, vmax=high, aspect="auto")
        axis.grid(visible=False)
        for row, name in enumerate(panel.y if self.figure.is_paired else ()):
            if name in panel.x:
                corner = (panel.x.index(name) - 0.5, row - 0.5)
                axis.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="black", lw=0.8))
        # Words in cells, light on dark ones.
        for row, words in enumerate(panel.words):
            for column, word in enumerate(words):
                colour = "white" if values[row, column] > (low + high) / 2 else "black"
                text = plain(cut(word.strip(), 10))
                axis.text(column, row, text, ha="center", va="center", fontsize=5, color=colour)
        # Labels below that do not fit beside each other are turned, and some of many left out.
        names = [cut(label, 14) for label in panel.x]
        longest = max(map(len, names))
        is_turned = longest > 3 and len(names) * (0.07 * longest + 0.1) > WIDTHS["heatmap"]
        fitting = int(WIDTHS["heatmap"] / (0.15 if is_turned or longest < 3 else 0.3))
        kept = range(0, len(names), -(-len(names) // fitting))
        turn: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
        shown = [plain(names[i]) for i in kept]
        axis.set_xticks(kept, shown, fontsize=7, **(turn if is_turned else {}))
        _name_rows(axis, panel.y, is_first, 7)

    def _draw_text(self, axis: "Axes", panel: TextPanel) -> None:
        """The text with the step that wrote each token below it, coloured by its confidence."""
        from matplotlib.patches import Patch

        lines = _wrap_pieces(panel)
        axis.set_axis_off()
        axis.set_xlim(0, TEXT_SIGNS)
        axis.set_ylim(len(lines), 0)
        for number, line in enumerate(lines):
            for at, i in line:
                step, text = panel.steps[i], _show_piece(panel.pieces[i])
                look: dict[str, Any] = {"color": "black", "weight": "bold"}
                if step:
                    look = {"color": _choose_confidence(panel.confidence[i])}
                    below = at + len(text) - len(text.lstrip())
                    axis.text(below, number + 0.75, str(step), fontsize=6, va="center", **look)
                look |= {"family": "monospace", "fontsize": 8.8, "va": "center"}
                axis.text(at, number + 0.3, plain(text), **look)
        for i, colour in enumerate(CONFIDENCE):
            label = f"{'confidence ' if i == 0 else ''}{i / 5:.1f} to {(i + 1) / 5:.1f}"
            self.legend.setdefault(label, Patch(color=colour))


def _name_rows(axis: "Axes", labels: Sequence[str], is_first: bool, size: int) -> None:
    shown = [plain(cut(label, MOST_SIGNS)) if is_first else "" for label in labels]
    axis.set_yticks(range(len(labels)), shown, fontsize=size)
    axis.tick_params(axis="y", length=0)


def make_scale(figure: Figure) -> "Colormap":
    """The colours of a heatmap."""
    from matplotlib.colors import LinearSegmentedColormap

    name = "signed" if figure.is_signed else "unsigned"
    scale = LinearSegmentedColormap.from_list(name, PAPER_SCALES[name])
    return scale.with_extremes(bad="#ece9e2")  # where nothing was measured


def _choose_confidence(confidence: float) -> str:
    number = int(np.nan_to_num(confidence) * len(CONFIDENCE))
    return CONFIDENCE[min(len(CONFIDENCE) - 1, max(0, number))]


def _show_piece(piece: str) -> str:
    return piece.replace("\n", "⏎")


def _wrap_pieces(panel: TextPanel) -> list[list[tuple[int, int]]]:
    """Lines of (where a token begins, its number), no wider than the panel."""
    lines: list[list[tuple[int, int]]] = [[]]
    at = 0
    for i, (piece, step) in enumerate(zip(panel.pieces, panel.steps, strict=True)):
        # A token is as wide as the number of its step needs, too.
        width = max(len(_show_piece(piece)), len(str(step)) if step else 0)
        if at + width > TEXT_SIGNS and lines[-1]:
            lines.append([])
            at = 0
        lines[-1].append((at, i))
        at += width
    return lines


def cut(text: str, most: int) -> str:
    """The text, shortened where it is longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def wrap(text: str, inches: float) -> str:
    """A title in lines of at most that width."""
    lines = (textwrap.wrap(line, int(inches * SIGNS_PER_INCH)) for line in text.split("\n"))
    return plain("\n".join(part for line in lines for part in line))


def plain(text: str) -> str:
    """Text that matplotlib shows as it is: a dollar would begin a formula."""
    return text.replace("$", r"\$")

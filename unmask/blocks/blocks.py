"""Blocks: a result as data, before any medium. A renderer knows these classes and nothing else.

A table holds values, not texts; a figure holds the numbers it is drawn from. So the page, the
Markdown file, the terminal and the paper's figures cannot say different things.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

from unmask.evaluation.statistics import Interval

Outcome = Literal["above", "below", "alike", "unsettled", "too few", "not measured"]
"""What may be said of an estimate: above or below what it is held against, alike, or neither."""


def is_clear(outcome: Outcome) -> bool:
    """Whether an estimate lies beyond what it is held against."""
    return outcome in ("above", "below")


@dataclass(frozen=True)
class Text:
    """A paragraph; `code` stands between backticks."""

    text: str


@dataclass(frozen=True)
class Finding:
    """A sentence that says a result, with the outcome it rests on and what that counts."""

    text: str
    outcome: Outcome
    counted: str = "facts"
    ways: Sequence[str] = ()
    """The ways of asking that it is told for, where a reader can choose; none: for all."""
    is_further: bool = False
    """Told only where its way of asking is chosen: not in media without a choice."""
    brief: str = ""
    """The result in a line of its own, where the sentence is longer."""

    @property
    def is_clear(self) -> bool:
        return is_clear(self.outcome)


@dataclass(frozen=True)
class Notice:
    """A sentence in the place of something that cannot be shown."""

    text: str


@dataclass(frozen=True)
class Column:
    """How the values of a column are written."""

    label: str
    digits: int = 2
    """Decimals of a number that is not whole."""
    is_percent: bool = False
    has_sign: bool = False
    is_short: bool = False
    """Three significant digits instead of decimals, for values of any size."""
    limits: tuple[float, float] = (-math.inf, math.inf)
    """What is possible: no end of an interval is shown beyond it."""


CellValue = str | int | float | Interval | None
RowRole = Literal["plain", "control", "published", "strong"]


@dataclass(frozen=True)
class Row:
    """The values of a row, and what it is: a control, a published number, a clear result."""

    values: Sequence[CellValue]
    role: RowRole = "plain"


@dataclass(frozen=True)
class Table:
    """A table of values, the rows that matter first; `most` of them are shown, the rest linked."""

    name: str
    """Unique within a section; the file of its rows is called so."""
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    most: int = 12


@dataclass(frozen=True)
class Control:
    """A choice that a reader makes in a figure."""

    label: str
    options: Sequence[str]
    is_slider: bool = False


Dash = Literal["solid", "dash", "dot"]


@dataclass(frozen=True)
class Line:
    """A line of a panel, with a band where `low` and `high` are given."""

    name: str
    colour: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    dash: Dash = "solid"


@dataclass(frozen=True)
class LinePanel:
    """Lines in one pair of axes."""

    title: str
    lines: Sequence[Line]


@dataclass(frozen=True)
class Dot:
    """A value with its interval, on the line of its label, in the colour of its group."""

    label: str
    group: str
    colour: str
    value: Interval
    note: str = ""
    null: Interval | None = None
    """Where the value would lie by chance."""


@dataclass(frozen=True)
class DotPanel:
    """Dots one below the other."""

    title: str
    dots: Sequence[Dot]


@dataclass(frozen=True)
class MapPanel:
    """A heatmap: `z[row][column]`, None where nothing was measured."""

    title: str
    x: Sequence[str]
    y: Sequence[str]
    z: Sequence[Sequence[float | None]]
    low: Sequence[Sequence[float | None]] | None = None
    high: Sequence[Sequence[float | None]] | None = None
    notes: Sequence[str] = ()
    """One for each row."""
    words: Sequence[Sequence[str]] = ()
    """What is written in each cell."""
    unscaled: Sequence[tuple[int, int]] = ()
    """Cells (row, column) that the scale of colours leaves out: they are high by construction."""


@dataclass(frozen=True)
class TextPanel:
    """A text that is written: its tokens, the step that wrote each (0: given), its confidence."""

    title: str
    pieces: Sequence[str]
    steps: Sequence[int]
    confidence: Sequence[float]
    expected: str
    is_hit: bool
    way: str = ""
    """The way of asking, where a view shows several: panels of one way stand in one row."""
    guesses: Sequence[Sequence[Sequence[tuple[str, float]]]] = ()
    """What the model would have said in each token's place before each step up to the one that
    wrote it: the likeliest pieces with their probabilities."""
    is_causal: bool = False
    """Written from left to right: what is not written yet is not there, instead of masked."""


Panel = LinePanel | DotPanel | MapPanel | TextPanel
Chart = Literal["lines", "dots", "heatmap", "unmasking"]
Choice = tuple[int, ...]
"""The number of the option chosen in each control."""


@dataclass(frozen=True)
class Figure:
    """Panels side by side, for each choice that a reader can make."""

    name: str
    """Unique within a section; files are called so."""
    title: str
    caption: str
    chart: Chart
    views: Mapping[Choice, Sequence[Panel]]
    controls: Sequence[Control] = ()
    xlabel: str = ""
    ylabel: str = ""
    """What the lines or the colours measure."""
    is_signed: bool = False
    is_log2: bool = False
    is_paired: bool = False
    """A heatmap's rows and columns of the same name belong together: their cells are outlined."""
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Fold:
    """Blocks that are folded away where the medium can: method, settings, long tables."""

    title: str
    blocks: "Sequence[ReportBlock]"


@dataclass(frozen=True)
class Stored:
    """A result that comes with the package, beside one that is not settled; marked as such."""

    title: str
    note: str
    """What the stored result is of, and the command that made it."""
    blocks: "Sequence[ReportBlock]"


ReportBlock = Text | Finding | Notice | Table | Figure | Fold | Stored


@dataclass(frozen=True)
class FirstScreen:
    """For the first screen of a page: a figure, or the sentence that a page begins with.

    In other media a figure comes first in its section, and the sentence is left to its findings.
    """

    content: Figure | str


@dataclass(frozen=True)
class Number:
    """A number that stands on top of a page; only clear results become one."""

    label: str
    value: str
    note: str


@dataclass(frozen=True)
class Section:
    """A heading with what belongs under it; the first block is what a colleague would say."""

    name: str
    title: str
    blocks: Sequence[ReportBlock] = field(default_factory=list)
    numbers: Sequence[Number] = ()
    opening: Sequence[Figure] = ()
    """What stands on the first screen of a page."""
    headline: str = ""
    """The sentence that a page about one run begins with; only a clear result has one."""

    @property
    def findings(self) -> list[Finding]:
        """The sentences that every medium has."""
        return [
            block for block in self.blocks if isinstance(block, Finding) and not block.is_further
        ]

    def walk(self) -> Iterable[ReportBlock]:
        """Every block, those of the opening and those that are folded away included."""
        return _walk([*self.opening, *self.blocks])


def _walk(blocks: Sequence[ReportBlock]) -> Iterable[ReportBlock]:
    for block in blocks:
        yield block
        if isinstance(block, Fold | Stored):
            yield from _walk(block.blocks)


def make_views(
    choices: Sequence[Sequence[Any]], fill: Callable[..., Sequence[Panel]]
) -> dict[Choice, Sequence[Panel]]:
    """Panels for every combination of the choices; one that `fill` gives none for is left out."""
    views = {}
    for numbers in product(*(range(len(options)) for options in choices)):
        values = (options[i] for options, i in zip(choices, numbers, strict=True))
        if panels := fill(*values):
            views[numbers] = panels
    return views


ROUNDING = 1e-15
"""Smaller numbers, of a difference of two equal ones, are written as 0."""


def format_value(value: CellValue, column: Column) -> str:
    """A value as every medium shows it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, Interval):
        mean = format_value(value.mean, column)
        if math.isnan(value.low) or math.isnan(value.high) or mean == "–":
            return mean
        least, most = column.limits
        ends = (max(value.low, least), min(value.high, most))
        return f"{mean} [{', '.join(format_value(end, column) for end in ends)}]"
    scaled = 100 * value if column.is_percent else value
    sign = "+" if column.has_sign else ""
    if column.is_short:
        scaled = 0 if abs(scaled) < ROUNDING else scaled
        rounded = float(f"{scaled:.3g}")
        digits = ",.0f" if 1e3 <= abs(rounded) < 1e6 else ".3g"
        return f"{rounded:{sign}{digits}}".replace("-", "−")
    if isinstance(value, int) and not column.is_percent:
        return f"{scaled:{sign},}".replace("-", "−")
    # Adding 0 turns a rounded -0 into 0.
    return f"{round(scaled, column.digits) + 0.0:{sign}.{column.digits}f}".replace("-", "−")

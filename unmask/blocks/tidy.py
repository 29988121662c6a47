"""Tidy rows become tables and figures: which column is the x axis, the line, the panel, the choice.

Wherever a column is asked for, a function of a row will do as well.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unmask.base.units import format_tick
from unmask.blocks.blocks import (
    Chart,
    Column,
    Control,
    Dot,
    DotPanel,
    Figure,
    Line,
    LinePanel,
    MapPanel,
    Panel,
    Row,
    RowRole,
    Table,
    format_value,
    make_views,
)
from unmask.blocks.labels import name_split, order_splits
from unmask.evaluation.statistics import Interval

Record = Mapping[str, Any]
Records = Sequence[Record]
Get = str | Callable[[Record], Any]
"""A column, or a function of a row."""
ENDS = ("mean", "low", "high")


@dataclass(frozen=True)
class Choose:
    """What a reader chooses in a figure: the label, the column, and how its ids are shown."""

    label: str
    column: str
    name: Callable[[Any], str] = str
    arrange: Callable[[Sequence[Any]], Sequence[Any]] = list
    is_slider: bool = False


ASKED = Choose("asked", "split", name_split, order_splits)


def select(rows: Iterable[Record], **values: Any) -> list[Record]:
    """The rows that have these values in these columns."""
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def distinct(rows: Iterable[Record], *names: str) -> list[Any]:
    """The different values of a column, or tuples of several, in the order they are met."""
    if len(names) == 1:
        return list(dict.fromkeys(row[names[0]] for row in rows))
    return list(dict.fromkeys(tuple(row[name] for name in names) for row in rows))


def group_by(rows: Iterable[Record], *names: Get) -> dict[Any, list[Record]]:
    """Rows by the value of a column (or a tuple of several), in the order they are met."""
    groups: dict[Any, list[Record]] = {}
    for row in rows:
        key = tuple(get_value(row, name) for name in names)
        groups.setdefault(key[0] if len(key) == 1 else key, []).append(row)
    return groups


def to_interval(row: Record, columns: Sequence[str] = ENDS) -> Interval:
    """The interval that a row holds in three columns."""
    return Interval(*(row[name] for name in columns))


def name_asked(row: Record) -> str:
    """The way of asking that a row is about, in words."""
    return name_split(row["split"])


def say(
    value: Interval | Record, unit: str = "", digits: int = 2, has_sign: bool = False, **shown: Any
) -> str:
    """A value, or a row's, in a sentence: "0.34 nats [0.12, 0.56]"; the units % and points are
    shares × 100. `shown` are further fields of its `Column`."""
    value = value if isinstance(value, Interval) else to_interval(value)
    is_percent = unit in ("%", "points")
    column = Column(
        "", 0 if is_percent else digits, is_percent, has_sign or unit == "points", **shown
    )
    mean, bracket, ends = format_value(value, column).partition(" [")
    return f"{mean}{f' {unit}' if unit else ''}{bracket}{ends}"


def say_difference(row: Record, unit: str, above: str, below: str) -> str:
    """A row's difference by the word for its sign, "0.34 nats [0.12, 0.56] later"."""
    value, word = to_interval(row), above
    if value.mean < 0:
        value, word = Interval(-value.mean, -value.high, -value.low), below
    return f"{say(value, unit)} {word}"


def say_share(share: float) -> str:
    """A share in a sentence: "34 %"."""
    return f"{format_value(share, Column('', 0, is_percent=True))} %"


def tabulate(
    name: str,
    caption: str,
    rows: Iterable[Record],
    columns: Mapping[str | Column, Get],
    role: Callable[[Record], RowRole] = lambda row: "plain",
    most: int = 12,
) -> Table:
    """A table with a row for each row: `columns` say what stands under each heading."""
    heads = [each if isinstance(each, Column) else Column(each) for each in columns]
    lines = [Row([get_value(row, get) for get in columns.values()], role(row)) for row in rows]
    return Table(name, caption, heads, lines, most)


def tabulate_means(
    name: str,
    caption: str,
    rows: Records,
    keys: Mapping[str, Get],
    metrics: Mapping[str, Column],
    role: Callable[[Record], RowRole] = lambda row: "plain",
    most: int = 12,
) -> Table:
    """A table with a row for each group and a column for each of its metrics.

    `keys` say what names a group, under which heading; every row has a `metric` and its interval.
    """
    lines = []
    for key, members in group_by(rows, *keys.values()).items():
        cells = {row["metric"]: to_interval(row) for row in members}
        shown = key if isinstance(key, tuple) else (key,)
        values = [*shown, *(cells.get(metric) for metric in metrics)]
        lines.append(Row(values, role(members[0])))
    return Table(name, caption, [*map(Column, keys), *metrics.values()], lines, most)


def draw_lines(
    rows: Records,
    *about: str,
    x: Get,
    line: Get,
    colour: Get,
    dash: Get = lambda row: "solid",
    ends: Sequence[str] = ENDS,
    scale: float = 1.0,
    **shown: Any,
) -> Figure:
    """Lines with bands, a line for each value of `line`.

    `about` is the figure's name, title and caption; `shown` what else `_make_figure` takes.
    """

    def make_line(label: str, points: list[Record]) -> Line:
        points.sort(key=lambda row: get_value(row, x))
        y, low, high = ([scale * row[end] for row in points] for end in ends)
        place = [get_value(row, x) for row in points]
        first = points[0]
        has_band = any(end != y[i] for i, end in enumerate(low))
        band = (low, high) if has_band else (None, None)
        return Line(label, get_value(first, colour), place, y, *band, dash=get_value(first, dash))

    def fill(title: str, points: Records) -> Panel:
        return LinePanel(title, [make_line(*each) for each in group_by(points, line).items()])

    return _make_figure(rows, about, "lines", fill, **shown)


def draw_dots(
    rows: Records,
    *about: str,
    label: Get,
    group: Get,
    colour: Get,
    ends: Sequence[str] = ENDS,
    note: Get = lambda row: "",
    null: Sequence[str] | None = None,
    **shown: Any,
) -> Figure:
    """Values with intervals one below the other; `null` are the columns of where chance lies."""

    def make_dot(row: Record) -> Dot:
        chance = to_interval(row, null) if null is not None else None
        names = (get_value(row, label), get_value(row, group), get_value(row, colour))
        return Dot(*names, to_interval(row, ends), get_value(row, note), chance)

    def fill(title: str, points: Records) -> Panel:
        return DotPanel(title, [make_dot(row) for row in points])

    return _make_figure(rows, about, "dots", fill, **shown)


def draw_map(
    rows: Records,
    *about: str,
    x: Get,
    y: Get,
    ends: Sequence[str] = ENDS,
    note: Get = lambda row: "",
    is_scaled: Callable[[Record], bool] = lambda row: True,
    **shown: Any,
) -> Figure:
    """Heatmaps: `ends` name the value, and its interval where there is one.

    Columns and rows stand in the order in which the rows of a view have them, the same in all its
    panels; a note belongs to a row of the heatmap. Rows that are not `is_scaled` do not stretch the
    scale of colours.
    """

    def fill(title: str, points: Records) -> Panel:
        columns, lines = list(group_by(points, x)), group_by(points, y)
        cells = {(get_value(row, y), get_value(row, x)): row for row in points}

        def spread(end: str) -> list[list[float | None]]:
            return [
                [cells[line, at][end] if (line, at) in cells else None for at in columns]
                for line in lines
            ]

        notes = [get_value(members[0], note) for members in lines.values()]
        places = [(i, j) for i, line in enumerate(lines) for j, at in enumerate(columns)
                  if (line, at) in cells and not is_scaled(cells[line, at])]  # fmt: skip
        names = list(map(str, columns)), list(map(str, lines))
        return MapPanel(title, *names, *map(spread, ends), notes=notes, unscaled=places)

    return _make_figure(rows, about, "heatmap", fill, **shown)


def _make_figure(
    rows: Records,
    about: Sequence[str],
    chart: Chart,
    fill: Callable[[str, Records], Panel],
    panel: Get = "model",
    choose: Sequence[Choose] = (),
    **more: Any,
) -> Figure:
    """The figure of that name, title and caption: panels for each combination of choices that has
    rows."""
    # A choice of one is none; the way of asking is always shown.
    choose = [each for each in choose if each is ASKED or len(distinct(rows, each.column)) > 1]
    options = [list(each.arrange(distinct(rows, each.column))) for each in choose]
    chosen = group_by(rows, lambda row: tuple(row[each.column] for each in choose))

    def fill_view(*values: Any) -> list[Panel]:
        panels = group_by(chosen.get(values, ()), panel)
        return [fill(str(title), points) for title, points in panels.items()]

    controls = [
        Control(each.label, [each.name(option) for option in own], each.is_slider)
        for each, own in zip(choose, options, strict=True)
    ]
    name, title, caption = about
    views = make_views(options, fill_view)
    return Figure(name, title, caption, chart, views, controls, **more)


_CHARTS: dict[Chart, str] = {
    "lines": "Line charts",
    "dots": "Dots with intervals",
    "heatmap": "Heatmaps",
    "unmasking": "Texts that appear token by token",
}


def describe_figure(figure: Figure) -> str:
    """A figure in words, for those who do not see it: what it shows, and its highest value."""
    choices = [f"{each.label} ({len(each.options)})" for each in figure.controls]
    chosen = f", to be chosen by {' and '.join(choices)}" if choices else ""
    titles = [panel.title for panel in next(iter(figure.views.values()), ())]
    panels = [panel for view in figure.views.values() for panel in view]
    return _describe(figure, titles, chosen, panels)


def describe_picture(figure: Figure, drawn: Sequence[tuple[str, Panel]], shown: str) -> str:
    """One picture of a figure in words: of the panels that it draws, each with its heading."""
    titles = dict.fromkeys(panel.title for _, panel in drawn)
    headed = [replace(panel, title=", ".join(head.splitlines())) for head, panel in drawn]
    return _describe(figure, list(titles), f"; {shown}" if shown else "", headed)


def _describe(figure: Figure, titles: Sequence[str], chosen: str, panels: Sequence[Panel]) -> str:
    measured = f" of {figure.ylabel or figure.xlabel}" if figure.xlabel else ""
    by = f" by {figure.xlabel}" if figure.xlabel and figure.ylabel else ""
    named = [title for title in titles if title]
    apart = f", side by side: {', '.join(named)}" if len(named) > 1 else ""
    top = max((each for panel in panels for each in _list_values(panel)), default=None)
    highest = f" Highest: {top[1]}, {top[0]:.3g}." if top is not None else ""
    return f"{_CHARTS[figure.chart]}{measured}{by}{apart}{chosen}.{highest}"


def _list_values(panel: Panel) -> Iterable[tuple[float, str]]:
    """Every value of a panel, with where it stands."""
    match panel:
        case LinePanel(title, lines):
            for line in lines:
                pairs = zip(line.x, line.y, strict=True)
                head = ", ".join(filter(None, (title, line.name)))
                yield from ((y, f"{head}, at {format_tick(x)}") for x, y in pairs if y == y)
        case DotPanel(title, dots):
            for dot in dots:
                if dot.value.mean == dot.value.mean:
                    yield dot.value.mean, ", ".join(filter(None, (title, dot.group, dot.label)))
        case MapPanel(title, x, y, z, unscaled=unscaled):
            for i, row in enumerate(z):
                for j, value in enumerate(row):
                    if value is not None and value == value and (i, j) not in unscaled:
                        yield value, f"{title}, {y[i]}, {x[j]}"


def get_value(row: Record, get: Get) -> Any:
    """What a row holds in a column, or what a function makes of it."""
    return row[get] if isinstance(get, str) else get(row)

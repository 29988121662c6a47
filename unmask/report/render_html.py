"""A document as one HTML file that needs nothing else; scripts draw its figures from their data."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from unmask import __version__
from unmask.blocks.blocks import Choice, Figure, Section, Table, format_value
from unmask.blocks.labels import OUTCOMES
from unmask.report.style import COLOURS, NUM_COLOURS, SCALES, find_range

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from unmask.report.document import Document

DIGITS = 5
"""Significant digits of the numbers in a figure."""
CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
"""What stands between single backticks."""


def render_html(document: "Document") -> str:
    """The page, with its style, its scripts and the data of its figures inside."""
    import plotly.offline

    figures = {
        name_block(section, block): _pack(block)
        for section in document.sections
        for block in section.walk()
        if isinstance(block, Figure)
    }
    looks = {"colours": COLOURS, "scales": SCALES, "count": NUM_COLOURS}
    page = _make_environment().get_template("page.html")
    return page.render(
        document=document,
        format_value=format_value,
        outcomes=OUTCOMES,
        name_block=name_block,
        version=__version__,
        style=_read("page.css"),
        scripts=[plotly.offline.get_plotlyjs(), _read("charts.js"), _read("page.js")],
        data=_embed({"figures": figures, "looks": looks}),
    )


def name_block(section: Section, block: Figure | Table) -> str:
    """A name that is unique on a page: of an element, or of files."""
    name = block.name if block.name == section.name else f"{section.name}-{block.name}"
    return slug(name)


def slug(text: str) -> str:
    """The text as a part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


@cache
def _make_environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("unmask.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(kind=lambda block: type(block).__name__, code=mark_code)
    return environment


def mark_code(text: str) -> "Markup":
    """The text as HTML, with what stands between backticks as code."""
    from markupsafe import Markup, escape

    pieces = CODE.split(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if i % 2 else escape(piece)
        for i, piece in enumerate(pieces)
    )


def _pack(figure: Figure) -> dict[str, Any]:
    """What the scripts need of a figure; a view's key joins the numbers of its options."""
    return {
        "chart": figure.chart,
        "title": figure.title,
        "alt": figure.alt,
        "xlabel": figure.xlabel,
        "ylabel": figure.ylabel,
        "is_signed": figure.is_signed,
        "is_log2": figure.is_log2,
        "controls": [asdict(control) for control in figure.controls],
        "views": {
            "|".join(map(str, choice)): [asdict(panel) for panel in panels]
            for choice, panels in figure.views.items()
        },
        "ranges": _find_ranges(figure),
    }


def _find_ranges(figure: Figure) -> dict[str, tuple[float, float]]:
    """The range of values for each option of the first control: within it views compare."""
    groups: dict[Choice, list[Sequence[Any]]] = {}
    for choice, panels in figure.views.items():
        groups.setdefault(choice[:1], []).append(panels)
    return {"".join(map(str, first)): find_range(figure, views) for first, views in groups.items()}


def _embed(value: Any) -> str:
    """JSON that can stand inside a script element."""
    text = json.dumps(_shorten(value), ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _shorten(value: Any) -> Any:
    """Numbers with a few significant digits, null where one is not finite."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _shorten(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shorten(each) for each in value]
    return value


def _read(name: str) -> str:
    return files("unmask.report").joinpath("templates", name).read_text("utf-8")

"""A document as one HTML file that needs nothing else; scripts draw its figures from their data."""

import base64
import gzip
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from unmask import __version__
from unmask.blocks.blocks import (
    Choice,
    DotPanel,
    Figure,
    Finding,
    Fold,
    MapPanel,
    Notice,
    ReportBlock,
    Section,
    Stored,
    Table,
    format_value,
)
from unmask.blocks.labels import TERMS, count, say_outcome
from unmask.blocks.tidy import describe_figure
from unmask.report.style import COLOURS, NUM_COLOURS, SCALES, find_range

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from unmask.report.document import Document

SCRIPTS = ("charts.js", "player.js", "page.js")
LOOKS = {"colours": COLOURS, "scales": SCALES, "count": NUM_COLOURS}
DIGITS = 5
"""Significant digits of the numbers in a figure."""
CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
"""What stands between single backticks."""


def render_html(
    document: "Document",
    script: str = "",
    style: str = "",
    brings: Callable[[], bool] = lambda: True,
) -> str:
    """The page, with its style, its scripts and the data of its figures inside.

    A cell of a notebook adds a script and styles of its own; asked where there are charts, it
    `brings` plotly along, or takes it from another cell.
    """
    figures = {
        name_block(section, block): _pack(block)
        for section in document.sections
        for block in section.walk()
        if isinstance(block, Figure)
    }
    has_charts = any(each["chart"] != "unmasking" for each in figures.values())
    page = _make_environment().get_template("page.html")
    return page.render(
        document=document,
        format_value=format_value,
        say_outcome=say_outcome,
        name_block=name_block,
        name_blocks=name_blocks,
        part_blocks=part_blocks,
        list_terms=list_terms,
        version=__version__,
        style=read_template("page.css") + style,
        library=pack_library() if has_charts and brings() else "",
        scripts=[*map(read_template, SCRIPTS), script],
        data=embed_json({"figures": figures, "looks": LOOKS, "terms": TERMS}),
    )


@cache
def pack_library() -> str:
    """plotly, which is most of a page, compressed; the page unpacks it."""
    import plotly.offline

    source = plotly.offline.get_plotlyjs().encode()
    return base64.b64encode(gzip.compress(source, 9, mtime=0)).decode()


def part_blocks(
    blocks: Sequence[ReportBlock],
) -> tuple[Sequence[ReportBlock], Sequence[ReportBlock]]:
    """What a reader sees of a section at once, and what is folded away.

    Seen are blocks up to the first figure, or where there is none the first table, with the
    sentences and stored results that follow it.
    """
    kinds = Figure if any(isinstance(block, Figure) for block in blocks) else Table
    at = next((i for i, block in enumerate(blocks, 1) if isinstance(block, kinds)), len(blocks))
    while at < len(blocks) and isinstance(blocks[at], Finding | Notice | Stored):
        at += 1
    return blocks[:at], blocks[at:]


def name_blocks(blocks: Sequence[ReportBlock]) -> str:
    """What there is among blocks, in a few words: figures by title, how many tables, folds."""
    parts = [block.title for block in blocks if isinstance(block, Figure)]
    tables = sum(isinstance(block, Table) for block in blocks)
    parts += [count(tables, "table")] if tables else []
    parts += [block.title for block in blocks if isinstance(block, Fold)]
    parts = [part if i == 0 else part[:1].lower() + part[1:] for i, part in enumerate(parts)]
    return ", ".join(parts) or "notes"


def list_terms(figure: Figure) -> list[tuple[str, str]]:
    """Words at the side of a figure that need a word of explanation, each with it."""
    panels = [panel for view in figure.views.values() for panel in view]
    words = [word for panel in panels if isinstance(panel, MapPanel) for word in panel.y]
    words += [dot.label for panel in panels if isinstance(panel, DotPanel) for dot in panel.dots]
    return [(term, note) for term, note in TERMS.items() if term in set(words)]


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
    environment.filters.update(
        kind=lambda block: type(block).__name__, code=mark_code, describe=describe_figure
    )
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
        "alt": describe_figure(figure),
        "xlabel": figure.xlabel,
        "ylabel": figure.ylabel,
        "is_signed": figure.is_signed,
        "is_log2": figure.is_log2,
        "is_paired": figure.is_paired,
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


def embed_json(value: Any) -> str:
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


def read_template(name: str) -> str:
    """One of the files that pages are made of."""
    return files("unmask.report").joinpath("templates", name).read_text("utf-8")

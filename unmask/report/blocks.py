"""What a page is made of: words, tables, and figures that are drawn in the reader's browser."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unmask.base.errors import UserError

DIGITS = 5
"""Significant digits of the numbers in a figure."""


@dataclass(frozen=True)
class Words:
    """A paragraph."""

    text: str
    kind: str = "words"


@dataclass(frozen=True)
class Missing:
    """What stands in the place of something that cannot be shown: a sentence."""

    text: str
    kind: str = "missing"


@dataclass(frozen=True)
class Grid:
    """A table of texts."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    kind: str = "grid"


@dataclass(frozen=True)
class Figure:
    """A figure: what it shows in words, and the data that the page's script draws it from."""

    name: str
    """Unique on a page; the downloaded file is called so."""
    title: str
    alt: str
    caption: str
    chart: str
    """`lines`, `dots`, `heatmap` or `unmasking`."""
    data: Mapping[str, Any]
    kind: str = "figure"


Block = Words | Missing | Grid | Figure


def make_blocks(makers: Iterable[Callable[[], Block]], advice: str) -> list[Block]:
    """The blocks; what cannot be made is a sentence in its place, and the rest is there."""
    blocks: list[Block] = []
    for make in makers:
        try:
            blocks.append(make())
        except UserError as error:
            blocks.append(Missing(f"{error}{advice}"))
    return blocks


@dataclass(frozen=True)
class Section:
    """A heading with what belongs under it."""

    name: str
    title: str
    blocks: Sequence[Block] = field(default_factory=list)


def shorten(value: Any) -> Any:
    """Numbers with a few significant digits and no NaN, in lists and mappings, too."""
    if isinstance(value, float):
        return None if value != value else float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: shorten(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [shorten(one) for one in value]
    return value


def format_interval(mean: float, low: float, high: float, scale: float = 1, digits: int = 3) -> str:
    """A mean with its interval; -0 is 0."""
    texts = [
        f"{round(scale * x, digits) + 0.0:.{digits}f}".replace("-", "−") for x in (mean, low, high)
    ]
    if low != low or high != high:
        return texts[0]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]"

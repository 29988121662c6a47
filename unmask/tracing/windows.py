"""Windows of layers around a cell, and what cells of different layers share."""

from collections.abc import Iterable
from dataclasses import dataclass

from unmask.base.errors import UserError

Window = tuple[int, int]
"""Layers [a, b)."""


MOST_WINDOW = 10
"""Layers of MLP and attention outputs that ROME restores together."""


def default_window(layers: int) -> int:
    """How many layers are restored together unless told: half of them, at least 1, at most 10."""
    return min(MOST_WINDOW, max(1, layers // 2))


def choose_window(window: int | None, layers: int) -> int:
    """The window asked for, checked, or the default one of a network of that many layers."""
    if window is None:
        return default_window(layers)
    if not isinstance(window, int) or window < 1:
        raise UserError(
            f"a window of {window} layers was asked for: expected a whole number of at least 1."
        )
    return window


def window_of(layer: int, width: int, layers: int) -> Window:
    """[layer - width // 2, layer + ceil(width / 2)), clipped to the network, as ROME has it."""
    return max(0, layer - width // 2), min(layers, layer - (-width // 2))


@dataclass(frozen=True)
class Trunk:
    """Windows that begin at the same layer: one run serves all of them, each leaves at its end."""

    start: int
    stops: tuple[int, ...]
    """Ends of the windows, ascending and distinct."""

    @property
    def end(self) -> int:
        return self.stops[-1]


def find_trunks(windows: Iterable[Window]) -> list[Trunk]:
    """The distinct windows, grouped by where they begin."""
    stops: dict[int, set[int]] = {}
    for start, stop in windows:
        stops.setdefault(start, set()).add(stop)
    return [Trunk(start, tuple(sorted(ends))) for start, ends in sorted(stops.items())]

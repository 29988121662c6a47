"""Windows of layers around a cell, and what cells of different layers share."""

from collections.abc import Iterable
from dataclasses import dataclass

Window = tuple[int, int]
"""Layers [a, b)."""


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

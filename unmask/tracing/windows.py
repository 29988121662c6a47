"""Windows of layers around a cell, and the runs that cells of different layers share."""

from collections.abc import Iterable
from dataclasses import dataclass

from unmask.net.config import NetConfig

Window = tuple[int, int]
"""Layers [a, b)."""
PROJECTED = ("attn_q", "attn_k", "attn_v")
"""Parts that act by attention, on other positions as well."""
MOST_WINDOW = 10
"""Layers of MLP and attention outputs that ROME restores together."""


def default_window(layers: int) -> int:
    """How many layers are restored together by default: half of them, at least 1, at most 10."""
    return min(MOST_WINDOW, max(1, layers // 2))


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


@dataclass(frozen=True)
class PartPlan:
    """One part of a trace: which runs fill which layers of its grid."""

    part: str
    windows: tuple[Window, ...]
    """The layers that are restored for each column of the grid."""
    frozen: str | None = None
    """"mlp" or "attn": what that part adds at the patched positions is kept in the layers of a
    window above its first."""
    is_severed: bool = False
    """True: it is kept as in the base run, not as in the source."""
    heads: int = 0
    """Heads that are restored one by one; 0: the part is restored whole."""

    @property
    def trunks(self) -> list[Trunk]:
        return find_trunks(self.windows)

    def columns_of(self, window: Window) -> list[int]:
        """Columns of the grid that a window fills: windows clipped to the network may be equal."""
        return [column for column, each in enumerate(self.windows) if each == window]


def plan_part(config: NetConfig, part: str, window: int, severed: str | None = None) -> PartPlan:
    """What has to be run for a part; one such as `mlp@3` has a window of its own."""
    part, _, width = part.partition("@")
    window = int(width or window)
    layers = range(config.layers)
    if part == "embed":
        return PartPlan(part, ((-1, 0),))
    if severed is not None:
        # Every later addition of the severed part stays as in the base run.
        return PartPlan(part, tuple((layer, config.layers) for layer in layers), severed, True)
    is_output = part in ("mlp", "attn")
    windows = tuple(window_of(layer, window if is_output else 1, config.layers) for layer in layers)
    heads = config.heads if part == "attn_z" else 0
    return PartPlan(part, windows, part if is_output else None, heads=heads)

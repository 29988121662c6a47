"""Readings: one network read as a causal model or as a diffusion model, with the same weights."""

import copy

from unmask.base.errors import UserError, suggest
from unmask.base.files import path_exists
from unmask.net.config import NetConfig
from unmask.net.graphs import Graphs
from unmask.net.taps import Taps
from unmask.net.transformer import Transformer

CAUSAL, DIFFUSION = "causal", "diffusion"
READINGS = (CAUSAL, DIFFUSION)
"""What a name may end on, after a colon: how its network is read."""


def split_reading(name: str) -> tuple[str, str | None]:
    """A model's name without its reading, and the reading, such as "runs/joint:causal" has one."""
    place, colon, reading = name.rpartition(":")
    if not (place and colon and reading in READINGS) or path_exists(name):
        return name, None
    return place, reading


def check_reading(reading: str) -> None:
    """Raise for what is no reading."""
    if reading not in READINGS:
        raise UserError(f"the reading {reading!r:.60} is unknown: {suggest(reading, READINGS)}")


def share_network(net: Transformer, config: NetConfig) -> Transformer:
    """A network of other attention that has the very modules of `net`, not copies of them.

    What is attached to the sites of one is not attached to the other.
    """
    shared = copy.copy(net)
    shared.config, shared.taps, shared.graphs = config, Taps(config.layers), Graphs()
    return shared


def open_at(net: Transformer, begin: int) -> Transformer:
    """The network with its open block at the same place in all rows: its weights and sites."""
    shared, block = copy.copy(net), net.config.block
    assert block is not None
    shared.open_at, shared.graphs = (begin, begin + block), Graphs()
    return shared


def open_causally(net: Transformer) -> Transformer:
    """The network as one that sees what is before each position, with its weights shared."""
    return share_network(net, net.config.made_causal())

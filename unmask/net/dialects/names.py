"""Names of tensors, as tables from ours to theirs; the tensor maps follow from them."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise

from torch import Tensor

from unmask.net.config import NetConfig
from unmask.net.counts import make_shapes
from unmask.net.dialects.dialect import TensorMap

NameTable = Mapping[str, str | tuple[str, str, str]]
"""Their names by ours, of modules or of single tensors; three where they keep the rows of
`attn.qkv` apart."""
Turn = Callable[..., Tensor]
"""A tensor laid out otherwise; the network's settings are given as `config`."""


@dataclass(frozen=True)
class Names:
    """What a checkpoint calls the tensors of a network."""

    layer: str
    """What the names of a layer begin with, {i} standing for its number."""
    parts: NameTable
    """Names inside of a layer; {e} stands for the number of an expert."""
    ends: NameTable
    """Names outside of layers."""
    turns: Mapping[str, tuple[Turn, Turn]] = field(default_factory=dict)
    """By our tensor inside of a layer: how theirs, laid out otherwise, becomes it, and back."""

    def map_tensors(self, config: NetConfig) -> Iterator[TensorMap]:
        """The maps of all tensors of a network that have a name here."""
        queries, keys = config.heads * config.head_dim, config.kv * config.head_dim
        ends = (0, queries, queries + keys, queries + 2 * keys)
        for ours in list_parameters(config):
            inside = re.fullmatch(r"layers\.(\d+)\.(.+)", ours)
            theirs, turns = _look_up(self.ends, ours), ()
            if inside and not theirs:
                i, part = inside.groups()
                theirs = [self.layer.format(i=i) + name for name in _look_up(self.parts, part)]
                turns = tuple(partial(turn, config=config) for turn in self.turns.get(part, ()))
            if len(theirs) == 3:
                for name, rows in zip(theirs, pairwise(ends), strict=True):
                    yield TensorMap(name, ours, rows)
            elif theirs and "{e}" in theirs[0]:
                for e in range(config.experts or 0):
                    yield TensorMap(theirs[0].format(e=e), ours, (e, e + 1), _stack, _unstack)
            elif theirs:
                yield TensorMap(theirs[0], ours, None, *turns)


def _look_up(table: NameTable, ours: str) -> list[str]:
    """Their names of one of our tensors, which may be named by its module."""
    module, _, kind = ours.rpartition(".")
    named, ending = (table[ours], "") if ours in table else (table.get(module, ()), f".{kind}")
    return [name + ending for name in ((named,) if isinstance(named, str) else named)]


@cache
def list_parameters(config: NetConfig) -> tuple[str, ...]:
    """The names of all our tensors; a tied head is listed once, as the embedding."""
    return tuple(name for name, _ in make_shapes(config).named_parameters())


def _stack(tensor: Tensor) -> Tensor:
    return tensor[None]


def _unstack(tensor: Tensor) -> Tensor:
    return tensor[0]

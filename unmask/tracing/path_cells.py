"""Which paths are followed: roles that send and read, in bands of layers, and single heads."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from unmask.tracing.knockout import find_rows
from unmask.tracing.paths import EVERYTHING
from unmask.tracing.question import Question
from unmask.tracing.tokens import group_factors

EVERY_WAY = "every way"
"""The receiver that stands for everything that reads the sender."""
PathCell = tuple[str, int, str, int, int, int]
"""Sender, the layer its state is sent after, receiver, its first and last layer, its head or -1."""


@dataclass(frozen=True)
class Bands:
    """Bands of layers, and the layer just below each, from which states are sent."""

    edges: tuple[int, ...]

    @classmethod
    def divide(cls, layers: int, number: int) -> "Bands":
        number = min(number, layers)
        return cls(tuple(i * layers // number for i in range(number + 1)))

    @property
    def sent(self) -> list[int]:
        return [edge - 1 for edge in self.edges[:-1]]

    def list_above(self, sent: int) -> list[tuple[int, int]]:
        """First and last layer of each band above, and of all of them together."""
        edges = [edge for edge in self.edges if edge > sent]
        bands = [(first, end - 1) for first, end in pairwise(edges)]
        return [*bands, (edges[0], edges[-1] - 1)] if len(bands) > 1 else bands


def list_asked_roles(question: Question) -> set[str]:
    """The roles that have positions in some state of the answer."""
    answer = tuple(question.answer)
    rows = [find_rows(each, answer) for group in group_factors(question, None) for each in group]
    return {name for own in rows for name, is_there in own.items() if bool(is_there.any())}


def list_path_cells(
    heads: int, bands: Bands, senders: Sequence[str], receivers: Sequence[str], has_heads: bool
) -> dict[tuple[str, int], list[PathCell]]:
    """The cells of each sender and layer."""
    cells = {}
    for sender in senders:
        for sent in bands.sent:
            above = bands.list_above(sent)
            own = [(sender, sent, EVERY_WAY, *above[-1], -1)]
            own += [(sender, sent, to, *band, -1) for to in receivers for band in above]
            if has_heads and sender == "subject" and "answer" in receivers:
                first, last = above[0]
                layers = range(first, last + 1)
                own += [
                    (sender, sent, "answer", at, at, head) for at in layers for head in range(heads)
                ]
            cells[sender, sent] = own
    return cells


def list_readers(cell: PathCell) -> list[Any]:
    """What reads the change in a cell, as `patch_paths` takes it."""
    _, _, to, first, last, head = cell
    if to == EVERY_WAY:
        return [EVERYTHING]
    end = ("attn",) if head < 0 else ("attn_z", head)
    return [(to, layer, *end) for layer in range(first, last + 1)]

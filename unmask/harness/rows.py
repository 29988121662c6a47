"""Rows that are run for many requests, each once, and what is read in them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

_FEW = 64
"""Rows of one length that are a batch of their own; fewer are padded to a longer one."""


@dataclass
class RowTable:
    """Rows to run, each once, and the tokens whose log-probability is read in them."""

    tokens: list[np.ndarray] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    """Where the continuation begins: guidance hides what stands before it."""
    known: dict[tuple[int, bytes], int] = field(default_factory=dict)
    entries: list[np.ndarray] = field(default_factory=list)
    """Arrays [n, 4] of row, position, token and the number that its log p is added to."""
    sums: int = 0

    def add(self, row: np.ndarray, start: int, at: np.ndarray, wanted: np.ndarray) -> int:
        """Add a row and what is read in it; the number of the sum of its log-probabilities."""
        number = self.known.setdefault((start, row.tobytes()), len(self.known)) if len(at) else -1
        if number == len(self.tokens):
            self.tokens.append(row)
            self.starts.append(start)
        entries = np.empty((len(at), 4), dtype=np.int64)
        entries[:, 0], entries[:, 1], entries[:, 2], entries[:, 3] = number, at, wanted, self.sums
        self.entries.append(entries)
        self.sums += 1
        return self.sums - 1


@dataclass(frozen=True)
class Reading:
    """By sum: log p of the wanted tokens. By entry, in the order of adding: the likeliest token."""

    sums: np.ndarray
    likeliest: np.ndarray
    confidence: np.ndarray
    bounds: np.ndarray
    """Where the entries of each sum begin and end."""

    def look(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The likeliest token at each position that a sum was read at, and its log p."""
        part = slice(self.bounds[number], self.bounds[number + 1])
        return self.likeliest[part], self.confidence[part]


def group_lengths(lengths: Sequence[int]) -> Iterator[range]:
    """Rows of one length together, without padding; with others only where they are few."""
    start = 0
    for i in range(1, len(lengths) + 1):
        is_last = i == len(lengths)
        if is_last or (lengths[i] != lengths[i - 1] and i - start >= _FEW):
            yield range(start, i)
            start = i

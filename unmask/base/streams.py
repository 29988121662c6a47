"""Random numbers row by row: what a row draws does not depend on the batch it is in.

Counter-based: the n-th number of a row is a hash of the row's key and n (SplitMix64, Steele et al.
2014), computed for all rows at once, and the same to the bit on every device.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.seeds import derive_seed

_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


class RowStreams:
    """One stream of random numbers for each row of a batch; every draw moves all of them on.

    `at` gives a purpose numbers of its own. With a `pace` the streams move on by multiples of it,
    so that rows drawn for canvases of different lengths, none longer than the pace, stay in step.
    """

    def __init__(self, keys: Int[Tensor, "B"], pace: int = 1, purpose: tuple[object, ...] = ()):
        self.keys, self.pace, self.purpose = keys, pace, purpose
        self.drawn = 0

    @classmethod
    def make(
        cls,
        seed: int,
        rows: Sequence[object] | int,
        device: torch.device | str = "cpu",
        pace: int = 1,
    ) -> "RowStreams":
        """Streams for the named rows (or rows 0, 1, …) under a seed."""
        names = range(rows) if isinstance(rows, int) else rows
        keys = [derive_seed(seed, "row", name) for name in names]
        return cls(torch.tensor(keys, dtype=torch.long, device=device), pace)

    @property
    def rows(self) -> int:
        return len(self.keys)

    def at(self, *purpose: object) -> "RowStreams":
        """Streams of these rows for one purpose, from their start, whatever was drawn before.

        `at(block, step, "order")` is `at(block, step).at("order")`.
        """
        return RowStreams(self.keys, self.pace, (*self.purpose, *purpose))

    def pick(self, rows: Int[Tensor, "n"]) -> "RowStreams":
        """The streams of some rows, from their start."""
        return RowStreams(self.keys[rows], self.pace, self.purpose)

    def uniform(self, *shape: int) -> Float[Tensor, "B *shape"]:
        """Numbers strictly between 0 and 1, in float64."""
        count = math.prod(shape)
        counter = torch.arange(self.drawn + 1, self.drawn + count + 1, device=self.keys.device)
        self.drawn += -(-count // self.pace) * self.pace
        # Every SplitMix64 stream is a stretch of one sequence of 2**64 numbers, and a key is where
        # it starts; a purpose starts at a place of its own, as far from the others as rows are.
        keys = self.keys + derive_seed(0, *self.purpose) if self.purpose else self.keys
        bits = _mix(keys[:, None] + counter * _GAMMA)
        # The upper 52 bits and a half: float64 holds it exactly, and neither end is ever drawn.
        return ((_shift(bits, 12).double() + 0.5) * 2.0**-52).view(self.rows, *shape)

    def normal(self, *shape: int) -> Float[Tensor, "B *shape"]:
        """Standard normal numbers, in float64."""
        return torch.special.ndtri(self.uniform(*shape))

    def gumbel(self, *shape: int) -> Float[Tensor, "B *shape"]:
        """Standard Gumbel numbers, in float64: float32 would cut off their tail."""
        return -torch.log(-torch.log(self.uniform(*shape)))

    def below(self, limit: int, *shape: int) -> Int[Tensor, "B *shape"]:
        """Whole numbers from 0 up to, not including, `limit`."""
        return (self.uniform(*shape) * limit).long().clamp(max=limit - 1)


def _shift(bits: Tensor, places: int) -> Tensor:
    """A shift to the right that fills with zeros, which torch has for signed numbers only."""
    return (bits >> places) & ((1 << (64 - places)) - 1)


def _mix(bits: Tensor) -> Tensor:
    bits = (bits ^ _shift(bits, 30)) * _MIX_1
    bits = (bits ^ _shift(bits, 27)) * _MIX_2
    return bits ^ _shift(bits, 31)

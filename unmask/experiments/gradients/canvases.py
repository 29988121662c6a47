"""Every canvas of a small language, and every proposal that a step may draw on it.

A canvas is a row of positions, each a token or a mask. Its code reads the positions as digits, the
first one highest, the mask being the digit after the tokens. An event is a canvas together with a
proposal: a token for each mask, of which a step commits some. All of it is laid out once as arrays,
and laws of samplers are sums over them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Lattice:
    """The canvases of an answer of `length` positions over so many tokens, after one prompt.

    Rows of a policy are its canvases by code, then the canvases without a written token under every
    way to hide tokens of the prompt but none: some surrogates read them, no sampler does.
    """

    tokens: int
    length: int
    prompt: int = 2

    @property
    def mask(self) -> int:
        return self.tokens

    @property
    def num_canvases(self) -> int:
        return (self.tokens + 1) ** self.length

    @property
    def num_rows(self) -> int:
        return self.num_canvases + 2**self.prompt - 1

    @property
    def start(self) -> int:
        """The code of the canvas that is all masks."""
        return self.num_canvases - 1

    @cached_property
    def canvases(self) -> Int[Tensor, "C L"]:
        """All canvases by their codes."""
        return _count_up(self.tokens + 1, self.length)

    @cached_property
    def texts(self) -> Int[Tensor, "X L"]:
        """All texts: canvases without masks."""
        return _count_up(self.tokens, self.length)

    @cached_property
    def text_codes(self) -> Int[Tensor, "X"]:
        return self.encode(self.texts)

    @cached_property
    def hides(self) -> Bool[Tensor, "H L"]:
        """All sets of positions that may be hidden."""
        return _count_up(2, self.length).bool()

    @cached_property
    def hidden(self) -> Int[Tensor, "X H"]:
        """The canvas of each text with each set of its positions hidden."""
        return self.encode(torch.where(self.hides, self.mask, self.texts[:, None]))

    @cached_property
    def hidden_prompts(self) -> Bool[Tensor, "Q P"]:
        """All ways to hide tokens of the prompt, none of them first."""
        return _count_up(2, self.prompt).bool()

    @cached_property
    def prompt_rows(self) -> Int[Tensor, "Q"]:
        """The row of each of them, under an answer that is all masks."""
        return self.start + torch.arange(2**self.prompt)

    def encode(self, canvases: Int[Tensor, "*n L"]) -> Int[Tensor, "*n"]:
        """The codes of canvases."""
        powers = (self.tokens + 1) ** torch.arange(self.length - 1, -1, -1)
        return (canvases * powers).sum(-1)


@dataclass(frozen=True)
class Events:
    """Every proposal on every canvas, and where each choice of `each` positions leads."""

    canvas: Int[Tensor, "E"]
    """The code of the canvas."""
    masked: Bool[Tensor, "E L"]
    """Where it has masks."""
    drawn: Int[Tensor, "E L"]
    """What is proposed there; elsewhere what stands there."""
    chosen: Bool[Tensor, "S L"]
    """Which positions a step commits, in every way that it can."""
    next: Int[Tensor, "E S"]
    """The code of the canvas it leaves."""
    fits: Bool[Tensor, "E S"]
    """Whether all of these positions are masks."""

    @classmethod
    def lay_out(cls, lattice: Lattice, each: int) -> "Events":
        """The events of a lattice when a step commits `each` tokens."""
        digits = _count_up(2 * lattice.tokens, lattice.length)
        digits = digits[(digits >= lattice.tokens).any(-1)]
        masked, drawn = digits >= lattice.tokens, digits % lattice.tokens
        canvas = torch.where(masked, lattice.mask, drawn)
        chosen = torch.zeros(0, lattice.length, dtype=torch.bool)
        for places in combinations(range(lattice.length), each):
            row = torch.zeros(1, lattice.length, dtype=torch.bool)
            row[0, list(places)] = True
            chosen = torch.cat((chosen, row))
        after = torch.where(chosen & masked[:, None], drawn[:, None], canvas[:, None])
        fits = (masked[:, None] | ~chosen).all(-1)
        codes = lattice.encode(canvas), lattice.encode(after)
        return cls(codes[0], masked, drawn, chosen, codes[1], fits)

    def levels(self, each: int) -> Sequence[Int[Tensor, "n"]]:
        """The events by how many masks are left, fewest first, where a whole step is."""
        count = self.masked.sum(-1)
        return [(count == left).nonzero()[:, 0] for left in range(each, count.max() + 1, each)]


def sum_weights(
    lattice: Lattice,
    rows: Int[Tensor, "*n X"],
    tokens: Int[Tensor, "*n X L"],
    weights: Float[Tensor, "N X L"],
) -> Float[Tensor, "N R L V"]:
    """Weights of log-probabilities of tokens, summed by row, position and token."""
    place = (rows[..., None] * lattice.length + torch.arange(lattice.length)) * lattice.tokens
    place = (place + tokens.clamp(max=lattice.tokens - 1)).expand(weights.shape).flatten(1)
    size = lattice.num_rows * lattice.length * lattice.tokens
    summed = weights.new_zeros(len(weights), size).scatter_add(1, place, weights.flatten(1))
    return summed.view(-1, lattice.num_rows, lattice.length, lattice.tokens)


def pull_back(
    log_p: Float[Tensor, "*n R L V"], weights: Float[Tensor, "*n R L V"]
) -> Float[Tensor, "*n R L V"]:
    """The gradient in the logits of a sum of weighted log-probabilities."""
    return weights - log_p.exp() * weights.sum(-1, keepdim=True)


def _count_up(base: int, length: int) -> Int[Tensor, "n L"]:
    """All rows of digits, the first one highest."""
    grids = torch.meshgrid([torch.arange(base)] * length, indexing="ij")
    return torch.stack(grids, dim=-1).reshape(-1, length)

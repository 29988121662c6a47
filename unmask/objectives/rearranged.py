"""Rows as other orders of writing need them: a suffix hidden, a masked copy before, any order.

They separate what attention sees from what is predicted: the same rows, the same network, another
order in which tokens are written. Each function makes what the network reads; where it predicts
what is in the returned `Rearranged`.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.seeds import derive_seed
from unmask.base.streams import RowStreams
from unmask.net.transformer import Transformer
from unmask.objectives.batch import Batch
from unmask.objectives.targets import Targets


@dataclass(frozen=True)
class Rearranged:
    """What the network reads, and what it predicts where."""

    tokens: Int[Tensor, "B N"]
    targets: Targets
    positions: Int[Tensor, "B N"] | None = None
    """Positions of the tokens, where they do not stand in their order."""


def hide_suffix(
    batch: Batch, may: Bool[Tensor, "B L"], t: Float[Tensor, "B"], mask_id: int, shift: bool = False
) -> Rearranged:
    """Everything from a cut on is masked, and the token at the cut alone is predicted.

    The cut is one of the row's positions that may be predicted, evenly so if t is uniform: a term
    of the chain rule from left to right, under a network that sees both ways. With `shift` it is
    predicted at the position before, as in `hidden_targets`.
    """
    count = may.sum(-1)
    number = (t * count).long().clamp(max=(count - 1).clamp(min=0))
    # 1. The position with that number among those that may be predicted.
    is_cut = may & (may.cumsum(-1) - 1 == number[:, None])
    row, cut = is_cut.nonzero(as_tuple=True)
    # 2. Rows without such a position have no target and stay whole.
    masked = is_cut.cumsum(-1) > 0
    tokens = torch.where(masked, mask_id, batch.tokens)
    read_at = (cut - 1).clamp(min=0) if shift else cut
    at = row * tokens.shape[1] + read_at
    return Rearranged(tokens, Targets.weigh_alike(at, batch.tokens[row, cut]))


def copy_masked(
    batch: Batch,
    may: Bool[Tensor, "B L"],
    hidden: Bool[Tensor, "B L"],
    mask_id: int,
    separator: int,
) -> Rearranged:
    """A masked copy, a separator, then the row itself, whose tokens are predicted one by one.

    Masked fine-tuning of a decoder (Pan et al. 2025, arXiv 2510.09885): causal attention, but what
    stands later in the text may have been read in the copy.
    """
    rows, length = batch.tokens.shape
    before = torch.where(hidden, mask_id, batch.tokens)
    between = torch.full((rows, 1), separator, device=before.device)
    # Column L is the separator, L + 1 the row's first token: position i is predicted at L + i.
    row, position = may.nonzero(as_tuple=True)
    at = row * (2 * length + 1) + length + position
    targets = Targets.weigh_alike(at, batch.tokens[row, position])
    return Rearranged(torch.cat((before, between, batch.tokens), dim=1), targets)


def draw_order(
    batch: Batch, may: Bool[Tensor, "B L"], uniform: Float[Tensor, "B L"]
) -> Int[Tensor, "B L"]:
    """Positions in the order of writing: prompts first, what may be predicted at random, the rest.

    `uniform` are numbers between 0 and 1.
    """
    positions, length = batch.positions, batch.tokens.shape[1]
    given = torch.where(batch.is_prompt(), positions - length, positions + 1)
    return torch.where(may, uniform, given.double()).argsort(-1)


def interleave(
    batch: Batch, may: Bool[Tensor, "B L"], order: Int[Tensor, "B L"], mask_id: int
) -> Rearranged:
    """The tokens in that order, each after a mask at its position, where it is predicted.

    A permutation language model (Yang et al. 2019, arXiv 1906.08237) in one causal stream: a mask
    sees the tokens written before it, and by its own position which one is wanted. Rotary positions
    stay with the tokens.
    """
    written = batch.tokens.gather(1, order)
    tokens = torch.stack((torch.full_like(written, mask_id), written), dim=-1).flatten(1)
    row, turn = may.gather(1, order).nonzero(as_tuple=True)
    targets = Targets.weigh_alike(row * tokens.shape[1] + 2 * turn, written[row, turn])
    return Rearranged(tokens, targets, order.repeat_interleave(2, dim=1))


def run_beside_clean(
    net: Transformer,
    noisy: Int[Tensor, "B L"],
    clean: Int[Tensor, "B L"],
    t: Float[Tensor, "B"] | None = None,
) -> Float[Tensor, "B L D"]:
    """The stream of noisy rows under block-causal attention that reads earlier blocks clean.

    The training pass of block diffusion (Arriola et al. 2025, arXiv 2503.09573): noisy and clean
    rows side by side at the same positions; a noisy block sees itself and the clean blocks before
    it, a clean one itself and the clean ones before it, or in networks with an open block, as in
    Nemotron-Labs-Diffusion's training, each clean position what is before it.
    """
    assert net.config.block is not None, "a network without blocks has no earlier ones"
    length = noisy.shape[1]
    positions = torch.arange(length, device=noisy.device)
    block = positions // net.config.block
    before, same = block[:, None] > block, block[:, None] == block
    finished = same.tril() if net.config.open_block else same
    sees = torch.cat(
        (torch.cat((same, before), 1), torch.cat((torch.zeros_like(same), before | finished), 1))
    )
    x = torch.cat((net.embed(noisy, t=t), net.embed(clean, t=t)), dim=1)
    twice = positions.repeat(2).expand(len(noisy), -1)
    return net.run_layers(x, sees=sees, positions=twice)[:, :length]


def list_orders(number: int, length: int) -> Int[Tensor, "N L"]:
    """Fixed orders of reading: positions sorted by position + N(0, i²) for i = 0 … number - 1.

    The first is from left to right, later ones move tokens farther; a text's first token stays
    first (Prabhudesai et al. 2025, arXiv 2507.15857). Order i is the same among any number of them.
    """
    noise = RowStreams.make(derive_seed(0, "orders", length), number).normal(length)
    spread = torch.arange(number, dtype=torch.float64)[:, None]
    places = torch.arange(length) + spread * noise
    places[:, 0] = -torch.inf
    return places.argsort(-1)


def reorder(batch: Batch, may: Bool[Tensor, "B L"], order: Int[Tensor, "B L"]) -> Rearranged:
    """The tokens in that order, each predicted where the one before it is read.

    Positions stay with the tokens; which position is asked for next is not said.
    """
    read = batch.tokens.gather(1, order)
    row, turn = may.gather(1, order)[:, 1:].nonzero(as_tuple=True)
    at = row * read.shape[1] + turn
    return Rearranged(read, Targets.weigh_alike(at, read[row, turn + 1]), order)

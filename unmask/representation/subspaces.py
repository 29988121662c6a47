"""Distributed alignment search: the subspace of a site's states that carries a variable.

A base run is given a source run's state in a subspace, and its own outside of it:

    h = h_base + Q Qᵀ (h_source - h_base)        Q [D, k] orthonormal

Q is trained so that the base then says what follows from the source's value of a variable (Geiger
et al. 2024, arXiv 2303.02536). One basis serves several ranks: each row of a batch uses the first k
of its columns, k drawn of the ranks (nested dropout; Rippel et al. 2014), so that a rank curve
costs one search. The rank of a whole state is plain interchange, the ceiling.

A search finds something in every network, so that nothing follows without its controls: the search
for permuted labels, in an untrained network, a random subspace of the rank, and noise as long as
what the subspace moves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.base.errors import UserError
from unmask.base.seeds import derive_seed, torch_stream
from unmask.evaluation.chain import log_softmax
from unmask.net.batches import count_row_bytes, fit_rows
from unmask.net.model import Model
from unmask.net.transformer import Transformer
from unmask.representation.patched import EMBEDDINGS
from unmask.representation.prompts import PromptRow, map_rows, stack_rows

Move = Callable[[Float[Tensor, "s D"], Int[Tensor, "s"]], Float[Tensor, "s D"]]
"""From what sources' states have over bases', and the row of each, to what is added."""


@dataclass(frozen=True)
class Exchange:
    """A base, the source whose states it is given, and what it should say then."""

    base: tuple[int, ...]
    source: tuple[int, ...]
    places: tuple[int, ...]
    """Positions of the base whose states are changed."""
    lent: tuple[int, ...]
    """For each of them the position of the source."""
    read: int
    """The row of the base that predicts."""
    own: int
    """The token that it predicts unchanged, if it is right."""
    target: int
    """The token that the source's value of the variable makes of it."""


@dataclass(frozen=True)
class Search:
    """How a basis is looked for."""

    ranks: tuple[int, ...] = (8,)
    """Ranks that the first columns of the basis serve."""
    updates: int = 100
    rows: int = 16
    """Exchanges of an update."""
    rate: float = 0.02
    """Adam's learning rate."""
    seed: int = 0


@dataclass(frozen=True)
class LaidOut:
    """Exchanges at a site of a network, with all that does not depend on the subspace computed."""

    model: Model
    site: str
    streams: Float[Tensor, "b L D"]
    """The stream that enters the site's layer, of each base."""
    tokens: Int[Tensor, "b L"]
    bases: Int[Tensor, "n"]
    """The base of each exchange."""
    owners: Int[Tensor, "m"]
    """The exchange of each changed state, in order."""
    places: Int[Tensor, "m"]
    changes: Float[Tensor, "m D"]
    """What the source's state has over the base's."""
    reads: Int[Tensor, "n"]
    owns: Int[Tensor, "n"]
    targets: Int[Tensor, "n"]

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def width(self) -> int:
        return self.changes.shape[1]

    def predict(self, numbers: Int[Tensor, "R"], move: Move) -> Float[Tensor, "R V"]:
        """log p where some exchanges predict, their states moved; gradients reach the move."""
        net, layer = self.model.net, int(self.site.split(".")[1])
        # 1. The changed states of these exchanges [s], and the batch's row of each.
        row, state = (self.owners == numbers[:, None]).nonzero(as_tuple=True)
        where = (row, self.places[state])
        moved = move(self.changes[state], row)

        def put(x: Float[Tensor, "R L D"]) -> Float[Tensor, "R L D"]:
            return x.index_put(where, moved.to(x), accumulate=True)

        # 2. Each base from the site's layer on.
        own, reads = self.bases[numbers], self.reads[numbers][:, None]
        inside = self.model.find_block(self.tokens[own], reads)
        with net.patch({self.site: put}):
            x = net.run_layers(self.streams[own], layer, inside=inside)
        return log_softmax(self.model, net.unembed(x, reads))[:, 0]


def name_entry(model: Model, layer: int) -> str:
    """The site of the stream after a layer, where another layer reads it; -1: the embeddings."""
    last = model.net.config.layers - 2
    if not EMBEDDINGS <= layer <= last:
        raise UserError(
            f"states after layer {layer} were asked for: {model.name} has layers that read those "
            f"after {EMBEDDINGS} (embeddings) to {last}."
        )
    return f"layers.{layer + 1}.resid_in"


@torch.no_grad()
def lay_out_exchanges(model: Model, exchanges: Sequence[Exchange], site: str) -> LaidOut:
    """Exchanges made ready at a site, such as "layers.3.resid_in"; equal rows are run once."""
    if not exchanges:
        raise UserError("no exchanges were given: expected at least one base with its source.")
    rows = list(dict.fromkeys(text for each in exchanges for text in (each.base, each.source)))
    number = {text: i for i, text in enumerate(rows)}
    entry = f"layers.{int(site.split('.')[1])}.resid_in"
    lengths = [len(text) for text in rows]
    longest = max(lengths)

    def read(batch: Sequence[int]) -> list[tuple[Tensor, Tensor, Tensor]]:
        padded = [PromptRow(list(rows[i]), 0, [0], [], 0) for i in batch]
        tokens = stack_rows(padded, model.device).tokens
        tokens = nn.functional.pad(tokens, (0, longest - tokens.shape[1]), value=int(tokens[0, -1]))
        inside = model.find_block(tokens, tokens.new_empty(0))
        with model.net.capture(*{site, entry}) as taken:
            model.net.run_layers(model.net.embed(tokens), inside=inside)
        return list(zip(tokens, taken[entry], taken[site], strict=True))

    most = fit_rows(model, count_row_bytes(model, longest, 1))
    tokens, streams, states = map(
        torch.stack, zip(*map_rows(model, lengths, most, read), strict=True)
    )
    # What is replaced, exchange by exchange.
    states_of = [(i, number[each.base], at, number[each.source], lent)
                 for i, each in enumerate(exchanges)
                 for at, lent in zip(each.places, each.lent, strict=True)]  # fmt: skip
    owner, base, place, source, lent = torch.tensor(states_of, device=model.device).T
    columns = [(number[each.base], each.read, each.own, each.target) for each in exchanges]
    bases, reads, owns, targets = torch.tensor(columns, device=model.device).T
    changes = (states[source, lent] - states[base, place]).clone()  # not a view of a capture
    changes = changes.to(torch.promote_types(changes.dtype, torch.float32))
    return LaidOut(model, site, streams, tokens, bases, owner, place, changes, reads, owns, targets)


@dataclass(frozen=True)
class Found:
    """What a search found."""

    basis: Float[Tensor, "D k"]
    """Orthonormal; its first columns are the subspace of a smaller rank."""
    losses: list[float]
    """The targets' cross-entropy at each update, in nats."""


def search_basis(laid: LaidOut, search: Search, start: Float[Tensor, "D k"] | None = None) -> Found:
    """The basis whose exchange makes the targets likeliest, as wide as the largest rank.

    It begins at `start`, by default at the directions in which sources differ most from bases: from
    a drawn one a search often stays where exchanging next to nothing changes nothing.
    """
    ranks, losses = clip_ranks(search.ranks, laid.width), list[float]()
    stream = torch_stream(search.seed, "search")
    if start is None:
        start = find_principal(laid, ranks[-1])
    # The basis is the orthonormal part of a free matrix: its first columns span what those of the
    # matrix span, whatever the others are.
    free = start.to(laid.changes).clone().requires_grad_()
    optimiser = torch.optim.Adam([free], lr=search.rate)
    sizes = torch.tensor(ranks)
    for _ in range(search.updates):
        # 1. Exchanges of this update, without repetition, and of each the rank that it is given.
        numbers = torch.randperm(len(laid), generator=stream)[: search.rows]
        rank = sizes[torch.randint(len(ranks), (len(numbers),), generator=stream)]
        numbers, rank = (each.to(free.device) for each in (numbers, rank))
        # 2. The targets' cross-entropy; it reaches the network, whose weights have no gradients.
        with torch.enable_grad():
            basis = torch.linalg.qr(free).Q
            logp = laid.predict(numbers, move_inside(basis, rank))
            loss = nn.functional.nll_loss(logp, laid.targets[numbers])
            (free.grad,) = torch.autograd.grad(loss, [free])
        optimiser.step()
        losses.append(float(loss.detach()))
    return Found(torch.linalg.qr(free.detach()).Q, losses)


def clip_ranks(ranks: Sequence[int], width: int) -> list[int]:
    """Ranks in order, those below the width, which is the rank of a whole state."""
    kept = sorted({rank for rank in ranks if rank < width})
    if not kept or kept[0] < 1:
        raise UserError(
            f"the ranks are {', '.join(map(str, ranks))}: expected some of "
            f"1 to {width - 1}, below the states' width."
        )
    return kept


def find_principal(laid: LaidOut, rank: int) -> Float[Tensor, "D k"]:
    """The directions in which sources differ most from bases, the first of them most."""
    changes = laid.changes.double()
    return torch.linalg.eigh(changes.T @ changes).eigenvectors.flip(1)[:, :rank]


def draw_basis(width: int, rank: int, seed: int) -> Float[Tensor, "D k"]:
    """A random orthonormal basis."""
    drawn = torch.randn(width, rank, generator=torch_stream(seed, "basis"))
    return torch.linalg.qr(drawn).Q


def move_whole(changes: Float[Tensor, "s D"], _row: Int[Tensor, "s"]) -> Float[Tensor, "s D"]:
    """Plain interchange."""
    return changes


def move_inside(basis: Float[Tensor, "D k"], rank: Int[Tensor, "R"] | int) -> Move:
    """Exchange inside the span of a basis' first columns, for each row as many as its rank."""

    def move(changes: Float[Tensor, "s D"], row: Int[Tensor, "s"]) -> Float[Tensor, "s D"]:
        column = torch.arange(basis.shape[1], device=changes.device)
        ranks = rank[row][:, None] if isinstance(rank, Tensor) else rank
        return (changes @ basis * (column < ranks)) @ basis.T

    return move


def move_anywhere(basis: Float[Tensor, "D k"], rank: int, seed: int) -> Move:
    """Noise in directions of its own for every state, as long as what the subspace would move."""
    inside, stream = move_inside(basis, rank), torch_stream(seed, "noise")

    def move(changes: Float[Tensor, "s D"], row: Int[Tensor, "s"]) -> Float[Tensor, "s D"]:
        noise = torch.randn(changes.shape, generator=stream).to(changes)
        return nn.functional.normalize(noise, dim=-1) * inside(changes, row).norm(
            dim=-1, keepdim=True
        )

    return move


def draw_network(model: Model, seed: int) -> Model:
    """A model of the same shape that learned nothing."""
    net = Transformer(model.net.config, derive_seed(seed, "untrained"))
    return replace(model, net=net.to(model.net.embedding.weight).eval().requires_grad_(False))


@torch.no_grad()
def say_targets(laid: LaidOut, move: Move, rows: int = 64) -> list[tuple[bool, bool]]:
    """For each exchange whether the target, and whether the own token, is then the likeliest."""
    pairs = []
    for numbers in torch.arange(len(laid), device=laid.targets.device).split(rows):
        best = laid.predict(numbers, move).argmax(-1)
        hits = best == laid.targets[numbers], best == laid.owns[numbers]
        pairs += list(zip(*(hit.tolist() for hit in hits), strict=True))
    return pairs

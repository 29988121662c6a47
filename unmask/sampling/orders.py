"""Orders: which open positions of a row go first, as scores; ties are broken by position."""

from collections.abc import Callable, Sequence
from numbers import Integral

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.choices import refuse_type
from unmask.base.errors import UserError
from unmask.base.plugins import Registry
from unmask.base.streams import RowStreams
from unmask.sampling.state import StepState

Order = Callable[[StepState, RowStreams], Float[Tensor, "B L"]]
"""A step to scores [B, L], of which those at open positions count; the highest goes first. The
streams are the order's own at this step: it may draw as much as it likes."""


def by_confidence(state: StepState, streams: RowStreams) -> Float[Tensor, "B L"]:
    """The probability of the proposed token."""
    return state.confidence


def by_entropy(state: StepState, streams: RowStreams) -> Float[Tensor, "B L"]:
    """Least entropy first."""
    return -state.entropy


def by_margin(state: StepState, streams: RowStreams) -> Float[Tensor, "B L"]:
    """The lead of the likeliest token over the next."""
    return state.margin


def at_random(state: StepState, streams: RowStreams) -> Float[Tensor, "B L"]:
    """In an order drawn anew at each step."""
    return streams.uniform(state.open.shape[1])


def left_to_right(state: StepState, streams: RowStreams) -> Float[Tensor, "B L"]:
    """The leftmost first."""
    positions = torch.arange(state.open.shape[1], device=state.open.device, dtype=torch.float64)
    return -positions.expand(state.open.shape)


def by_permutation(positions: Sequence[int]) -> Order:
    """The order of a given permutation of the positions."""
    if sorted(positions) != list(range(len(positions))):
        raise UserError(
            f"the order {list(positions)} is not a permutation of 0 to {len(positions) - 1}."
        )

    def score(state: StepState, streams: RowStreams) -> Tensor:
        if state.open.shape[1] != len(positions):
            raise UserError(
                f"the order names {len(positions)} positions, but the canvas has "
                f"{state.open.shape[1]}: name them all."
            )
        rank = torch.empty(len(positions), dtype=torch.float64)
        rank[torch.tensor(positions)] = -torch.arange(len(positions)).double()
        return rank.to(state.open.device).expand(state.open.shape)

    return score


ORDERS = Registry[Order](
    "order",
    {
        "confidence": by_confidence,
        "entropy": by_entropy,
        "margin": by_margin,
        "random": at_random,
        "left": left_to_right,
    },
    callable,
    "a function of a StepState and its streams, a permutation of the positions",
)


def get_order(order: str | Sequence[int] | Order) -> Order:
    """The order of that name, of a permutation, or the caller's own function."""
    if isinstance(order, str):
        return ORDERS.find(order)
    if callable(order) and not isinstance(order, Sequence):
        return order
    positions = getattr(order, "tolist", lambda: order)()  # another library's array
    if not isinstance(positions, Sequence) or not all(isinstance(at, Integral) for at in positions):
        raise refuse_type(order, ORDERS)
    return by_permutation(positions)


def choose_first(
    scores: Float[Tensor, "B L"], open_: Bool[Tensor, "B L"], counts: Int[Tensor, "B"]
) -> Bool[Tensor, "B L"]:
    """The `counts` open positions of each row with the highest scores; ties go to the left."""
    # Whatever is open goes before what is not, a score of -inf included.
    scores = scores.clamp(min=torch.finfo(scores.dtype).min)
    ranked = scores.masked_fill(~open_, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(scores.shape[1], device=scores.device)
    first = torch.zeros_like(open_).scatter(-1, ranked, ranks < counts[:, None])
    return first & open_

"""What each position of a batch sees: its place, and the positions it may attend to."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.net.cache import Cache, Snapshot
from unmask.net.config import NetConfig


@dataclass(frozen=True)
class View:
    """One forward pass as its attention sees it, the same in every layer."""

    cos: Float[Tensor, "*B L 1 r"] | None = None
    sin: Float[Tensor, "*B L 1 r"] | None = None
    """Angles of the positions, for the r numbers of a head that they turn."""
    mask: Bool[Tensor, "*rows #L N"] | None = None
    """True where a query may attend to a key; None: to all, or to all earlier ones."""
    is_causal: bool = False
    cache: Cache | Snapshot | None = None


def check_length(config: NetConfig, length: int) -> None:
    """Raise where a row is longer than the network was made for."""
    if length > config.context:
        raise UserError(
            f"the text has {length} tokens, but this network's context is {config.context}: "
            "shorten the text, or use a network with a longer context."
        )


def place(
    real: Bool[Tensor, "B N"] | None, num_new: int, past: int, device: torch.device
) -> Int[Tensor, "*B L"]:
    """Positions of the last `num_new` tokens, counted from each row's first real token.

    They are the same for left, right and no padding; padding itself sits at a neighbour's place.
    """
    if real is None:
        return torch.arange(past, past + num_new, device=device)
    return (real.cumsum(-1) - 1).clamp(min=0)[:, past:]


def mask_attention(
    real: Bool[Tensor, "B N"] | None, num_new: int, past: int, causal: bool, device: torch.device
) -> tuple[Bool[Tensor, "*rows #L N"] | None, bool]:
    """The attention mask and the `is_causal` flag; the flag saves the mask where it can."""
    if not causal:
        return (None if real is None else real[:, None, None, :]), False
    if real is None and (past == 0 or num_new == 1):
        return None, past == 0 and num_new > 1
    total = past + num_new
    earlier = torch.ones(num_new, total, dtype=torch.bool, device=device).tril(past)
    if real is None:
        return earlier, False
    # Left padding has no real key before it: it sees itself, so that no softmax is empty.
    itself = torch.eye(total, dtype=torch.bool, device=device)[past:]
    return (earlier & real[:, None, :] | itself)[:, None], False


def mask_blocks(
    real: Bool[Tensor, "B N"] | None, where: Int[Tensor, "*B L"], num_keys: int, block: int
) -> Bool[Tensor, "*rows L N"] | None:
    """The mask of block-causal attention: positions see their own block and those before it.

    Padding counts to a neighbour's block and so sees real tokens: no softmax is empty.
    """
    if real is None and num_keys <= block:
        return None
    keys = place(real, num_keys, 0, where.device) // block
    earlier = where[..., :, None] // block >= keys[..., None, :]
    earlier = earlier if real is None else earlier & real[:, None, :]
    return earlier[:, None] if earlier.ndim == 3 else earlier

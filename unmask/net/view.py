"""What each position of a batch sees: its place, and the positions it may attend to."""

from dataclasses import dataclass, replace

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
    condition: Float[Tensor, "B C"] | None = None
    """What the layers are told of the time, in networks with adaLN."""
    local: "View | None" = None
    """The view of the layers with a window: all but every `period`-th."""
    period: int = 1

    def to(self, device: torch.device) -> "View":
        """The view on another device; a cache stays where it is."""
        tensors = ("cos", "sin", "mask", "condition", "local")
        given = {name: getattr(self, name) for name in tensors}
        return replace(
            self, **{name: x if x is None else x.to(device) for name, x in given.items()}
        )

    def of(self, layer: int) -> "View":
        """The view of one layer."""
        return self if self.local is None or layer % self.period == 0 else self.local


def check_token_rows(tokens: object) -> None:
    """Raise where what was given is not rows of token ids."""
    if isinstance(tokens, str):
        raise UserError(
            f"the network was given the text {tokens!r:.60}: expected token ids [B, L], such as "
            "torch.tensor([model.tokenizer.encode(text).ids])."
        )
    if not isinstance(tokens, Tensor):
        raise UserError(
            f"the network was given a {type(tokens).__name__}: expected a tensor of token ids "
            "[B, L], such as torch.tensor([[1, 2, 3]])."
        )
    if tokens.ndim != 2 or tokens.is_floating_point():
        raise UserError(
            f"the network was given a tensor of shape {tuple(tokens.shape)} and dtype "
            f"{str(tokens.dtype).removeprefix('torch.')}: expected token ids [B, L]; one text is a "
            "batch of one row, tokens[None]."
        )


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


def mask_window(
    real: Bool[Tensor, "B N"] | None, where: Int[Tensor, "*B L"], num_keys: int, window: int
) -> Bool[Tensor, "*rows L N"] | None:
    """The mask of attention within a window: positions see so many to each side, and themselves."""
    if real is None and num_keys <= window + 1:
        return None
    keys = place(real, num_keys, 0, where.device)
    return _hide_padding((where[..., :, None] - keys[..., None, :]).abs() <= window, real)


def mask_blocks(
    real: Bool[Tensor, "B N"] | None,
    where: Int[Tensor, "*B L"],
    num_keys: int,
    block: int,
    keys: Int[Tensor, "*B N"] | None = None,
) -> Bool[Tensor, "*rows L N"] | None:
    """The mask of block-causal attention: positions see their own block and those before it.

    Padding counts to a neighbour's block and so sees real tokens: no softmax is empty. `keys` are
    the positions of what is seen, where it does not stand in its order.
    """
    if real is None and num_keys <= block:
        return None
    keys = (place(real, num_keys, 0, where.device) if keys is None else keys) // block
    return _hide_padding(where[..., :, None] // block >= keys[..., None, :], real)


def mask_open_block(
    real: Bool[Tensor, "B N"] | None,
    inside: Bool[Tensor, "*B N"] | None,
    length: int,
    cache: Cache | Snapshot | None = None,
) -> Bool[Tensor, "*rows L N"]:
    """The mask of attention with an open block: what is `inside` sees itself, all see what is
    before them.

    Padding sees itself: no softmax is empty.
    """
    if inside is None:
        raise UserError(
            "this network reads the block that is being written both ways and what is before it "
            "causally, and this does not say where the block is, as samplers, recall and "
            "Model.logits do: ask its causal reading, such as NAME:causal; training needs "
            "objective.clean_blocks."
        )
    keys = torch.arange(inside.shape[-1], device=inside.device)
    # Where the queries stand among the keys: from the first one on, or in part of a canvas.
    places = cache.places if isinstance(cache, Snapshot) else None
    columns = keys[:length] if places is None else places
    if inside.ndim == 1:
        of_block = inside[columns]
    else:
        of_block = inside.gather(1, columns.expand(len(inside), -1))
    sees = (keys <= columns[..., None]) | of_block[..., None] & inside[..., None, :]
    if real is not None:
        sees = sees & real[:, None] | (keys == columns[..., None])
    return sees[:, None] if sees.ndim == 3 else sees


def _hide_padding(sees: Tensor, real: Bool[Tensor, "B N"] | None) -> Bool[Tensor, "*rows L N"]:
    sees = sees if real is None else sees & real[:, None, :]
    return sees[:, None] if sees.ndim == 3 else sees


def find_places(
    x: Tensor,
    real: Bool[Tensor, "B _"] | None,
    cache: Cache | Snapshot | None,
    positions: Int[Tensor, "B L"] | None = None,
) -> tuple[Int[Tensor, "*B L"], Bool[Tensor, "B N"] | None]:
    """The positions of the tokens in `x`, and which of all that they see are real.

    Given `positions` are those of rows in another order, without padding or cache.
    """
    length = x.shape[1]
    if positions is not None:
        assert real is None and cache is None, "rows in another order have neither"
        return positions, None
    if isinstance(cache, Cache):
        seen = cache.begin(length, real)
        return place(seen, length, cache.length, x.device), seen
    if isinstance(cache, Snapshot) and cache.places is not None:
        if real is None:
            return cache.places, None
        return place(real, cache.room, 0, x.device).gather(1, cache.places), real
    return place(real, length, 0, x.device), real


def repeat_block(
    place: tuple[int, int] | None, num_keys: int, device: torch.device
) -> Bool[Tensor, "N"] | None:
    """True at an open block [begin, end) that is the same in all rows; None where there is none."""
    if place is None:
        return None
    keys = torch.arange(num_keys, device=device)
    return (keys >= place[0]) & (keys < place[1])


def find_open_block(
    is_mask: Bool[Tensor, "B L"], block: int, at: Tensor | None
) -> Bool[Tensor, "B L"]:
    """True at the open block of each row: so many positions from its first mask on.

    Masks that are read, at all positions or `at` some (see `Transformer.unembed`), must be in it.
    """
    begun = is_mask.cumsum(-1) > 0
    inside = begun & (begun.cumsum(-1) <= block)
    beyond = is_mask & ~inside
    if at is not None and at.dtype == torch.bool:
        beyond = beyond & at
    elif at is not None:
        beyond = beyond.gather(1, at.expand(len(is_mask), -1) % is_mask.shape[1])
    if bool(beyond.any()):
        raise UserError(
            f"this network fills one block of {block} tokens at a time, from a row's first mask "
            "on, and was asked for masks after it: give fewer masks, have texts written with "
            "sample or infill, or ask its causal reading, such as NAME:causal."
        )
    return inside


def check_positions(at: object, x: Float[Tensor, "B L D"]) -> None:
    """Raise for positions that the rows do not have: on a CPU, torch would read past their end.

    Elsewhere the device itself complains; asking it first would mean waiting for it.
    """
    rows, length = x.shape[:2]
    if not isinstance(at, Tensor) or at.is_floating_point() or at.ndim not in (1, 2):
        raise UserError("'at' must be a tensor: a mask [B, L], or positions [n] or [B, n].")
    if at.dtype == torch.bool:
        if at.shape != (rows, length):
            raise UserError(
                f"'at' is a mask of shape {list(at.shape)}, but the rows have [{rows}, {length}]."
            )
        return
    if at.device.type != "cpu" or torch.compiler.is_compiling() or not at.numel():
        return
    least, most = int(at.min()), int(at.max())
    # Positions for all rows may count from the end, as indices do.
    if most >= length or least < (-length if at.ndim == 1 else 0):
        raise UserError(
            f"'at' names the positions {least} to {most}, but the rows have {length}: expected "
            f"positions from 0 to {length - 1}."
        )

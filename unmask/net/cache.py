"""Keys and values of positions that already ran, so that they are not run again."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.net.config import NetConfig


class Cache:
    """Room for the keys and values of `batch` rows of up to `length` positions, in every layer."""

    def __init__(
        self,
        config: NetConfig,
        batch: int,
        length: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        padding: int = 0,
    ):
        """`padding` is room for columns in front of shorter rows: they take up no position."""
        if length > config.context:
            raise UserError(
                f"a cache of {length} positions was asked for, but this network's context is "
                f"{config.context}: ask for at most that many."
            )
        self.padding = padding
        self.block = config.block
        length += padding
        shape = (config.layers, batch, config.kv, length, config.head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.real = torch.ones(batch, length, device=device, dtype=torch.bool)
        self.padded = False
        self.length = 0
        """Positions that are filled; set it back to forget the later ones."""

    @property
    def room(self) -> int:
        return self.keys.shape[3]

    def begin(self, num_new: int, real: Bool[Tensor, "B n"] | None) -> Bool[Tensor, "B N"] | None:
        """Which of the filled and the new positions are real; None when all are."""
        end = self.length + num_new
        if real is not None:
            self._check_rows(len(real))
        if self.block is not None and (real is not None or self.length % self.block):
            raise UserError(
                f"the cache of a network with blocks of {self.block} was continued at position "
                f"{self.length}{'' if real is None else ' with padding'}: expected whole rows, and "
                "a block from its start; set `cache.length` back to where the block begins."
            )
        if end > self.room:
            raise UserError(
                f"the cache has room for {self.room} positions, {self.length} are filled and "
                f"{num_new} more were given: make it longer."
            )
        self.padded |= real is not None
        self.real[:, self.length : end] = True if real is None else real
        return self.real[:, :end] if self.padded else None

    def extend(
        self, layer: int, keys: Float[Tensor, "B h n d"], values: Float[Tensor, "B h n d"]
    ) -> tuple[Float[Tensor, "B h N d"], Float[Tensor, "B h N d"]]:
        """All keys and values of one layer, the new ones written behind the filled ones."""
        self._check_rows(len(keys))
        end = self.length + keys.shape[2]
        self.keys[layer, :, :, self.length : end] = keys
        self.values[layer, :, :, self.length : end] = values
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def _check_rows(self, rows: int) -> None:
        if rows != len(self.real):
            raise UserError(
                f"a batch of {rows} rows met a cache for {len(self.real)}: make one of that size."
            )


class Snapshot:
    """Keys and values of whole canvases as one pass left them, in every layer.

    The first pass fills it; after `move_to` a pass runs some places only, replaces what they left
    and sees the others as they were. In a network that sees in both directions that is an
    approximation: the others would have changed, too.
    """

    def __init__(
        self, config: NetConfig, batch: int, length: int, device: torch.device, dtype: torch.dtype
    ):
        shape = (config.layers, batch, config.kv, length, config.head_dim)
        self.keys = torch.empty(shape, device=device, dtype=dtype)
        self.values = torch.empty(shape, device=device, dtype=dtype)
        self.places: Int[Tensor, "B A"] | None = None
        """Where the tokens of a pass stand; None: everywhere."""
        self._kept: dict[object, Tensor] = {}
        """Activations of whole canvases, where a patch looks at them."""

    def __len__(self) -> int:
        return self.keys.shape[1]

    @property
    def room(self) -> int:
        return self.keys.shape[3]

    def move_to(self, places: Int[Tensor, "B A"]) -> "Snapshot":
        """Itself, the tokens of the next pass standing at these places; one may be named twice."""
        self.places = places
        return self

    def extend(
        self, layer: int, keys: Float[Tensor, "B h n d"], values: Float[Tensor, "B h n d"]
    ) -> tuple[Float[Tensor, "B h N d"], Float[Tensor, "B h N d"]]:
        """All keys and values of one layer, the new ones in their places."""
        if self.places is None:
            self.keys[layer], self.values[layer] = keys, values
            return keys, values
        index = self.places[:, None, :, None].expand_as(keys)
        # Under autocast the new ones are shorter than the weights.
        self.keys[layer].scatter_(2, index, keys.to(self.keys.dtype))
        self.values[layer].scatter_(2, index, values.to(self.values.dtype))
        return self.keys[layer], self.values[layer]

    def complete(self, name: object, x: Tensor, axis: int = 1) -> Tensor:
        """An activation of the whole canvas: what is new in its places, the rest as it was kept."""
        if self.places is not None:
            x = self._kept[name].scatter(axis, self._index(x, axis), x)
        self._kept[name] = x
        return x

    def select(self, whole: Tensor, axis: int = 1) -> Tensor:
        """The places of a pass, out of what stands on the whole canvas."""
        return whole if self.places is None else whole.gather(axis, self._index(whole, axis))

    def _index(self, like: Tensor, axis: int) -> Tensor:
        """The places, at every number that an activation has for one of them."""
        assert self.places is not None
        shape = [1] * like.ndim
        shape[0], shape[axis] = self.places.shape
        wanted = list(like.shape)
        wanted[axis] = self.places.shape[1]
        return self.places.view(shape).expand(wanted)

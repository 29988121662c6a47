"""The rest of a network above one layer, for rows that are changed there at one position.

Only this depends on the change, and only this is computed, again and again: nothing up to the
layer itself; in the next layer the queries, keys and values of the changed place; in the last
layer the rows that are read.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.net.transformer import Transformer


class Tail:
    """The layers above `layer`, whose rows left it as `x`."""

    @torch.no_grad()
    def __init__(
        self,
        net: Transformer,
        layer: int,
        x: Float[Tensor, "R L D"],
        place: Int[Tensor, "R"],
        reads: Int[Tensor, "R A"],
    ):
        net.taps.require_none("the search for values")
        self.net, self.layer, self.x, self.place, self.reads = net, layer, x, place, reads
        self.last = net.config.layers - 1
        self.rows = torch.arange(len(x), device=x.device)
        view = net.view(x)
        self.cos, self.sin = view.cos, view.sin
        self.mask = None
        if net.config.causal:
            places = torch.arange(x.shape[1], device=x.device)
            self.mask = (places <= reads[..., None])[:, None]
        if layer < self.last:
            block = net.block(layer + 1)
            self.projected = block.read(x, self.cos, self.sin)

    def run(self, added: Float[Tensor, "R D"]) -> Float[Tensor, "R A D"]:
        """The stream that leaves the last layer at the rows read, `added` to the changed place."""
        # 1. What the MLP adds at the changed place [R, D] moves the stream that leaves the layer;
        #    all else of it [R, L, D] stays.
        block = self.net.block(self.layer)
        changed = block.after_mlp(self.x[self.rows, self.place], added.to(self.x.dtype))
        x = self._put(self.x, changed)
        if self.layer == self.last:
            return self._read(x)
        # 2. The next layer's queries, keys and values: new at the changed place [R, H, d], kept
        #    ones [R, L, H, d] at all others.
        block, first = self.net.block(self.layer + 1), self.layer + 1
        cos, sin = (None if t is None else t[self.place] for t in (self.cos, self.sin))
        new = block.read(changed, cos, sin)
        pairs = zip(self.projected, new, strict=True)
        queries, keys, values = (self._put(old, now) for old, now in pairs)
        if first == self.last:
            return self._finish(x, queries, keys, values)
        # 3. From its attention on every position can differ: whole layers, up to the last.
        z = block.attend(queries, keys, values, None, self.net.config.causal)
        x = block.finish(x, block.attn_out(z))[0]
        x = self.net.run_layers(x, first + 1, self.last)
        # 4. The last layer mixes all positions, but only the A rows that are read leave it.
        return self._finish(x, *self.net.block(self.last).read(x, self.cos, self.sin))

    def _finish(
        self, x: Tensor, queries: Tensor, keys: Tensor, values: Tensor
    ) -> Float[Tensor, "R A D"]:
        """The last layer, at the rows that are read alone."""
        block = self.net.block(self.last)
        queries = queries.take_along_dim(self.reads[..., None, None], dim=1)
        z = block.attend(queries, keys, values, self.mask)
        return block.finish(self._read(x), block.attn_out(z))[0]

    def _put(self, old: Tensor, new: Tensor) -> Tensor:
        return old.index_put((self.rows, self.place), new)

    def _read(self, x: Tensor) -> Tensor:
        return x.take_along_dim(self.reads[..., None], dim=1)

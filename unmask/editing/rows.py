"""Many edits in one batch: each row of a pass has its own, added beside the weights.

A low-rank edit adds residuals times shares to what an MLP gives, and the shares are read off the
MLP's own key. So rows with different edits can share a pass, without a weight being written: sixty
edits cost the passes of one. The results are those of edits put on one by one, but for rounding.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.editing.edit import Edit, digest_downs, get_down
from unmask.net.batches import count_row_bytes, fit_rows, map_batches
from unmask.net.model import Model
from unmask.net.sites import Patch, PatchContext


class RowEdits:
    """Edits of one network, for passes in which every row has one of them."""

    def __init__(self, model: Model, edits: Sequence[Edit]):
        self.model, self.edits = model, list(edits)
        for layers, network in {(edit.layers, edit.network) for edit in edits}:
            if digest_downs(model, layers) != network:
                raise UserError(
                    f"an edit of layer {', '.join(map(str, layers))} was made for another network "
                    f"than {model.name} (their digests differ): make it again for this one."
                )
        self.layers = sorted({layer for edit in edits for layer in edit.layers})
        self._factors = {layer: self._stack(layer) for layer in self.layers}
        self._shares: dict[int, Tensor] = {}

    def _stack(self, layer: int) -> tuple[Float[Tensor, "N D E"], Float[Tensor, "N E F"]]:
        """Residuals and readers of all edits; those of other layers, and of fewer facts, are 0."""
        weight = get_down(self.model, layer).weight
        own = {i: edit.factors[layer] for i, edit in enumerate(self.edits) if layer in edit.factors}
        facts = max(len(each.readers) for each in own.values())
        residuals = weight.new_zeros(len(self.edits), weight.shape[0], facts)
        readers = weight.new_zeros(len(self.edits), facts, weight.shape[1])
        for i, each in own.items():
            residuals[i, :, : len(each.readers)] = each.residuals.to(weight)
            readers[i, : len(each.readers)] = each.readers.to(weight)
        return residuals.detach(), readers.detach()

    @contextmanager
    def on(self, owners: Sequence[int]) -> Generator[Model]:
        """Inside the block, each item of a call has the edit with its number.

        Args:
            owners: The number of each item's edit. Scores announce which items a pass holds; what
                announces nothing must run all of them in order, as sampling does.
        """
        owner = torch.tensor(list(owners), device=self.model.device)
        keys: dict[int, Tensor] = {}

        def keep(layer: int) -> Patch:
            def act(key: Tensor) -> Tensor:
                keys[layer] = key
                return key

            return act

        def add(layer: int) -> Patch:
            residuals, readers = self._factors[layer]

            def act(out: Tensor, context: PatchContext) -> Tensor:
                key, own = keys.pop(layer), owner[list(context.rows)]
                self._shares[layer] = key @ readers[own].mT  # [B, L, E]
                return out + self._shares[layer] @ residuals[own].mT

            return act

        functions = {f"layers.{layer}.mlp_key": keep(layer) for layer in self.layers}
        functions |= {f"layers.{layer}.mlp_out": add(layer) for layer in self.layers}
        with self.model.net.patch(functions):
            yield self.model

    @torch.inference_mode()
    def shares(self, tokens: Int[Tensor, "B L"], owners: Sequence[int]) -> Float[Tensor, "B L"]:
        """How much of its own edit acts at each position of each row, in the edit's last layer.

        The sum over an edit's facts: `Edit.shares` of one edit.
        """
        net = self.model.net

        def read(batch: Sequence[int]) -> list[Tensor]:
            own = [owners[i] for i in batch]
            with self.on(own):
                net.run_layers(net.embed(tokens[list(batch)].to(self.model.device)), 0, last + 1)
            shares = {layer: each.sum(-1).double() for layer, each in self._shares.items()}
            return [shares[self.edits[e].layers[-1]][i].cpu() for i, e in enumerate(own)]

        last = self.layers[-1]
        size = fit_rows(self.model, count_row_bytes(self.model, tokens.shape[1], 0))
        batches = map_batches(range(len(tokens)), size, read)
        return torch.stack([row for _, batch in batches for row in batch])

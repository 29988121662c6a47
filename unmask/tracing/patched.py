"""The engine of a patched network: restored runs that are run whole, past everything attached."""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.net.transformer import Transformer
from unmask.tracing.engine import CellBatch, Engine
from unmask.tracing.record import RECORDED, Activations, AnswerReader
from unmask.tracing.windows import PROJECTED, PartPlan, Trunk

SITES = {"resid": "resid_out", "mlp": "mlp_out", "attn": "attn_out"}
"""Where the state of a part stands; those of heads and of attention have its name."""


def make_engine(
    net: Transformer, base: Activations, source: Activations, reader: AnswerReader
) -> Engine:
    """The engine that restores states of `source` into `base`, patches included."""
    return (PatchedEngine if net.taps.attached else Engine)(net, base, source, reader)


class PatchedEngine(Engine):
    """Runs every cell whole from the layer on where it begins, restoring after the patches.

    A patch may look at all positions and move what it sees between them, so that anything can
    differ from the base run from there on. As long as none changed anything, cells are what they
    are without patches, to the last bit.
    """

    @property
    def is_local(self) -> bool:
        return not self.net.taps.changed

    def run(
        self, batch: CellBatch, plan: PartPlan, trunk: Trunk, head: int = 0
    ) -> Iterator[tuple[int, Float[Tensor, "B K A"]]]:
        taps, tokens = self.net.taps, self.base.tokens
        sample = batch.sample if self.base.samples > 1 else torch.zeros_like(batch.sample)
        tokens = None if tokens is None else tokens[sample]
        with taps.on_tokens(tokens), taps.in_rows((0,)):
            ends = list(self._run_whole(batch, sample, plan, trunk, head))
        if not taps.changed:
            with taps.silenced():
                ends = list(super().run(batch, plan, trunk, head))
        yield from ends

    def _run_whole(
        self, batch: CellBatch, sample: Int[Tensor, "B"], plan: PartPlan, trunk: Trunk, head: int
    ) -> Iterator[tuple[int, Float[Tensor, "B K A"]]]:
        """(end of the window, log p of the targets) for each window of a trunk."""
        # 1. The base run as it enters the first layer of the window [B, L, D].
        at = batch.pair_sample, batch.position
        x = self.base.entering[max(trunk.start, 0)][sample]
        if trunk.start < 0:
            x = _put(batch, self.source.pick(self.source.entering[0], *at))(x)
        for layer in range(max(trunk.start, 0), trunk.end):
            # 2. A shorter window ends here: all layers from this one on are run as they are.
            if layer in trunk.stops:
                yield layer, self._read(batch, x, layer)
            # 3. The first layer has the source's part, those above what is kept of the frozen one.
            if layer == trunk.start:
                part, values = plan.part, self._pick_source(batch, plan.part, layer)
            else:
                assert plan.frozen is not None
                record, kept = self._kept(plan, layer)
                part, values = plan.frozen, record.pick(kept, *at)
            put = _put(batch, values, head if part == "attn_z" else None)
            with self.net.taps.attach({f"layers.{layer}.{SITES.get(part, part)}": put}):
                x = self.net.run_layers(x, layer, layer + 1)
        yield trunk.end, self._read(batch, x, trunk.end)

    def _read(
        self, batch: CellBatch, x: Float[Tensor, "B L D"], layer: int
    ) -> Float[Tensor, "B K A"]:
        """log p of the targets when the stream enters a layer."""
        end = self.net.run_layers(x, layer)
        return self.reader.read(end[:, self.reader.rows], batch.sample)

    def _pick_source(self, batch: CellBatch, part: str, layer: int) -> Tensor:
        """The source's part in a layer, at the restored pairs."""
        source, at = self.source, (batch.pair_sample, batch.position)
        if part not in PROJECTED or source.moved is None:
            number = RECORDED.index(SITES.get(part, part))
            return source.pick(source.lists()[number][layer + (part == "resid")], *at)
        # Another text's queries, keys and values: turned by our positions' angles, and patched.
        x, view, taps = source.entering[layer][:, source.moved], self.views[layer], self.net.taps
        tokens = self.base.tokens if source.tokens is None else source.tokens[:, source.moved]
        with taps.on_tokens(None if tokens is None else tokens[: len(x)]):
            tap = taps.at(f"layers.{layer}.")
            read = self.net.block(layer).read_tapped(tap("resid_in", x), view, tap)
            made = tap(part, read[PROJECTED.index(part)])
        return made[batch.pair_sample if len(made) > 1 else 0, batch.position]


def _put(
    batch: CellBatch, values: Float[Tensor, "P *n"], head: int | None = None
) -> Callable[[Tensor], Tensor]:
    """A patch that puts values at the restored pairs, or one head of them."""

    def act(x: Float[Tensor, "B L *n"]) -> Float[Tensor, "B L *n"]:
        flat, put = x.flatten(0, 1), values
        if head is not None:
            put = flat[batch.patched]
            put[:, head] = values[:, head]
        return flat.index_copy(0, batch.patched, put).view_as(x)

    return act

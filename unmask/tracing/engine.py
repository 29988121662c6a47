"""The engine: many restored runs at once, and of each only what can differ from the base run.

A cell puts states of a source run into a base run, at some positions of a layer, or of a window of
layers. Then only this can differ from the base run, and only this is computed:

- nothing before the first patched layer; in it, the patched positions alone;
- queries, keys and values of the patched positions, and of all active ones from the next layer on;
- in a causal network, positions from the first patched one on, with block-causal attention from
  the start of its block on; the rest keep the base run's keys and values;
- in the last layer, the rows that are read;
- windows that begin at the same layer run together until they end (`unmask.tracing.windows`).

Streams are flat: the active (row, position) pairs of a batch, one after the other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from weakref import proxy

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.net.blocks import Block
from unmask.net.graphs import LayerGraphs, can_replay, locate_weights
from unmask.net.transformer import Transformer
from unmask.tracing.record import Activations, AnswerReader
from unmask.tracing.windows import PROJECTED, PartPlan, Trunk

PatchedCell = tuple[tuple[int, ...], int]
"""Patched positions, and the noise sample they are patched in."""


@dataclass(frozen=True)
class Stream:
    """The stream at the pairs that may differ from the base run's; `where` None: at all pairs."""

    x: Float[Tensor, "N D"]
    where: Int[Tensor, "N"] | None
    projected: str | None = None
    """"attn_q", "attn_k" or "attn_v": what is the source's at these pairs instead of the stream."""


class CellBatch:
    """Rows of one batch, each a noise sample with some positions patched."""

    def __init__(self, cells: Sequence[PatchedCell], engine: "Engine"):
        device, length = engine.device, engine.length
        self.rows, self.length = len(cells), length
        self.sample = torch.tensor([sample for _, sample in cells], device=device)
        pairs = [(row, at) for row, (positions, _) in enumerate(cells) for at in positions]
        pairs = torch.tensor(pairs, dtype=torch.long, device=device).view(-1, 2)
        row, self.position = pairs.unbind(1)
        self.pair_sample = self.sample[row]
        self.patched = row * length + self.position
        """Patched pairs, counted over the whole batch."""
        self.active: Tensor | None = None
        self.index = self.patched
        """Patched pairs, counted among the active ones."""
        if (block := engine.block) is not None:
            starts = [min(at, default=0) // block * block for at, _ in cells]
            first = torch.tensor(starts, device=device)
            inside = torch.arange(length, device=device) >= first[:, None]
            self.active = inside.flatten().nonzero()[:, 0]
            self.index = torch.searchsorted(self.active, self.patched)

    def locate(self) -> tuple[Int[Tensor, "N"], Int[Tensor, "N"]]:
        """The noise sample and the position of each active pair."""
        pairs = self.active
        if pairs is None:
            pairs = torch.arange(self.rows * self.length, device=self.sample.device)
        return self.sample[pairs // self.length], pairs % self.length

    def is_patched(self, rows: Int[Tensor, "A"]) -> Tensor:
        """Which of the rows that are read are patched [B, A]."""
        flat = torch.zeros(self.rows * self.length, dtype=torch.bool, device=rows.device)
        flat[self.patched] = True
        return flat.view(self.rows, -1)[:, rows]


class Engine:
    """Restores states of `source` into `base`; both ran the same number of positions."""

    is_local = True
    """Whether states move between positions by attention alone."""

    def __init__(
        self, net: Transformer, base: Activations, source: Activations, reader: AnswerReader
    ):
        self.net, self.base, self.source, self.reader = net, base, source, reader
        self.layers, self.causal = net.config.layers, net.config.causal
        self.length = base.entering[0].shape[1]
        self.device = base.entering[0].device
        view = net.view(base.entering[0][:1])
        self.views = [view.of(layer) for layer in range(self.layers)]
        self.block = 1 if self.causal else None if net.config.open_block else net.config.block
        """Positions that see each other among those that see no later one; None: all do."""
        positions = torch.arange(self.length, device=self.device)
        self._graphs: tuple[CellBatch, LayerGraphs | None] | None = None
        """The recorded layers of the batch that runs; None for it where they are not recorded."""
        last = self.views[-1].mask
        self.last_mask = None if last is None else last[reader.rows]
        if self.causal:
            self.last_mask = positions <= reader.rows[:, None]

    def run(
        self, batch: CellBatch, plan: PartPlan, trunk: Trunk, head: int = 0
    ) -> Iterator[tuple[int, Float[Tensor, "B K A"]]]:
        """(end of the window, log p of the targets) for each window of a trunk.

        What the plan's frozen part adds at the patched positions is kept in layers start + 1 to
        each end.
        """
        last = self.layers - 1
        # 0. Queries, keys or values of one layer: the stream that enters it is the base run's.
        if plan.part in PROJECTED:
            at = (batch.pair_sample, batch.position)
            x = self.base.pick(self.base.entering[trunk.start], *at)
            yield trunk.end, self._finish(trunk.start, batch, Stream(x, batch.patched, plan.part))
            return
        # 1. The first layer of the window, at the P patched pairs alone [P, D]: nothing before it
        #    and no other position can differ from the base run.
        stream = Stream(self._patch(batch, plan.part, trunk.start, head), batch.patched)
        # 2. The layers inside the window, at the N active pairs [N, D]. The last layer is left out:
        #    of it only the rows that are read are wanted.
        for layer in range(trunk.start + 1, min(trunk.end, last)):
            x = stream.x if stream.where is batch.patched else stream.x[batch.index]
            stops = layer in trunk.stops
            attn, after = self._advance(layer, batch, stream, keep=stops)
            stream = Stream(after, batch.active)
            # 3. Windows that go on: at the patched pairs the layer adds what the frozen part added.
            frozen = self._freeze(layer, batch, plan, x, attn)
            # A shorter window ends here: nothing is frozen in this layer, nor in those above.
            if stops:
                yield layer, self._finish(layer + 1, batch, stream)
            if frozen is not None:
                stream.x.index_copy_(0, batch.index, frozen)
        # 4. The longest window. Below the last layer, or where the window is the last layer alone,
        #    nothing is left to be frozen.
        if trunk.end <= last or trunk.start == last:
            yield trunk.end, self._finish(trunk.end, batch, stream)
            return
        # 5. The last layer is frozen as well: once without, for a window that ends just below it,
        #    and once with it.
        if last in trunk.stops:
            yield last, self._finish(last, batch, stream)
        yield trunk.end, self._finish(last, batch, stream, plan)

    def _patch(self, batch: CellBatch, part: str, layer: int, head: int) -> Float[Tensor, "P D"]:
        """What leaves a layer at the patched positions, once the part is the source's."""
        base, source = self.base, self.source
        at = (batch.pair_sample, batch.position)
        if part in ("embed", "resid"):
            return source.pick(source.resid(layer), *at)
        block, entering = self.net.block(layer), base.pick(base.entering[layer], *at)
        if part == "mlp":
            _, stream = block.after_attention(entering, base.pick(base.attn[layer], *at))
            return block.after_mlp(stream, source.pick(source.mlp[layer], *at))
        if part == "attn":
            attn = source.pick(source.attn[layer], *at)
        else:
            z = base.pick(base.attn_z[layer], *at).clone()
            z[:, head] = source.pick(source.attn_z[layer], *at)[:, head]
            attn = block.attn_out(z)
        return block.finish(entering, attn)[0]

    def _freeze(
        self,
        layer: int,
        batch: CellBatch,
        plan: PartPlan,
        x: Float[Tensor, "P D"],
        attn: Float[Tensor, "N D"],
    ) -> Float[Tensor, "P D"] | None:
        """What leaves a layer at the patched positions, once the frozen part is what was kept."""
        if plan.frozen is None:
            return None
        record, kept = self._kept(plan, layer)
        block, kept = self.net.block(layer), record.pick(kept, batch.pair_sample, batch.position)
        if plan.frozen == "attn":
            return block.finish(x, kept)[0]
        _, stream = block.after_attention(x, attn[batch.index])
        return block.after_mlp(stream, kept)

    def _kept(self, plan: PartPlan, layer: int) -> tuple[Activations, Float[Tensor, "S L D"]]:
        """The run whose additions stay, and what the frozen part adds in a layer of it."""
        record = self.base if plan.is_severed else self.source
        return record, (record.mlp if plan.frozen == "mlp" else record.attn)[layer]

    def _advance(
        self, layer: int, batch: CellBatch, stream: Stream, keep: bool = False
    ) -> tuple[Float[Tensor, "N D"], Float[Tensor, "N D"]]:
        """What attention adds in a layer, and the stream that leaves it.

        The latter may lie where the one that entered did. Both may be written over by the next
        layer, unless the one that leaves is to `keep`.
        """
        if stream.where is batch.active:
            if self._graphs is None or self._graphs[0] is not batch:
                self._graphs = batch, self._find_graphs(batch, stream.x)
            if (graphs := self._graphs[1]) is not None:
                attn, after = graphs.advance(layer, stream.x)
                return attn, after.clone() if keep else after
        x, attn = self._attend(layer, batch, stream)
        return attn, self.net.block(layer).finish(x, attn)[0]

    def _find_graphs(self, batch: CellBatch, like: Float[Tensor, "N D"]) -> LayerGraphs | None:
        """The recorded layers of a batch; None where layers are run as ever."""
        if not can_replay(self.net, like):
            return None
        shape, views, net = (batch.rows, batch.length), self.views, self.net
        engine = proxy(self)  # which holds the graphs: they are given up together

        def run_all(layer: int, x: Tensor) -> Tensor:
            """A layer at all positions, which is the same whatever is traced."""
            block, view = net.block(layer), views[layer]
            z = block.attend(*block.read(x.unflatten(0, shape), view.cos, view.sin), view.mask)
            attn = block.attn_out(z.flatten(0, 1))
            _finish_in_place(block, x, attn)
            return attn

        def run_active(layer: int, x: Tensor) -> Tensor:
            """A layer at the active positions: the others' keys and values are this run's."""
            _, attn = engine._attend(layer, batch, Stream(x, batch.active))
            _finish_in_place(net.block(layer), x, attn)
            return attn

        if batch.active is None:
            return net.graphs.find_layers(net, like, shape, run_all)
        return None if locate_weights(net) is None else LayerGraphs(like, run_active)

    def _attend(
        self, layer: int, batch: CellBatch, stream: Stream
    ) -> tuple[Float[Tensor, "N D"], Float[Tensor, "N D"]]:
        """The stream that enters the layer at the active pairs, and what attention adds there."""
        block = self.net.block(layer)
        queries, keys, values = self._project(layer, batch, stream)
        z = block.attend(queries, keys, values, self.views[layer].mask, self.causal)
        z = z.flatten(0, 1) if batch.active is None else z.flatten(0, 1)[batch.active]
        if stream.where is batch.active:
            x = stream.x
        else:
            # The first layer above the patch: all other positions are the base run's.
            x = self.base.pick(self.base.entering[layer], *batch.locate())
            x.index_copy_(0, batch.index, stream.x)
        return x, block.attn_out(z)

    def _finish(
        self, layer: int, batch: CellBatch, stream: Stream, plan: PartPlan | None = None
    ) -> Float[Tensor, "B K A"]:
        """log p of the targets when the stream enters `layer`; `plan` freezes the last layer."""
        for between in range(layer, self.layers - 1):
            stream = Stream(self._advance(between, batch, stream)[1], batch.active)
        if layer == self.layers:
            x = self._look_up(layer, batch, stream)
        else:
            x = self._run_last(batch, stream, plan)
        return self.reader.read(x, batch.sample)

    def _run_last(
        self, batch: CellBatch, stream: Stream, plan: PartPlan | None
    ) -> Float[Tensor, "B A D"]:
        """The stream that leaves the last layer, at the rows that are read alone."""
        layer, rows = self.layers - 1, self.reader.rows
        block, frozen = self.net.block(layer), None if plan is None else plan.frozen
        queries, keys, values = self._project(layer, batch, stream)
        z = block.attend(queries[:, rows], keys, values, self.last_mask)
        x, attn = self._look_up(layer, batch, stream), block.attn_out(z)

        def keep(now: Float[Tensor, "B A D"]) -> Float[Tensor, "B A D"]:
            """What a part adds at the rows that are read: what was kept, where they are patched."""
            assert plan is not None
            record, kept = self._kept(plan, layer)
            kept = record.pick(kept, batch.sample[:, None], rows)
            return torch.where(batch.is_patched(rows)[..., None], kept, now)

        mlp, middle = block.run_mlp(x, keep(attn) if frozen == "attn" else attn)
        return block.after_mlp(middle, keep(mlp) if frozen == "mlp" else mlp)

    def _project(
        self, layer: int, batch: CellBatch, stream: Stream
    ) -> tuple[Float[Tensor, "B L H d"], Float[Tensor, "B L h d"], Float[Tensor, "B L h d"]]:
        """Queries, keys, values at all positions: new where the stream is, else the base run's."""
        block, view = self.net.block(layer), self.views[layer]
        shape = (batch.rows, batch.length)
        # A diffusion network above the first layer: the stream is everywhere, N = B L.
        if stream.where is None:
            return block.read(stream.x.unflatten(0, shape), view.cos, view.sin)
        # 1. The stream's own [N, H, d], turned by the angles of its positions.
        position = stream.where % batch.length
        cos, sin = (t if t is None else t[position] for t in (view.cos, view.sin))
        new = block.read(stream.x, cos, sin)
        if stream.projected is not None:
            # Turned by our positions' angles: another text's run may have them elsewhere.
            x = self.source.pick(self.source.entering[layer], batch.pair_sample, batch.position)
            which, sources = PROJECTED.index(stream.projected), block.read(x, cos, sin)
            new = (*new[:which], sources[which], *new[which + 1 :])
        # 2. The base run's, a copy for every row of the batch: [S, L, H, d] to [B L, H, d].
        base = (kept[layer] for kept in (self.base.queries, self.base.keys, self.base.values))
        sample = batch.sample if self.base.samples > 1 else torch.zeros_like(batch.sample)
        # 3. The new ones over the old at the pairs of the stream, then rows again [B, L, H, d].
        queries, keys, values = (
            old[sample].flatten(0, 1).index_copy_(0, stream.where, changed).unflatten(0, shape)
            for old, changed in zip(base, new, strict=True)
        )
        return queries, keys, values

    def _look_up(self, layer: int, batch: CellBatch, stream: Stream) -> Float[Tensor, "B A D"]:
        """The stream that enters a layer, at the rows that are read."""
        rows = self.reader.rows
        if stream.where is None:
            return stream.x.unflatten(0, (batch.rows, batch.length))[:, rows]
        # 1. The base run's everywhere [B, A, D]; a clean base has one row for all samples.
        x = self.base.pick(self.base.entering[layer], batch.sample[:, None], rows)
        x = x.expand(batch.rows, -1, -1)
        if not len(stream.where):
            return x
        # 2. Where each read pair stands in the stream, if it does [B, A]. Pairs ascend, so the
        #    first one that is not smaller is it or none is; past the end stands for none, too.
        flat = torch.arange(batch.rows, device=rows.device)[:, None] * batch.length + rows
        near = torch.searchsorted(stream.where, flat).clamp(max=len(stream.where) - 1)
        there = stream.where[near] == flat
        # 3. The stream's own over the base run's.
        return torch.where(there[..., None], stream.x[near], x)


def _finish_in_place(block: Block, x: Float[Tensor, "N D"], attn: Float[Tensor, "N D"]) -> None:
    """`Block.finish` over the stream that entered; the blocks that are replayed are sums."""
    mlp, stream = block.run_mlp(x, attn)
    torch.add(stream, mlp, out=x)

"""Sweeps: all cells of a part, in batches that fit into memory."""

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.progress import track_inside
from unmask.net.batches import ran_out_of_memory
from unmask.net.config import NetConfig
from unmask.tracing.engine import CellBatch, Engine, PatchedCell
from unmask.tracing.windows import PROJECTED, PartPlan

DEFAULT_MEMORY = {"cpu": 2**28, "cuda": 2**32, "mps": 2**31}
"""Bytes of a batch where no bound was given; a processor's caches like small ones."""

WatchCells = Callable[[int, int, int | None, Int[Tensor, "n 2"], Float[Tensor, "n K A"]], None]
"""Called with cells as they are run: the number of the plan, the column, the head of a part that
has heads, the (place, sample) of each cell, and its log p. What it raises ends the sweep."""


def sweep_cells(
    engine: Engine,
    plans: Sequence[PartPlan],
    places: Sequence[tuple[int, ...]],
    base: Float[Tensor, "S K A"],
    memory: int | None = None,
    same_before: int = 0,
    watch: WatchCells | None = None,
) -> list[Float[Tensor, "place layer *head S K A"]]:
    """log p of the targets for every place, layer and noise sample of each part.

    A place is what a row of the grid restores: a position, or several. Cells that cannot change
    anything are not run: they are the base run to the last bit. That is so for positions after the
    rows that are read and, in a causal network, for positions before `same_before`, the first one
    where base and source differ.

    With `watch` the first batch is the first place alone, and each that follows up to twice as
    large: the first cells are known early, in the order of `places`.
    """
    # 1. Every cell begins as the base run [places, layers, *heads, S, K, A]: what is not run is it.
    grids = []
    for plan in plans:
        heads = (plan.heads,) if plan.heads else ()
        grids.append(base.expand(len(places), len(plan.windows), *heads, *base.shape).clone())
    # 2. The cells that can differ. Of each only the positions that can: rows end where the last one
    #    read does (`engine.length`). A cell without positions is run all the same.
    kept = [tuple(p for p in at if same_before <= p < engine.length) for at in places]
    todo = [i for i, at in enumerate(places) if kept[i] or not at]
    cells = [(i, sample) for i in todo for sample in range(len(base))]
    # 3. As many cells as fit into memory are a batch [B, L], which every plan runs: the layers and
    #    windows of a part are runs of the same batch.
    room = _Room(engine, memory)
    start, most = 0, len(cells) if watch is None else len(base)
    while start < len(cells):
        count = room.fit([kept[i] for i, _ in cells[start : start + most]])
        chunk = cells[start : start + count]
        batches = _Batches([(kept[i], sample) for i, sample in chunk], engine)
        pairs = torch.tensor(chunk, device=engine.device)
        try:
            for number, plan in enumerate(track_inside(plans)):
                grid = grids[number]
                for columns, head, rows, logp in _run(engine, plan, batches):
                    # 4. log p [B, K, A] of a window goes to its (place, sample) pairs, in every
                    #    column of the grid that the window fills.
                    at = pairs if rows is None else pairs[rows]
                    for column in columns:
                        cell = grid[:, column] if head is None else grid[:, column, head]
                        cell[at[:, 0], at[:, 1]] = logp
                        if watch is not None:
                            watch(number, column, head, at, logp)
        except RuntimeError as error:
            # 5. Memory ran out: the same cells again in smaller batches. What was written already
            #    is written again.
            room.halve(error, count)
            continue
        start, most = start + count, 2 * most
    return grids


class _Batches:
    """Cells that run together, which all plans share."""

    def __init__(self, cells: Sequence[PatchedCell], engine: Engine):
        self.whole = CellBatch(cells, engine)
        read = set(engine.reader.rows.tolist())
        near = [i for i, (positions, _) in enumerate(cells) if not positions or read & {*positions}]
        self.near_rows = None
        """The cells at rows that are read; None where all are."""
        if len(near) < len(cells):
            self.near_rows = torch.tensor(near, dtype=torch.long, device=engine.device)
            self.near = CellBatch([cells[row] for row in near], engine)


def _run(
    engine: Engine, plan: PartPlan, batches: _Batches
) -> Iterator[tuple[list[int], int | None, Tensor | None, Tensor]]:
    """(columns, head, rows, log p) of everything that is run of a part; rows None: all cells."""
    for trunk in plan.trunks:
        batch, rows = batches.whole, None
        is_last = trunk.start == engine.layers - 1 and plan.part not in PROJECTED
        if is_last and engine.is_local and batches.near_rows is not None:
            # Above the last layer's attention nothing moves between positions.
            batch, rows = batches.near, batches.near_rows
            if not len(rows):
                continue
        for head in range(plan.heads) if plan.heads else (None,):
            for stop, logp in engine.run(batch, plan, trunk, head or 0):
                yield plan.columns_of((trunk.start, stop)), head, rows, logp


class _Room:
    """How many cells fit into a batch; fewer after memory ran out once."""

    def __init__(self, engine: Engine, memory: int | None):
        self.engine = engine
        if memory is None:
            self.budget = DEFAULT_MEMORY[engine.device.type]
        else:
            self.budget = memory - engine.base.bytes - engine.source.bytes
        self.most: int | None = None
        dtype = engine.base.entering[0].dtype
        self.active, self.dense = count_batch_bytes(engine.net.config, dtype.itemsize)

    def fit(self, cells: Sequence[tuple[int, ...]]) -> int:
        """How many of the next cells make up a batch, at least one."""
        need = count = 0
        for positions in cells if self.most is None else cells[: self.most]:
            first = min(positions, default=0) if self.engine.causal else 0
            length = self.engine.length
            need += self.active * (length - first) + self.dense * length
            if need > self.budget and count:
                break
            count += 1
        return count

    def halve(self, error: RuntimeError, count: int) -> None:
        """Go on with half the batch when memory ran out; anything else is raised again."""
        if not ran_out_of_memory(error):
            raise error
        if count == 1:
            raise UserError(
                f"memory ran out on {self.engine.device} for a single restored run of "
                f"{self.engine.length} tokens: use a smaller dtype, a shorter text or "
                "another device."
            ) from error
        self.most = count // 2
        if self.engine.device.type == "cuda":
            torch.cuda.empty_cache()


def count_batch_bytes(config: NetConfig, bytes_per_number: int) -> tuple[int, int]:
    """Bytes that a batch needs at its worst, per active position and per position of a row."""
    heads = (config.heads + 2 * config.kv) * config.head_dim
    active = 8 * config.width + 3 * config.widest_mlp + 2 * heads
    dense = heads + 2 * config.heads * config.head_dim
    return active * bytes_per_number, dense * bytes_per_number

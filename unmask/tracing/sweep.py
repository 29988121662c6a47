"""Sweeps: all cells of a part, in batches that fit into memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.base.errors import UserError, suggest
from unmask.net.config import NetConfig
from unmask.tracing.engine import Batch, Engine, Hold, Part
from unmask.tracing.windows import Trunk, find_trunks, window_of

PARTS = ("resid", "mlp", "attn", "attn_z", "embed")
DEFAULT_MEMORY = {"cpu": 2**28, "cuda": 2**32, "mps": 2**31}
"""Bytes of a batch where no bound was given; a processor's caches like small ones."""

Cell = tuple[tuple[int, ...], int]
"""Patched places, and the noise sample they are patched in."""


@dataclass(frozen=True)
class Job:
    """One part of a trace: which runs give which layers of its grid."""

    part: Part
    trunks: list[Trunk]
    layers_of: dict[tuple[int, int], list[int]]
    """Columns of the grid that a window [start, stop) fills."""
    columns: int
    hold: Hold | None = None
    heads: int = 0
    """Heads that are restored one by one; 0: the part is restored whole."""


def plan(engine: Engine, part: str, window: int, severed: str | None = None) -> Job:
    """What has to be run for a part; equal windows of several layers are run once."""
    if part not in PARTS:
        raise UserError(f"part {part!r} is unknown: {suggest(part, PARTS)}")
    layers = engine.layers
    if part == "embed":
        return Job("embed", [Trunk(-1, (0,))], {(-1, 0): [0]}, 1)
    if part == "resid" and severed is not None:
        # Every later addition of the severed part stays as in the base run.
        windows = [(layer, layers) for layer in range(layers)]
        hold = Hold(cast(Literal["mlp", "attn"], severed), engine.base)
    else:
        width = window if part in ("mlp", "attn") else 1
        windows = [window_of(layer, width, layers) for layer in range(layers)]
        kept = cast(Literal["mlp", "attn"], part)
        hold = Hold(kept, engine.source) if part in ("mlp", "attn") else None
    layers_of: dict[tuple[int, int], list[int]] = {}
    for layer, window_layers in enumerate(windows):
        layers_of.setdefault(window_layers, []).append(layer)
    heads = engine.net.config.heads if part == "attn_z" else 0
    return Job(cast(Part, part), find_trunks(windows), layers_of, layers, hold, heads)


def sweep(
    engine: Engine,
    jobs: Sequence[Job],
    places: Sequence[tuple[int, ...]],
    base: Float[Tensor, "S K A"],
    memory: int | None = None,
    same_before: int = 0,
) -> list[Float[Tensor, "place layer *head S K A"]]:
    """log p of the targets for every place, layer and noise sample of each job.

    Cells that cannot change anything are not run: they are the base run to the last bit. That is
    so for places after the rows that are read and, in a causal network, for places before
    `same_before`, the first one where base and source differ.
    """
    samples = base.shape[0]
    # 1. Every cell begins as the base run [places, layers, S, K, A]: what is not run is it.
    grids = [_fill(job, len(places), base) for job in jobs]
    # 2. The cells that can differ. Of each only the places that can: rows end where the last one
    #    read does (`engine.length`). A cell that was asked for without places is run all the same.
    kept = [tuple(p for p in at if same_before <= p < engine.length) for at in places]
    todo = [i for i, at in enumerate(places) if kept[i] or not at]
    cells = [(i, sample) for i in todo for sample in range(samples)]
    # 3. As many cells as fit into memory are a batch [B, L], which every job runs: the layers and
    #    windows of a job are runs of the same batch.
    room = _Room(engine, memory)
    start = 0
    while start < len(cells):
        count = room.fit([kept[i] for i, _ in cells[start:]])
        chunk = cells[start : start + count]
        try:
            for job, grid in zip(jobs, grids, strict=True):
                for columns, head, rows, logp in _run(
                    engine, job, [(kept[i], s) for i, s in chunk]
                ):
                    # 4. log p [B, K, A] of a window goes to its (place, sample) pairs, in every
                    #    column of the grid that the window fills.
                    at = torch.tensor([chunk[row] for row in rows], device=grid.device)
                    for column in columns:
                        cell = grid[:, column] if head is None else grid[:, column, head]
                        cell[at[:, 0], at[:, 1]] = logp
        except RuntimeError as error:
            # 5. Memory ran out: the same cells again in smaller batches. What was written already
            #    is written again.
            room.halve(error, count)
            continue
        start += count
    return grids


def _run(
    engine: Engine, job: Job, cells: Sequence[Cell]
) -> Iterator[tuple[list[int], int | None, list[int], Tensor]]:
    """(columns, head, rows, log p) of everything a job runs for a batch of cells."""
    everything = list(range(len(cells)))
    batch = Batch(cells, engine.length, engine)
    read = set(engine.reading.rows.tolist())
    near = [row for row, (places, _) in enumerate(cells) if not places or read & set(places)]
    for trunk in job.trunks:
        rows = everything
        if trunk.start == engine.layers - 1 and len(near) < len(cells):
            # Above the last layer's attention nothing moves between places.
            rows = near
            if not near:
                continue
        now = (
            batch if rows is everything else Batch([cells[r] for r in rows], engine.length, engine)
        )
        for head in range(job.heads) if job.heads else (None,):
            for stop, logp in engine.run(now, job.part, trunk, job.hold, head or 0):
                yield job.layers_of[trunk.start, stop], head, rows, logp


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
        for places in cells if self.most is None else cells[: self.most]:
            first = min(places, default=0) if self.engine.causal else 0
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


def ran_out_of_memory(error: RuntimeError) -> bool:
    """Whether that is what happened; on a processor torch has no error of its own for it."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def count_batch_bytes(config: NetConfig, bytes_per_number: int) -> tuple[int, int]:
    """Bytes that a batch needs at its worst, for each active place and for each place of a row."""
    heads = (config.heads + 2 * config.kv) * config.head_dim
    active = 8 * config.width + 3 * config.mlp_width + 2 * heads
    dense = heads + 2 * config.heads * config.head_dim
    return active * bytes_per_number, dense * bytes_per_number


def _fill(job: Job, places: int, base: Float[Tensor, "S K A"]) -> Tensor:
    heads = (job.heads,) if job.heads else ()
    return base.expand(places, job.columns, *heads, *base.shape).clone()

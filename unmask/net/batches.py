"""Batches that size themselves: as many rows as the free memory holds, fewer where it did not."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from unmask.base.devices import free_bytes
from unmask.base.errors import UserError
from unmask.base.progress import count_inside
from unmask.net.counts import count_cache_bytes
from unmask.net.model import Model

T = TypeVar("T")
R = TypeVar("R")

_SHARE = 0.6
"""The share of the free memory that is counted on; the rest is for what is not counted."""
_MOST_ON_CPU = 64
"""Rows; more of them run no faster there and show less progress."""
_UNKNOWN = 32
"""Rows where a system does not tell its memory."""
_WORKING_BYTES = 40
"""Float64 logits, their mixture, their logarithms and a copy, for each entry."""


def count_row_bytes(model: Model, length: int, num_logits: int, passes: int = 1) -> int:
    """Bytes that one row of a batch needs at its worst, with logits at `num_logits` positions.

    A guided step is two `passes` over the same row.
    """
    config, itemsize = model.net.config, model.net.embedding.weight.dtype.itemsize
    stream = length * (8 * config.width + 4 * config.widest_mlp) * itemsize
    if config.causal:
        stream += count_cache_bytes(config, 1, length, itemsize)
    logits = num_logits * config.logit_rows * (itemsize * passes + _WORKING_BYTES)
    return passes * stream + logits


def fit_rows(model: Model, bytes_per_row: int) -> int:
    """How many rows of that size a batch may have on the model's device, at least one."""
    free = free_bytes(model.device)
    rows = _UNKNOWN if free is None else max(1, int(_SHARE * free) // bytes_per_row)
    return min(rows, _MOST_ON_CPU) if model.device.type == "cpu" else rows


def map_batches(
    items: Sequence[T], rows: int, call: Callable[[Sequence[T]], Sequence[R]]
) -> Iterator[tuple[Sequence[T], Sequence[R]]]:
    """Each batch of at most `rows` items with what `call` made of it.

    A batch that does not fit into memory is halved, and so are those after it.
    """
    start = 0
    with count_inside(len(items)) as begin:
        while start < len(items):
            batch = items[start : start + rows]
            begin(start, len(batch))
            try:
                results = call(batch)
            except RuntimeError as error:
                if not ran_out_of_memory(error):
                    raise
                rows = len(batch) // 2
                results = None
            if results is None:  # outside of the handler, which keeps the failed call's tensors
                if rows == 0:
                    raise UserError(
                        "not even one row fits into the device's memory: use a smaller dtype "
                        "(--dtype bfloat16), a shorter --length, or another --device."
                    )
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                continue
            yield batch, results
            start += len(batch)


def ran_out_of_memory(error: RuntimeError) -> bool:
    """Whether that is what happened; on a processor torch has no error of its own for it."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)

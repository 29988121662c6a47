"""Operations and bytes of training, and what the chip could do at most."""

import time
from functools import cache

import torch

from unmask.net.config import NetConfig
from unmask.net.counts import count_flops, count_parameters
from unmask.objectives.cross_entropy import CHUNK
from unmask.training.recipe import Recipe


def count_training_flops(config: NetConfig, length: int) -> float:
    """Operations of a training step, a token: 6 (N + head) + 12 layers D L, N the layers' matrices.

    The head is counted at every position, also where a loss needs only some: what is compared are
    tokens learned from.
    """
    return 3 * count_flops(config, length) / length


@cache
def measure_peak(
    device: torch.device, dtype: torch.dtype, size: int | None = None, seconds: float = 0.3
) -> float:
    """Operations a second of square matrix products of that size, the best of some: the ceiling.

    Measured once a process.
    """
    size = size or (8192 if device.type == "cuda" else 1024)
    a, b = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))
    best, end = float("inf"), time.perf_counter() + seconds
    for round_ in range(1000):
        wait_for(device)
        start = time.perf_counter()
        a @ b
        wait_for(device)
        if round_ > 0:  # the first one sets things up
            best = min(best, time.perf_counter() - start)
        if round_ > 1 and time.perf_counter() > end:
            break
    return 2 * size**3 / best


def wait_for(device: torch.device) -> None:
    """Until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def estimate_bytes(config: NetConfig, recipe: Recipe, rows: int, short: bool) -> dict[str, int]:
    """About how much memory training needs on one device, by what it is for.

    `rows` is the micro-batch; `short` whether products are in 16 bits. Activations are what the
    backward pass needs of every layer; compiled code keeps somewhat less.
    """
    parameters = count_parameters(config).total
    moments = 8 * parameters
    width = 2 if short else 4
    tokens = rows * recipe.data.context
    qkv = (config.heads + 2 * config.kv) * config.head_dim
    # Two streams and their norms, queries to values, mixture, gate, up and their product.
    layer = 8 * config.width + width * (3 * config.width + qkv + 3 * config.mlp_width)
    kept = 4 * config.width if recipe.machine.recompute else layer
    once = layer if recipe.machine.recompute else 0
    logits = min(tokens, CHUNK) * config.logit_rows * (width + 4)
    return {
        "weights": 4 * parameters + (2 * parameters if short else 0),
        "gradients": 4 * parameters,
        "optimiser": moments + (4 * parameters if recipe.optimiser.ema is not None else 0),
        "activations": tokens * (config.layers * kept + once),
        "logits": logits + 4 * config.logit_rows * config.width,
    }


def suggest_micro(config: NetConfig, recipe: Recipe, short: bool, room: int) -> int | None:
    """The most rows a forward pass may have in that much memory; None where not even one fits."""
    fits = [
        rows
        for rows in range(1, recipe.batch.rows + 1)
        if recipe.batch.rows % rows == 0
        and sum(estimate_bytes(config, recipe, rows, short).values()) <= room
    ]
    return max(fits, default=None)

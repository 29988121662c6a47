"""Operations and bytes of training, and what the chip could do at most."""

import time
from functools import cache
from math import isqrt

import torch

from unmask.net.config import NetConfig
from unmask.net.counts import count_flops, count_parameters, list_matrices
from unmask.objectives.cross_entropy import CHUNK
from unmask.training.recipe import Recipe


def count_training_flops(config: NetConfig, length: int, passes: int = 3) -> float:
    """Operations of a training step, a token: 6 (N + head) + 12 layers D L, N the layers' matrices.

    That is three forward passes; some recipes take more (`Recipe.passes`). The head is counted at
    every position, also where a loss needs only some: what is compared are tokens learned from.
    """
    return passes * count_flops(config, length) / length


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
    parameters = count_parameters(config).total + _count_adapters(config, recipe)
    learned = _count_trained(config, recipe)
    # AdamW has two moments of every number, Muon one of the layers' matrices.
    moments = 8 * learned - 4 * _count_muons(config, recipe)
    width = 2 if short else 4
    tokens = rows * recipe.input_length * recipe.readings * recipe.copies
    qkv = (config.heads + 2 * config.kv) * config.head_dim
    # Two streams and their norms, queries to values, mixture, gate, up and their product.
    layer = 8 * config.width + width * (3 * config.width + qkv + 3 * config.widest_mlp)
    kept = 4 * config.width if recipe.machine.recompute else layer
    once = layer if recipe.machine.recompute else 0
    logits = min(tokens, CHUNK) * config.logit_rows * (width + 4)
    has_start = recipe.objective.anchored or recipe.copies > 1
    if has_start:  # of the network and of its start, not in chunks
        logits = tokens * config.logit_rows * 4 * 4
    head = 0 if recipe.start.lora_rank is not None else 4 * config.logit_rows * config.width
    return {
        "weights": 4 * parameters * (1 + has_start) + (2 * parameters if short else 0),
        "gradients": 4 * learned,
        "optimiser": moments + (4 * learned if recipe.optimiser.ema is not None else 0),
        "activations": tokens * (config.layers * kept + once),
        "logits": logits + head,
    }


def _count_trained(config: NetConfig, recipe: Recipe) -> int:
    """How many numbers are trained: all of the network's, or those of its adapters."""
    if recipe.start.lora_rank is not None:
        return _count_adapters(config, recipe)
    parts = count_parameters(config)
    is_unreached = recipe.paradigm.noises_vectors and not config.tied
    left_out = {"embedding"} if is_unreached else set()
    left_out |= set(recipe.optimiser.frozen)
    if config.tied and left_out:
        return parts.total - parts.embedding
    return parts.total - sum(getattr(parts, name) for name in left_out)


def _count_adapters(config: NetConfig, recipe: Recipe) -> int:
    rank = recipe.start.lora_rank or 0
    return config.layers * rank * sum(sum(shape) for shape in list_matrices(config))


def _count_muons(config: NetConfig, recipe: Recipe) -> int:
    """Numbers that Muon takes care of."""
    if recipe.optimiser.name != "muon":
        return 0
    if recipe.start.lora_rank is not None:
        return _count_adapters(config, recipe)
    return config.layers * sum(rows * columns for rows, columns in list_matrices(config))


def advise_on_memory(recipe: Recipe, micro: int, rows: int) -> str:
    """What to try where `micro` of a process's `rows` at once were too many."""
    smaller = [number for number in _list_divisors(rows) if number < micro]
    advice = [f"try batch.micro={max(smaller)}"] if smaller else []
    if not recipe.machine.recompute:
        advice.append("machine.recompute=true" if smaller else "try machine.recompute=true")
    return ", or ".join(advice) or "use a smaller network or a shorter data.context"


def suggest_micro(config: NetConfig, recipe: Recipe, short: bool, room: int) -> int | None:
    """The most rows a forward pass may have in that much memory; None where not even one fits."""
    fits = [
        rows
        for rows in _list_divisors(recipe.batch.rows)
        if sum(estimate_bytes(config, recipe, rows, short).values()) <= room
    ]
    return max(fits, default=None)


def _list_divisors(number: int) -> list[int]:
    """All of them; not by trying every smaller number, since a batch may have millions of rows."""
    small = [each for each in range(1, isqrt(number) + 1) if number % each == 0]
    return [*small, *(number // each for each in small)]

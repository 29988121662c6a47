"""Which layers are looked into: given, all, the middle one, or the one that tracing points to."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from unmask.base.errors import UserError

Reason = Literal["given", "trace", "middle"]
"""Why a layer was chosen."""


def choose_layers(
    model: str, num_layers: int, text: str, traced: int | None = None
) -> tuple[tuple[int, ...], Reason]:
    """The layers that `auto`, `all`, `3` or `0,1,2` mean, and why they were chosen.

    `auto` is the `traced` layer, or the middle one. `all` leaves the last layer out: what it adds
    at a subject is read by no later layer.
    """
    if text == "auto" and traced is not None:
        return (traced,), "trace"
    if text == "auto":
        return (max(0, min(num_layers // 2, num_layers - 2)),), "middle"
    if text == "all" and num_layers == 1:
        raise UserError(
            f"{model} has one layer, and `all` leaves the last one out: use a model with more "
            "layers, or give layer 0."
        )
    if text == "all":
        return tuple(range(num_layers - 1)), "given"
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise UserError(f"layer {text!r} cannot be read: expected auto, all, 3, or 0,1,2.")
    chosen = tuple(sorted({int(word) for word in words}))
    if chosen[-1] >= num_layers:
        raise UserError(
            f"layer {chosen[-1]} is out of range: {model} has layers 0 to {num_layers - 1}."
        )
    return chosen, "given"


def find_traced_layer(
    averages: Iterable[Mapping[str, Any]], model: str, num_layers: int
) -> int | None:
    """The layer, the last left out, whose MLP does most at the last subject token, on average.

    `averages` are those of a run of `unmask trace`; None where they say nothing about this model's
    MLPs. Ways of asking and steps weigh alike; windows of several layers count for the layer in
    their middle, as tracing names them.
    """
    from unmask.tracing.table import RESULT

    effects: dict[int, list[float]] = defaultdict(list)
    for row in averages:
        cell = (row["part"], row["role"], row["control"], row["model"])
        # What the last layer adds at a subject is read by no later layer.
        if cell == ("mlp", "last subject", RESULT, model) and row["layer"] < num_layers - 1:
            effects[row["layer"]].append(row["mean"])
    if not effects:
        return None
    return max(effects, key=lambda layer: sum(effects[layer]) / len(effects[layer]))

"""Which layers are looked into: given, all, the middle one, or the one that tracing points to."""

from collections import defaultdict
from pathlib import Path

from unmask.base.errors import UserError
from unmask.base.tables import read_table
from unmask.net.model import Model
from unmask.representation.states import check_layer
from unmask.tracing.averages import SCHEMA
from unmask.tracing.table import RESULT


def choose_layers(
    model: Model, text: str, trace: Path | None = None
) -> tuple[tuple[int, ...], str]:
    """The layers that `auto`, `all`, `3` or `0,1,2` mean, and why they were chosen, in words.

    `all` leaves the last one out: what it adds at a subject is read by nobody.
    """
    layers = model.net.config.layers
    if trace is not None and text != "auto":
        raise UserError(f"layer {text} was given and a trace to choose by: leave one of them out.")
    if text == "all":
        if layers == 1:
            raise UserError(
                f"{model.name} has one layer, and `all` leaves the last one out: use a model with "
                "more layers, or give layer 0."
            )
        return tuple(range(layers - 1)), f"layers 0 to {layers - 2}, all but the last"
    if text == "auto":
        if trace is None:
            middle = max(0, min(layers // 2, layers - 2))
            return (middle,), f"layer {middle}, the middle one: no trace was given"
        layer = find_traced_layer(trace, model)
        return (
            layer,
        ), f"layer {layer}, where restoring the MLP at the last subject token does most"
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise UserError(f"layer {text!r} cannot be read: expected auto, all, 3, or 0,1,2.")
    chosen = tuple(sorted({int(word) for word in words}))
    for layer in chosen:
        check_layer(model, layer)
    return chosen, f"layer{'s' * (len(chosen) > 1)} {', '.join(map(str, chosen))}, as given"


def find_traced_layer(run: Path, model: Model) -> int:
    """The layer, the last left out, whose MLP does most at the last subject token, on average.

    Directions, steps and what was trained weigh alike; windows of several layers count for the
    layer in their middle, as tracing names them.
    """
    effects: dict[int, list[float]] = defaultdict(list)
    for row in read_table(run / "averages.parquet", SCHEMA).to_pylist():
        wanted = (row["part"], row["role"], row["control"], row["kind"])
        # What the last layer adds at a subject is read by nobody.
        late = row["layer"] >= model.net.config.layers - 1
        if wanted == ("mlp", "last subject", RESULT, model.kind) and not late:
            effects[row["layer"]].append(row["mean"])
    if not effects:
        raise UserError(
            f"{run} holds no effects of MLPs at the last subject token of a {model.kind} model: "
            "trace this model with the part mlp, or give a layer."
        )
    layer = max(effects, key=lambda at: sum(effects[at]) / len(effects[at]))
    check_layer(model, layer)
    return layer

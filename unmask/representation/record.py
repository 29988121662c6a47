"""What a layer's MLP looks up and answers at chosen places of some rows."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.net.model import Model
from unmask.representation.states import Rows


@dataclass(frozen=True)
class LayerRecord:
    """One layer's run over some rows."""

    leaving: Float[Tensor, "R L D"]
    """The stream that leaves the layer."""
    key: Float[Tensor, "R F"]
    """`mlp_key` at each row's place."""
    value: Float[Tensor, "R D"]
    """`mlp_out` at each row's place."""


@torch.no_grad()
def record_layer(model: Model, rows: Rows, layer: int) -> LayerRecord:
    """Run the rows up to and through one layer."""
    model.net.taps.require_none("reading keys and values")
    net, at = model.net, torch.arange(len(rows.tokens), device=rows.tokens.device)
    sites = [f"layers.{layer}.{part}" for part in ("mlp_key", "mlp_out")]
    with net.capture(*sites) as taken:
        leaving = net.run_layers(net.embed(rows.tokens), 0, layer + 1)
    key, value = (taken[site][at, rows.place] for site in sites)
    return LayerRecord(leaving, key, value)

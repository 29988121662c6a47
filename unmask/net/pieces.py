"""A network cut over several devices by layers.

Embedding, last norm and head stay on the first device, its home, and so does everything that goes
from layer to layer when parts of the network are run: streams, keys and values, caches, records of
tracing. A layer whose weights lie elsewhere takes what it reads there and brings back what it makes
(`at_weights`); run whole, layers hand the stream on, and it comes home after the last one. So
whoever runs the network knows one device.
"""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from unmask.net.taps import keep_home

if TYPE_CHECKING:
    from unmask.net.transformer import Transformer

P = TypeVar("P", bound=Callable[..., Any])
PIECES = (
    "read",
    "attend",
    "score",
    "weigh",
    "attn_out",
    "after_attention",
    "mlp_key",
    "through_mlp",
    "run_mlp",
    "mlp_out",
    "after_mlp",
    "finish",
)
"""Methods of a block by which parts of a layer are run."""


def at_weights(piece: P) -> P:
    """A piece of a block that runs where the block's weights are, from home and back."""

    @wraps(piece)
    def run(block: Any, x: Tensor, *rest: Any, **more: Any) -> Any:
        away = block.elsewhere
        if away is None or x.device == away:
            return piece(block, x, *rest, **more)
        there = [_move(each, away, x.device) for each in rest]
        named = {name: _move(each, away, x.device) for name, each in more.items()}
        made = piece(block, x.to(away), *there, **named)
        if isinstance(made, tuple):
            return tuple(each.to(x.device) for each in made)
        return made.to(x.device)

    return cast("P", run)


def _move(given: Any, away: torch.device, home: torch.device) -> Any:
    """A tensor on the other device; taps act at home."""
    if isinstance(given, Tensor):
        return given.to(away)
    return keep_home(given, home) if callable(given) else given


def locate_layers(net: "Transformer") -> None:
    """Note in each block whether its weights lie on another device than the embedding."""
    home = net.embedding.weight.device
    for layer in range(net.config.layers):
        block = net.block(layer)
        own = next(block.parameters()).device
        block.elsewhere = None if own == home else own


def is_cut(net: "Transformer") -> bool:
    """Whether layers lie on several devices."""
    return any(net.block(layer).elsewhere is not None for layer in range(net.config.layers))

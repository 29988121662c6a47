"""Memory for a network's weights: on one device, or its layers on several (`unmask.net.pieces`)."""

import logging
from collections.abc import Sequence

import torch
from torch import nn

from unmask.base.devices import free_bytes, resolve_device, resolve_devices
from unmask.base.errors import UserError
from unmask.base.units import format_bytes
from unmask.net.blocks import Block
from unmask.net.pieces import locate_layers
from unmask.net.transformer import Transformer

_log = logging.getLogger(__name__)
_NOTICED_BYTES = 1 << 29
"""Weights of this size take a while to load."""
SHARE = 0.8
"""The share of a device's free memory that weights may take where a network is cut; the rest is
for activations."""


def choose_places(
    label: str, net: Transformer, device: str | torch.device, dtype: torch.dtype
) -> list[torch.device]:
    """The device of the embedding and the head, and then that of each layer.

    All on one device where that is named, or where it has room; several that are named get as many
    layers each. With "auto" what one GPU has no room for goes to the others and to the processor.
    """
    layers = [_count_bytes(net.block(i), dtype) for i in range(net.config.layers)]
    rest = _count_bytes(net, dtype) - sum(layers)
    if isinstance(device, str) and "," in device:
        devices = resolve_devices(device)
        places = [devices[0], *split_evenly(len(layers), devices)]
    else:
        target, gpus = resolve_device(device), torch.cuda.device_count()
        places = [target] * (1 + len(layers))
        free = free_bytes(target)
        if device == "auto" and gpus and free is not None and free < rest + sum(layers):
            devices = [*(torch.device("cuda", i) for i in range(gpus)), torch.device("cpu")]
            places = [devices[0], *spread_layers(layers, rest, devices)]
    if net.config.adaln is not None and len(set(places)) > 1:
        raise UserError(f"{label} is told the time in every layer: load it on one device.")
    _check_room(label, [rest, *layers], places, dtype)
    return places


def _count_bytes(module: nn.Module, dtype: torch.dtype) -> int:
    return sum(parameter.numel() for parameter in module.parameters()) * dtype.itemsize


def spread_layers(
    layer_bytes: Sequence[int],
    rest: int,
    devices: Sequence[torch.device],
    free: Sequence[int | None] | None = None,
) -> list[torch.device]:
    """The device of each layer: as many as fit on the first, beside the `rest`, and so on.

    `free` are bytes of each device, by default what it says itself. The last one takes what is
    left, whether or not it has the room.
    """
    free = [free_bytes(device) for device in devices] if free is None else free
    rooms = [int(SHARE * (room or 0)) for room in free]
    rooms[0] -= rest
    places, at = list[torch.device](), 0
    for needed in layer_bytes:
        while rooms[at] < needed and at < len(devices) - 1:
            at += 1
        rooms[at] -= needed
        places.append(devices[at])
    return places


def split_evenly(layers: int, devices: Sequence[torch.device]) -> list[torch.device]:
    """The device of each layer, each device having as many as any other, or one less."""
    return [devices[layer * len(devices) // layers] for layer in range(layers)]


def _check_room(
    label: str, sizes: Sequence[int], places: Sequence[torch.device], dtype: torch.dtype
) -> None:
    """Log how much memory the weights need, and refuse where they cannot fit."""
    for device in dict.fromkeys(places):
        pairs = zip(sizes, places, strict=True)
        needed, free = sum(size for size, place in pairs if place == device), free_bytes(device)
        amounts = f"{format_bytes(needed)} in {str(dtype).removeprefix('torch.')} on {device}"
        if free is not None:
            amounts += f", {format_bytes(free)} are free"
        # A small model is there at once: nobody waits for it.
        level = logging.INFO if needed > _NOTICED_BYTES else logging.DEBUG
        _log.log(level, "loading %s: %s", label, amounts)
        if free is not None and needed > free:
            raise UserError(
                f"{label} does not fit: it needs {amounts}; choose a smaller dtype or another "
                "device, or cut it over several, such as device='cuda:0,cuda:1,cpu'."
            )


def allocate(net: Transformer, places: Sequence[torch.device], dtype: torch.dtype) -> None:
    """Give the weights of a network their memory, but no values yet."""
    where = {net.block(i): place for i, place in enumerate(places[1:])}

    def fill(module: nn.Module, device: torch.device) -> None:
        device = where.get(module, device) if isinstance(module, Block) else device
        for name, parameter in module.named_parameters(recurse=False):
            empty = torch.empty(parameter.shape, device=device, dtype=dtype)
            setattr(module, name, nn.Parameter(empty, requires_grad=False))
        for child in module.children():
            fill(child, device)

    fill(net, places[0])
    net.tie_head()
    locate_layers(net)
    net.eval()

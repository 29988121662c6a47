"""This project's own format: the Hugging Face layout, with our settings and names."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, get_args

import torch

from unmask.base.config import SettingsError, build
from unmask.base.errors import UserError
from unmask.net.config import NetConfig
from unmask.net.dialects.dialect import Dialect, Source, Wire
from unmask.net.model import Blueprint, Kind
from unmask.net.transformer import Transformer

FORMAT = 1


def _read(source: Source) -> Blueprint:
    config = source.config
    if config.get("format") != FORMAT:
        raise UserError(
            f"{source.label} has model format {config.get('format')!r}, expected {FORMAT}: "
            "convert it with the version that wrote it, or make it anew."
        )
    problems = [f"{key!r} is missing" for key in ("kind", "network") if key not in config]
    kind = config.get("kind")
    if kind is not None and kind not in get_args(Kind):
        problems.append(f"'kind' is {kind!r}, expected one of {', '.join(get_args(Kind))}")
    if problems:
        raise SettingsError(source.label, problems)
    network = build(NetConfig, config["network"], source.label)
    return Blueprint(network, config["kind"], config.get("mask_id"), config.get("shift", False))


def _write(blueprint: Blueprint) -> dict[str, Any]:
    return {
        "model_type": "unmask",
        "format": FORMAT,
        "kind": blueprint.kind,
        "mask_id": blueprint.mask_id,
        "shift": blueprint.shift,
        "network": asdict(blueprint.config),
    }


def _wire(config: NetConfig) -> Iterator[Wire]:
    with torch.device("meta"):
        net = Transformer(config, seed=None)
    for name, _ in net.named_parameters():  # a tied head is listed once, as the embedding
        yield Wire(name, name)


DIALECT = Dialect(
    name="unmask",
    recognise=lambda source: source.config.get("model_type") == "unmask",
    read=_read,
    wire=_wire,
    write=_write,
)

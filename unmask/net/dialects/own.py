"""This project's own format: the Hugging Face layout, with our settings and names."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from unmask.base.config import build
from unmask.base.errors import UserError
from unmask.base.plugins import name_plugins, require_plugins
from unmask.base.reading import read_json_object
from unmask.net.config import NetConfig
from unmask.net.dialects.dialect import Dialect, Source, TensorMap
from unmask.net.dialects.names import list_parameters
from unmask.net.model import Blueprint
from unmask.net.paradigm import Kind
from unmask.noise.settings import NoiseConfig

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class _ConfigRecord:
    """What `config.json` says."""

    model_type: str
    format: int
    kind: Kind
    mask_id: int | None
    shift: bool
    network: dict
    noise: dict = field(default_factory=dict)
    noises_beginning: bool = False
    plugins: dict = field(default_factory=dict)
    """Packages whose noise or schedule it has, by kind and name."""


def read_settings(folder: Path) -> Blueprint:
    """What a model in this format is, from its settings alone: its weights need not be there."""
    file = folder / "config.json"
    return _read(Source(str(file), read_json_object(file), {}))


def _read(source: Source) -> Blueprint:
    config = source.config
    if config.get("format") != FORMAT:
        raise UserError(
            f"{source.label} has model format {config.get('format')!r}, expected {FORMAT}: "
            "convert it with the version that wrote it, or make it anew."
        )
    record = build(_ConfigRecord, config, source.label)
    require_plugins(record.plugins, source.label)
    network = build(NetConfig, record.network, source.label)
    noise = build(NoiseConfig, record.noise, source.label)
    own = (record.kind, record.mask_id, record.shift, noise, record.noises_beginning)
    return Blueprint(network, *own)


def _write(blueprint: Blueprint) -> dict[str, Any]:
    record = _ConfigRecord(
        model_type="unmask",
        format=FORMAT,
        kind=blueprint.kind,
        mask_id=blueprint.mask_id,
        shift=blueprint.shift,
        network=asdict(blueprint.config),
        noise=asdict(blueprint.noise),
        noises_beginning=blueprint.noises_beginning,
        plugins=name_plugins(blueprint.describe_plugins()),
    )
    # Settings of most models stay as they have always been.
    settings = asdict(record)
    for section, name in (
        (settings, "noises_beginning"),
        (settings, "plugins"),
        (settings["network"], "open_block"),
        (settings["noise"], "settings"),
    ):
        if not section[name]:
            del section[name]
    return settings


def _map_tensors(config: NetConfig) -> Iterator[TensorMap]:
    return (TensorMap(name, name) for name in list_parameters(config))


DIALECT = Dialect(
    name="unmask",
    about="this project's own: everything that a network here can be",
    recognise=lambda source: source.config.get("model_type") == "unmask",
    read=_read,
    map_tensors=_map_tensors,
    write=_write,
    says_kind=True,
)

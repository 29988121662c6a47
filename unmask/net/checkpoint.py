"""A network on disk: its settings as `config.json`, its weights as `model.safetensors`."""

from dataclasses import asdict
from pathlib import Path

from safetensors.torch import save_file

from unmask.base.files import create_folder, write_json
from unmask.net.transformer import Transformer


def save_network(net: Transformer, folder: str | Path) -> None:
    """Write the network as a new folder, whole or not at all."""
    weights = {name: tensor.contiguous() for name, tensor in net.state_dict().items()}
    if net.config.tied:
        del weights["head.weight"]
    with create_folder(folder) as draft:
        write_json(draft / "config.json", {"network": asdict(net.config)})
        save_file(weights, draft / "model.safetensors", {"format": "pt"})

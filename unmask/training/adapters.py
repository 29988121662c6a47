"""Low-rank adapters through `peft`: added to the layers' matrices, merged when a model is saved."""

from collections.abc import Mapping

import torch
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.extras import name_install
from unmask.net.transformer import Transformer

_MATRICES = r"layers\.\d+\.(attn\.(qkv|out)|mlp\.(gate|up|down))"
_NAME = "default"


def add_adapters(net: Transformer, rank: int, alpha: float, seed: int) -> None:
    """Freeze the network and add trainable matrices of that rank to all of its layers."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise UserError(
            f"start.lora_rank needs the package peft: {name_install('adapters')}, or train all "
            "weights."
        ) from None
    net.requires_grad_(False)
    # peft draws from the global generator: it is set for the moment and put back.
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=_MATRICES)  # ty: ignore
        inject_adapter_in_model(config, net, adapter_name=_NAME)


def merge_adapters(weights: Mapping[str, Tensor], alpha: float) -> dict[str, Tensor]:
    """Plain weights from those of a network with adapters: W + (alpha / rank) B A."""
    merged = {}
    for name, weight in weights.items():
        if ".lora_" in name:
            continue
        merged[name.replace(".base_layer", "")] = weight
        if name.endswith(".base_layer.weight"):
            module = name.removesuffix(".base_layer.weight")
            down = weights[f"{module}.lora_A.{_NAME}.weight"]
            up = weights[f"{module}.lora_B.{_NAME}.weight"]
            merged[f"{module}.weight"] = weight + alpha / len(down) * (up @ down)
    return merged

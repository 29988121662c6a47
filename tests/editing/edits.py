"""Edits made of random factors, for tests of what an edit is, not of what it says."""

import torch

from tests.conftest import KINDS
from unmask.editing.edit import Edit, Factors, digest_downs
from unmask.net.model import Model
from unmask.net.presets import preset

DENSE = [(name, kind) for name, kind in KINDS if preset(name).experts is None]
"""Edits are written into MLPs with one down projection."""


def make_edit(model: Model, *layers: int, facts: int = 2, seed: int = 0, size: float = 0.3) -> Edit:
    stream = torch.Generator().manual_seed(seed)
    config = model.net.config

    def draw(*shape: int) -> torch.Tensor:
        return size * torch.randn(*shape, generator=stream, dtype=torch.float64)

    factors = {
        layer: Factors(draw(config.width, facts), draw(facts, config.mlp_width)) for layer in layers
    }
    return Edit(factors, digest_downs(model, layers), {"seed": seed})


def copy_weights(model: Model) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.net.state_dict().items()}


def have_changed(model: Model, before: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, now in model.net.state_dict().items() if not now.equal(before[name])}

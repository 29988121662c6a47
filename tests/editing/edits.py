"""Edits made of random factors, for tests of what an edit is, not of what it says."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
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


@contextmanager
def fail_at_write(number: int, error: type[BaseException]) -> Iterator[None]:
    """Raise at this write into a tensor, counted from 1; the others go through."""
    genuine, writes = torch.Tensor.copy_, 0

    def copy(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        nonlocal writes
        writes += 1
        if writes == number:
            raise error
        return genuine(self, other)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.Tensor, "copy_", copy)
        yield

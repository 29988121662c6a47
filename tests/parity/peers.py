"""Networks of `transformers` with random weights, and what is loaded and saved of peers' files."""

from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file

import unmask
from unmask.net.model import Model


def fill(theirs: torch.nn.Module) -> None:
    """Give a peer's network weights that its logits show, and have it evaluate."""
    theirs.eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(3)
    for parameter in theirs.parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(0.15 * drawn if parameter.ndim > 1 else 1 + 0.3 * drawn)


def check_round_trip(
    model: Model, file: Path, out: Path, dialect: str, left_out: Iterable[str] = ()
) -> None:
    """Assert that a model is saved with the tensors of a peer's file, name by name.

    Names that hold one of `left_out` are not written.
    """
    unmask.save(model, out, dialect)
    before, after = load_file(file), load_file(out / "model.safetensors")
    before = {name: x for name, x in before.items() if not any(part in name for part in left_out)}
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)

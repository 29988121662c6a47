"""Encoders made by `transformers` with random weights, held against what is loaded of them."""

from pathlib import Path

import torch

import unmask

TOKENS = torch.randint(0, 300, (3, 40), generator=torch.Generator().manual_seed(5))


def fill(theirs: torch.nn.Module) -> None:
    """Give a peer's network weights that its logits show, and have it evaluate."""
    theirs.eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(3)
    for parameter in theirs.parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(0.15 * drawn if parameter.ndim > 1 else 1 + 0.3 * drawn)


def compare(theirs: torch.nn.Module, folder: Path) -> None:
    """Assert that the network in a folder has the peer's logits, of padded rows as well."""
    ours = unmask.load(folder, device="cpu", mask=299)
    expected = theirs(TOKENS).logits
    assert expected.std() > 0.5 and ours.kind == "masked"
    torch.testing.assert_close(ours.logits(TOKENS), expected, atol=1e-5, rtol=1e-5)
    real = torch.arange(40) < torch.tensor([40, 23, 3])[:, None]
    padded = theirs(TOKENS, attention_mask=real.long()).logits
    found = ours.logits(TOKENS, real)[real]
    torch.testing.assert_close(found, padded[real], atol=1e-5, rtol=1e-5)

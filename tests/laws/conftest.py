"""A small network and a batch of rows with prompts and filling, for the tests of objectives."""

import pytest
import torch

from tests.conftest import lively
from unmask.net.presets import preset
from unmask.net.transformer import Transformer
from unmask.objectives.batch import Batch

V, MASK = 40, 39
B, L = 6, 10


@pytest.fixture
def small() -> Transformer:
    return lively(preset("tiny", vocab_size=V)).requires_grad_()


@pytest.fixture
def causal() -> Transformer:
    return lively(preset("tiny", vocab_size=V, causal=True))


@pytest.fixture
def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, MASK, (B, L), generator=generator)
    prompt, length = torch.tensor([3, 1, 4, 2, 5, 3]), torch.tensor([9, 10, 7, 8, 10, 6])
    return Batch(tokens, prompt, length)


T = torch.linspace(0.15, 0.95, B, dtype=torch.float64)

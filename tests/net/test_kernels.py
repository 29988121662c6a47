"""Elementwise work on the device at hand: a GPU's own kernels where there is one, else torch."""

import pytest
import torch
from torch.nn import functional as F

from unmask.net.blocks import SwiGLU
from unmask.net.fused import fuses
from unmask.net.presets import preset
from unmask.net.rotary import rotate
from unmask.net.transformer import Transformer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.1}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("shape", "angles"),
    [
        ((3, 5, 7, 32), (5, 1, 32)),
        ((3, 5, 7, 32), (3, 5, 1, 32)),
        ((11, 7, 32), (11, 1, 32)),
        ((2, 3, 28, 128), (1, 3, 1, 128)),
        ((0, 7, 32), (0, 1, 32)),
    ],
)
def test_rotation_of_a_part_of_a_product(shape, angles, dtype):
    """Queries and keys lie beside the values; tables repeat over rows, or belong to each."""
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(*shape[:-2], 3 * shape[-2], shape[-1], generator=generator)
    x = whole.to(DEVICE, dtype)[..., : shape[-2], :]
    cos, sin = (torch.randn(angles, generator=generator).to(DEVICE, dtype) for _ in range(2))
    with torch.no_grad():
        assert fuses(x, cos, sin) == (DEVICE == "cuda")
        found = rotate(x, cos, sin)
    wanted = x.double() * cos.double() + x.double().roll(shape[-1] // 2, -1) * sin.double()
    assert found.dtype == dtype and found.shape == x.shape
    torch.testing.assert_close(found.double(), wanted, atol=TOLERANCE[dtype], rtol=0)


@torch.no_grad()
def test_gate():
    mlp = SwiGLU(preset("tiny")).to(DEVICE)
    for parameter in mlp.parameters():
        parameter.normal_(generator=torch.Generator(DEVICE).manual_seed(1))
    x = torch.linspace(-1, 1, 3 * mlp.gate.in_features, device=DEVICE).view(3, -1)
    wanted = F.silu(mlp.gate(x).double()) * mlp.up(x).double()
    torch.testing.assert_close(mlp(x).double(), wanted, atol=1e-4, rtol=1e-5)


def test_with_and_without_gradients_is_the_same_network():
    net = Transformer(preset("tiny")).to(DEVICE)
    tokens = torch.arange(24, device=DEVICE).view(2, 12)
    with torch.no_grad():
        plain = net(tokens)
    torch.testing.assert_close(net(tokens).detach(), plain, atol=1e-5, rtol=0)

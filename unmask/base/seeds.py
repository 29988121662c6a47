"""Independent random streams, each named: nothing draws from a global generator."""

import random
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derive_seed(seed: int, *names: object) -> int:
    """A 63-bit seed for the stream `names` under `seed`, the same on every machine."""
    text = repr((int(seed), *(str(name) for name in names)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def torch_stream(
    seed: int, *names: object, device: "torch.device | str" = "cpu"
) -> "torch.Generator":
    """A torch generator of its own for the stream `names`."""
    import torch

    return torch.Generator(device=device).manual_seed(derive_seed(seed, *names))


def python_stream(seed: int, *names: object) -> random.Random:
    """A Python generator of its own for the stream `names`."""
    return random.Random(derive_seed(seed, *names))

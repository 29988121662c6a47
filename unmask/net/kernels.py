"""Elementwise kernels for CUDA: one pass over memory where torch makes several.

Imported only where Triton and a GPU are at hand (`unmask.net.fused`). Sums are made in float32 and
rounded once.
"""

import torch
import triton  # ty: ignore[import-not-found]
import triton.language as tl  # ty: ignore[import-not-found]
from torch import Tensor

BLOCK = 1024


@triton.jit
def _rotate(
    x,
    cos,
    sin,
    out,
    token_stride,
    head_stride,
    rows,
    pairs,
    half: tl.constexpr,
    block: tl.constexpr,
):
    """One token a program: all pairs (j, j + half) of all its heads."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    inside = at < pairs
    head, j = at // half, at % half
    first = x + token * token_stride + head * head_stride + j
    angle = (token % rows) * 2 * half + j
    a = tl.load(first, inside).to(tl.float32)
    b = tl.load(first + half, inside).to(tl.float32)
    cos_a = tl.load(cos + angle, inside).to(tl.float32)
    cos_b = tl.load(cos + angle + half, inside).to(tl.float32)
    sin_a = tl.load(sin + angle, inside).to(tl.float32)
    sin_b = tl.load(sin + angle + half, inside).to(tl.float32)
    there = out + token * 2 * pairs + head * 2 * half + j
    tl.store(there, a * cos_a + b * sin_a, inside)
    tl.store(there + half, b * cos_b + a * sin_b, inside)


@triton.jit
def _gate(gate, up, out, number, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < number
    g = tl.load(gate + at, inside).to(tl.float32)
    u = tl.load(up + at, inside).to(tl.float32)
    tl.store(out + at, g * tl.sigmoid(g) * u, inside)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x` [*n, H, d] turned by the angles of its tokens; tables repeat over leading dimensions."""
    heads, width = x.shape[-2:]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    tokens, pairs = x.numel() // (heads * width), heads * width // 2
    if tokens:
        with torch.cuda.device_of(x):
            _rotate[(tokens,)](
                x, cos, sin, out, x.stride(-3), x.stride(-2), cos.numel() // width, pairs,
                half=width // 2, block=triton.next_power_of_2(pairs),
            )  # fmt: skip
    return out


def gate(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    out = torch.empty_like(up)
    if number := up.numel():
        with torch.cuda.device_of(up):
            _gate[(triton.cdiv(number, BLOCK),)](gate, up, out, number, block=BLOCK)
    return out

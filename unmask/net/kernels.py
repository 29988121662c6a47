"""Kernels for CUDA: one pass over memory where torch makes several.

Imported only where Triton and a GPU are at hand (`unmask.net.fused`). Sums are made in float32 and
rounded once.
"""

import math

import torch
import triton  # ty: ignore[import-not-found]
import triton.language as tl  # ty: ignore[import-not-found]
from torch import Tensor

BLOCK = 1024
LONGEST = 128
"""Tokens of the rows that `attend` takes."""


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


@triton.jit
def _norm(
    x,
    added,
    weight,
    total,
    out,
    number,
    width,
    eps,
    adds: tl.constexpr,
    rows: tl.constexpr,
    block: tl.constexpr,
):
    """Several rows a program: their norms, where it `adds` those of x + added."""
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)[:, None]
    column = tl.arange(0, block)[None, :]
    inside = (row < number) & (column < width)
    at = row * width + column
    values = tl.load(x + at, inside, 0.0).to(tl.float32)
    if adds:
        values += tl.load(added + at, inside, 0.0).to(tl.float32)
        # The norm is that of the sum as it is kept, rounded.
        rounded = values.to(total.dtype.element_ty)
        tl.store(total + at, rounded, inside)
        values = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 1) / width + eps)[:, None]
    by = tl.load(weight + column, column < width, 0.0).to(tl.float32)
    tl.store(out + at, values * scale * by, inside)


@triton.jit
def _attend(
    queries,
    keys,
    values,
    out,
    scale,
    num_queries,
    num_keys,
    heads,
    query_row,
    query_token,
    query_head,
    key_row,
    key_token,
    key_head,
    value_row,
    value_token,
    value_head,
    group: tl.constexpr,
    width: tl.constexpr,
    most_queries: tl.constexpr,
    most_keys: tl.constexpr,
    is_causal: tl.constexpr,
):
    """One head of one row a program, whose tokens are all held at once."""
    pair = tl.program_id(0)
    row, head = (pair // heads).to(tl.int64), pair % heads
    i = tl.arange(0, most_queries)[:, None]
    j = tl.arange(0, most_keys)
    part = tl.arange(0, width)
    q = tl.load(
        queries + row * query_row + head * query_head + i * query_token + part[None, :],
        i < num_queries,
        0.0,
    )
    there = (head // group) * key_head + j[None, :] * key_token + part[:, None]
    k = tl.load(keys + row * key_row + there, j[None, :] < num_keys, 0.0)
    scores = tl.dot(q, k) * scale  # in powers of two
    seen = j[None, :] < num_keys
    if is_causal:
        seen = seen & (j[None, :] <= i)
    scores = tl.where(seen, scores, float("-inf"))
    weights = tl.exp2(scores - tl.max(scores, 1)[:, None])
    there = (head // group) * value_head + j[:, None] * value_token + part[None, :]
    v = tl.load(values + row * value_row + there, j[:, None] < num_keys, 0.0)
    mixed = tl.dot(weights.to(v.dtype), v) / tl.sum(weights, 1)[:, None]
    there = ((row * num_queries + i) * heads + head) * width + part[None, :]
    tl.store(out + there, mixed, i < num_queries)


@triton.jit
def _cross_entropy(
    logits, targets, nll, stride, number, forbidden, learns: tl.constexpr, block: tl.constexpr
):
    """One row a program: its cross-entropy, then its gradient over its logits."""
    row = tl.program_id(0).to(tl.int64)
    start, target = logits + row * stride, tl.load(targets + row)
    # The largest logit so far, and the sum of exp(logit - largest).
    largest, total = tl.full((), -1e38, tl.float32), tl.full((), 0.0, tl.float32)
    for first in range(0, number, block):
        at = first + tl.arange(0, block)
        x = tl.load(start + at, at < number, float("-inf")).to(tl.float32)
        x = tl.where(at == forbidden, float("-inf"), x)
        higher = tl.maximum(largest, tl.max(x, 0))
        total = total * tl.exp(largest - higher) + tl.sum(tl.exp(x - higher), 0)
        largest = higher
    own = tl.load(start + target).to(tl.float32)
    own = tl.where(target == forbidden, float("-inf"), own)
    # In this order: at a sure target the first term is 0 and the second exact.
    loss = (largest - own) + tl.log(total)
    tl.store(nll + row, loss)
    if learns:
        # softmax - one-hot; at the target p - 1, which near a sure one is a series in -loss.
        series = -loss * (1 - loss * (0.5 - loss / 6))
        missing = tl.where(loss < 0.01, series, tl.exp(-loss) - 1)
        for first in range(0, stride, block):
            at = first + tl.arange(0, block)
            x = tl.load(start + at, at < number, float("-inf")).to(tl.float32)
            x = tl.where(at == forbidden, float("-inf"), x)
            p = tl.exp(x - largest) / total
            tl.store(start + at, tl.where(at == target, missing, p), at < stride)


@triton.jit
def _log_softmax(
    logits,
    banned,
    out,
    stride,
    without,
    number,
    strength,
    is_guided: tl.constexpr,
    writes: tl.constexpr,
    block: tl.constexpr,
):
    """One row a program: log p in float64, or of it the normaliser alone."""
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * stride
    # The largest logit so far, and the sum of exp(logit - largest).
    largest, total = tl.full((), -1e300, tl.float64), tl.full((), 0.0, tl.float64)
    for first in range(0, number, block):
        at = first + tl.arange(0, block)
        inside = (at < number) & (tl.load(banned + at, at < number, 1) == 0)
        x = tl.load(start + at, inside, float("-inf")).to(tl.float32)
        if is_guided:
            x += strength * (x - tl.load(start + without * stride + at, inside, 0.0).to(tl.float32))
        wide = x.to(tl.float64)
        higher = tl.maximum(largest, tl.max(wide, 0))
        total = total * tl.exp(largest - higher) + tl.sum(tl.exp(wide - higher), 0)
        largest = higher
    normaliser = largest + tl.log(total)
    if not writes:
        tl.store(out + row, normaliser)
    else:
        for first in range(0, number, block):
            at = first + tl.arange(0, block)
            inside = (at < number) & (tl.load(banned + at, at < number, 1) == 0)
            x = tl.load(start + at, inside, float("-inf")).to(tl.float32)
            if is_guided:
                other = tl.load(start + without * stride + at, inside, 0.0).to(tl.float32)
                x += strength * (x - other)
            tl.store(out + row * number + at, x.to(tl.float64) - normaliser, at < number)


def fused_rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
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


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x` [*n, D] divided by its root mean square, times the weight."""
    out = torch.empty_like(x)
    _run_norm(x, x, weight, out, out, eps, adds=False)
    return out


def fused_add_and_norm(
    x: Tensor, added: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """x + added [*n, D], and its norm: the bits of an addition and of `norm` after it."""
    total, out = torch.empty_like(x), torch.empty_like(x)
    _run_norm(x, added, weight, total, out, eps, adds=True)
    return total, out


def _run_norm(
    x: Tensor, added: Tensor, weight: Tensor, total: Tensor, out: Tensor, eps: float, adds: bool
) -> None:
    width = x.shape[-1]
    if number := x.numel() // width:
        block = triton.next_power_of_2(width)
        rows = max(1, 4096 // block)
        with torch.cuda.device_of(x):
            _norm[(triton.cdiv(number, rows),)](
                x, added, weight, total, out, number, width, eps, adds=adds, rows=rows, block=block
            )


def can_attend(queries: Tensor, keys: Tensor) -> bool:
    """Whether `attend` takes rows of these shapes: short ones, in 16 bits."""
    width = queries.shape[-1]
    most = max(queries.shape[1], keys.shape[1])
    return most <= LONGEST and width in (16, 32, 64, 128) and queries.element_size() == 2


def attend(queries: Tensor, keys: Tensor, values: Tensor, is_causal: bool) -> Tensor:
    """Attention of queries [B, n, H, d] to keys and values [B, N, h, d], numbers side by side."""
    rows, number, heads, width = queries.shape
    out = torch.empty((rows, number, heads, width), dtype=queries.dtype, device=queries.device)
    if rows:
        # A side of at least 16, which is what tensor cores multiply.
        most_queries, most_keys = (
            max(16, triton.next_power_of_2(x.shape[1])) for x in (queries, keys)
        )
        with torch.cuda.device_of(queries):
            _attend[(rows * heads,)](
                queries, keys, values, out, math.log2(math.e) / math.sqrt(width),
                number, keys.shape[1], heads,
                *queries.stride()[:3], *keys.stride()[:3], *values.stride()[:3],
                group=heads // keys.shape[2], width=width, most_queries=most_queries,
                most_keys=most_keys, is_causal=is_causal,
                num_warps=4 if max(most_queries, most_keys) <= 64 else 8,
            )  # fmt: skip
    return out


def cross_entropy(
    logits: Tensor, number: int, targets: Tensor, forbidden: int | None, learns: bool
) -> Tensor:
    """-log p of each row's target among its first `number` logits [N, V], in float32.

    Where it `learns`, the logits' memory holds their gradient afterwards, 0 after the first
    `number`. The `forbidden` one can never be predicted.
    """
    nll = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    if len(logits):
        with torch.cuda.device_of(logits):
            _cross_entropy[(len(logits),)](
                logits, targets, nll, logits.shape[1], number,
                -1 if forbidden is None else forbidden,
                learns=learns, block=4096, num_warps=8,
            )  # fmt: skip
    return nll


def fused_log_softmax(logits: Tensor, banned: Tensor, guidance: float = 0.0) -> Tensor:
    """log p [N, V] in float64 of logits [N, V], or with guidance of [2N, V], the guided half first.

    `banned` [V] is True for what has no probability.
    """
    rows = len(logits) // 2 if guidance else len(logits)
    out = torch.empty(rows, logits.shape[1], dtype=torch.float64, device=logits.device)
    _run_log_softmax(logits, banned, out, guidance, writes=True)
    return out


def logsumexp(logits: Tensor, banned: Tensor) -> Tensor:
    """The logarithm of the sum of exp(logits) [N], in float64, over what is not banned."""
    out = torch.empty(len(logits), dtype=torch.float64, device=logits.device)
    _run_log_softmax(logits, banned, out, 0.0, writes=False)
    return out


def _run_log_softmax(
    logits: Tensor, banned: Tensor, out: Tensor, guidance: float, writes: bool
) -> None:
    if len(out):
        with torch.cuda.device_of(logits):
            _log_softmax[(len(out),)](
                logits, banned, out, logits.stride(0), len(out), logits.shape[1], guidance,
                is_guided=guidance != 0, writes=writes, block=2048, num_warps=8,
            )  # fmt: skip

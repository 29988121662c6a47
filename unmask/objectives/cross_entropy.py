"""Cross-entropy and other terms of a linear head's logits without ever holding all of them.

Rows go through the head in chunks. The loss is a weighted sum of the rows' terms, so each chunk's
gradient is known as soon as its logits are: it is computed on the spot and the logits are dropped.
Memory is one chunk of logits instead of several copies of all of them.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from unmask.net.fused import fuses

CHUNK = 4096
ALIGNED = 8
"""Logits per row of products in 16 bits are a multiple of this."""


def weighted_cross_entropy(
    x: Float[Tensor, "N D"],
    head: Float[Tensor, "V D"],
    targets: Int[Tensor, "N"],
    weights: Float[Tensor, "N"],
    forbidden: int | None = None,
    chunk: int = CHUNK,
) -> tuple[Float[Tensor, ""], Float[Tensor, "N"]]:
    """The sum of weights times cross-entropies, and the cross-entropies themselves (no gradient).

    `forbidden` is a row of the head that can never be predicted. No gradient flows to `weights`.
    """

    def score(logits: Tensor, rows: slice, learns: bool) -> Tensor:
        return _score(logits, len(head), targets[rows], forbidden, learns)

    return _sum_chunks(x, head, weights, score, chunk, weighs=False)


def weighted_terms(
    x: Float[Tensor, "N D"],
    head: Float[Tensor, "V D"],
    weights: Float[Tensor, "N"],
    find: Callable[[Float[Tensor, "n V"], slice], Float[Tensor, "n"]],
    chunk: int = CHUNK,
) -> tuple[Float[Tensor, ""], Float[Tensor, "N"]]:
    """The sum of weights times terms, and the terms themselves (no gradient).

    `find` has the terms of some rows' logits, in float32 at least, and which rows these are.
    """

    def score(logits: Tensor, rows: slice, learns: bool) -> Tensor:
        own = logits[:, : len(head)]
        with torch.set_grad_enabled(learns):
            given = own.detach().to(nll_dtype(own)).requires_grad_(learns)
            terms = find(given, rows)
        if learns:
            own.copy_(torch.autograd.grad(terms, given, weights[rows].to(terms.dtype))[0])
            logits[:, len(head) :] = 0
        return terms.detach()

    return _sum_chunks(x, head, weights, score, chunk, weighs=True)


_Score = Callable[[Tensor, slice, bool], Tensor]
"""Logits, which rows they are of and whether to learn, to terms; logits become their gradient,
times the weights where it `weighs`."""


def _sum_chunks(
    x: Tensor, head: Tensor, weights: Tensor, score: _Score, chunk: int, weighs: bool
) -> tuple[Tensor, Tensor]:
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        x, head = x.to(dtype), head.to(dtype)
    settings = (score, chunk, weighs, torch.is_grad_enabled())
    return _WeightedSum.apply(x, head, weights.detach(), *settings)


def _score(
    logits: Float[Tensor, "n V"],
    number: int,
    targets: Int[Tensor, "n"],
    forbidden: int | None,
    learns: bool,
) -> Float[Tensor, "n"]:
    """-log p of the targets; where it `learns`, the logits become their gradient."""
    if fuses(logits) and nll_dtype(logits) == torch.float32:
        from unmask.net import kernels

        return kernels.cross_entropy(logits, number, targets, forbidden, learns)
    logits[:, number:] = -torch.inf
    if forbidden is not None:
        logits[:, forbidden] = -torch.inf
    at = targets[:, None]
    logp = logits.log_softmax(-1, dtype=nll_dtype(logits))
    nll = -logp.gather(-1, at)
    if learns:
        # At a sure target p - 1 is lost in a short dtype unless it is made from log p.
        grad = torch.exp(logp, out=logits)
        grad.scatter_(-1, at, torch.expm1(-nll).to(grad.dtype))
    return nll[:, 0]


def nll_dtype(x: Tensor) -> torch.dtype:
    """At least float32."""
    return torch.promote_types(x.dtype, torch.float32)


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        head: Tensor,
        weights: Tensor,
        score: _Score,
        chunk: int,
        weighs: bool,
        learning: bool,
    ) -> tuple[Tensor, Tensor]:
        # 1. Room for the terms [N], and for the gradients of x [N, D] and of the head [V, D].
        wants_x, wants_head = (learning and wanted for wanted in ctx.needs_input_grad[:2])
        num_logits = len(head)
        if x.element_size() == 2 and num_logits % ALIGNED:
            # Tensor cores take rows of 16 bytes: with an odd vocabulary the products are several
            # times slower. The rows added to the head can never be predicted.
            head = F.pad(head, (0, 0, 0, -num_logits % ALIGNED))
        nll = torch.empty(len(x), dtype=nll_dtype(x), device=x.device)
        grad_x = torch.empty_like(x) if wants_x else None
        grad_head = torch.zeros_like(head, dtype=nll.dtype) if wants_head else None
        # 2. The terms chunk by chunk: logits of all rows [N, V] would not fit into memory.
        for rows in (slice(i, i + chunk) for i in range(0, len(x), chunk)):
            logits = x[rows] @ head.T
            learns = wants_x or wants_head
            # d/dlogits, over the logits' memory; the weights are in it, or come in later, on the
            # rows of width D instead of V.
            nll[rows] = score(logits, rows, learns)
            if not learns:
                continue
            # 3. On through logits = x @ head.T, to [n, D] and [V, D].
            grad = logits
            weight = 1 if weighs else weights[rows, None].to(nll.dtype)
            if grad_x is not None:
                grad_x[rows] = ((grad @ head) * weight).to(x.dtype)
            if grad_head is not None:
                grad_head += grad.T @ (x[rows] * weight).to(x.dtype)
        if grad_head is not None:
            grad_head = grad_head[:num_logits].to(head.dtype)
        # 4. Backwards there is only a factor left to multiply them by.
        ctx.grads = (grad_x, grad_head)
        ctx.mark_non_differentiable(nll)
        return (nll * weights).sum(), nll

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        grad_loss = grad_outputs[0]
        grad_x, grad_head = ctx.grads
        scaled = (None if g is None else g * grad_loss.to(g.dtype) for g in (grad_x, grad_head))
        return (*scaled, None, None, None, None, None)

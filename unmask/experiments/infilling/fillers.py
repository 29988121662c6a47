"""How a gap in a text is filled: by masks that see both sides, or from left to right."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from unmask.net.batches import count_row_bytes, fit_rows, map_batches
from unmask.net.model import Model
from unmask.sampling.texts import infill, sample


@dataclass(frozen=True)
class Gap:
    """Texts with a gap in their middle."""

    rows: Int[Tensor, "B L"]
    size: int
    """Tokens of the gap."""

    @property
    def start(self) -> int:
        return (self.rows.shape[1] - self.size) // 2

    @property
    def stop(self) -> int:
        return self.start + self.size


Filled = tuple[Int[Tensor, "B G"], int]
"""The tokens that were put into the gaps, and the network calls for each."""


def fill_gap(
    model: Model,
    rows: Int[Tensor, "B L"],
    size: int,
    sees_after: bool,
    steps: int,
    candidates: int,
    seed: int = 0,
) -> Iterator[dict[str, float]]:
    """For each text how many of the gap's tokens came back, and what that took.

    Args:
        model: A masked diffusion model, or a causal one.
        rows: The texts.
        size: Tokens of the gap in their middle.
        sees_after: Whether the text after the gap is given, too.
        steps: Denoising steps of a masked model, at most one a token.
        candidates: Continuations that a causal model draws where it is given both sides.
        seed: Of these draws.
    """
    gap = Gap(rows, size)
    if model.paradigm.sampler == "causal":
        filled, calls = _choose(model, gap, candidates if sees_after else 0, seed)
    else:
        filled, calls = _unmask(model, gap, sees_after, min(steps, size))
    right = (filled == gap.rows[:, gap.start : gap.stop]).double()
    for row in right.tolist():
        yield {"right": sum(row) / size, "exact": float(all(row)), "calls": calls}


def _unmask(model: Model, gap: Gap, sees_after: bool, steps: int) -> Filled:
    """The gap un-masked at temperature 0, the likeliest tokens first.

    Where what comes after it is not given, that is masked and written with it, at the same pace.
    """
    assert model.mask_id is not None
    rows = gap.rows.clone()
    rows[:, gap.start : gap.stop if sees_after else None] = model.mask_id
    masks = int((rows[0] == model.mask_id).sum())
    steps = math.ceil(steps * masks / gap.size)
    drawn = infill(
        model, rows.tolist(), steps=steps, order="confidence", temperature=0.0, keep_states=False
    )
    return drawn.tokens[:, gap.start : gap.stop], drawn.calls


def fill_open_gap(
    model: Model, rows: Int[Tensor, "B L"], size: int, steps: int
) -> Iterator[dict[str, float]]:
    """For each text what a masked model puts into its gap if it is not told the gap's size.

    Masks stand from the text before up to the canvas's end, one gap more than are needed. The text
    after is put where the model finds it likeliest, what lies before it is the filling, and end
    tokens, or more text, come behind.
    """
    gap = Gap(rows, size)
    for row in rows.tolist():
        before, cut, after = row[: gap.start], row[gap.start : gap.stop], row[gap.stop :]
        length = len(row) + size
        drawn = sample(
            model, [before], length=length, require=[after], order="confidence", temperature=0.0,
            steps=math.ceil(min(steps, size) * (length - len(before)) / size),
            keep_states=False,
        )  # fmt: skip
        filled = _cut_before(drawn.tokens[0, gap.start :].tolist(), after)
        right = sum(a == b for a, b in zip(filled, cut, strict=False)) / size
        yield {"right": right, "exact": float(filled == cut), "calls": drawn.calls}


def _cut_before(tokens: list[int], after: list[int]) -> list[int]:
    """The tokens up to where the text after begins, for the first time."""
    starts = range(len(tokens) - len(after) + 1)
    return tokens[: next(i for i in starts if tokens[i : i + len(after)] == after)]


def _choose(model: Model, gap: Gap, candidates: int, seed: int) -> Filled:
    """The likeliest continuation of the text before the gap, token by token; and of some more that
    are drawn, the one with which the whole text is likeliest."""
    before = gap.rows[:, : gap.start].tolist()
    # 1. [B, G]: the continuation at temperature 0.
    likeliest = _continue(model, before, gap, 0.0, seed)
    if not candidates:
        return likeliest, gap.size
    # 2. [B, 1 + N, G]: and those that are drawn.
    copies = [row for row in before for _ in range(candidates)]
    drawn = _continue(model, copies, gap, 1.0, seed).view(len(before), candidates, -1)
    fills = torch.cat((likeliest[:, None], drawn), 1)
    # 3. [B, 1 + N]: what the whole text costs with each.
    rows = gap.rows[:, None].repeat(1, 1 + candidates, 1)
    rows[..., gap.start : gap.stop] = fills
    costs = _score(model, rows.flatten(0, 1), gap.start).view(len(before), -1)
    best = costs.argmin(-1)
    return fills[torch.arange(len(fills)), best], (gap.size + 1) * (1 + candidates)


def _continue(
    model: Model, before: list[list[int]], gap: Gap, temperature: float, seed: int
) -> Int[Tensor, "N G"]:
    """As many tokens after each text as its gap has; end tokens after one that ended early."""
    drawn = sample(
        model, before, length=gap.stop, temperature=temperature, seed=seed, keep_states=False
    ).tokens
    filling = (0, gap.stop - drawn.shape[1])
    return pad(drawn, filling, value=model.require_tokenizer().end_id)[:, gap.start :]


def _score(model: Model, rows: Int[Tensor, "N L"], start: int) -> Float[Tensor, "N"]:
    """What a causal model's tokens from `start` on cost, in nats."""
    length = rows.shape[1]

    @torch.no_grad()
    def score(some: Sequence[Tensor]) -> list[Tensor]:
        tokens = torch.stack(list(some))
        logits = model.logits(tokens)[:, start - 1 : -1]  # row i predicts the token of i + 1
        logp = logits.float().log_softmax(-1).gather(-1, tokens[:, start:, None])
        return list(-logp[..., 0].double().sum(-1))

    size = fit_rows(model, count_row_bytes(model, length, length))
    parts = (costs for _, costs in map_batches(list(rows), size, score))
    return torch.stack([cost for costs in parts for cost in costs])

"""Constraints: tokens at fixed positions, tokens that are never written, phrases that must be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.net.model import Model
from unmask.sampling.canvas import Canvas, Prompt, encode_clean, encode_prompt, list_prompt_rows
from unmask.sampling.denoiser import Denoiser

Token = str | int
"""A text of one token, or its id."""


@dataclass(frozen=True)
class Constraints:
    """What a text must and must not hold."""

    fixed: Mapping[int, Prompt] = field(default_factory=dict)
    """Texts or ids by the position they start at, the same in every row."""
    forbid: Sequence[Token] = ()
    """Tokens that are never written."""
    require: Sequence[Prompt] = ()
    """Texts or ids that must be written somewhere."""

    @classmethod
    def make(
        cls,
        fixed: Mapping[int, Prompt] | None = None,
        forbid: Token | Sequence[Token] = (),
        require: Prompt | Sequence[Prompt] = (),
    ) -> "Constraints":
        """The constraints; a single token or text is one of its kind."""
        is_one = isinstance(forbid, str | bytes) or not isinstance(forbid, Sequence)
        tokens: Any = [forbid] if is_one else forbid
        return cls(fixed or {}, tokens, list_prompt_rows(require))

    def find_forbidden(self, model: Model) -> Int[Tensor, "n"] | None:
        """The ids that are never written; None for none."""
        if not self.forbid:
            return None
        ids = {_find_token(model, token) for token in self.forbid}
        if len(ids) >= model.net.config.logit_rows - 1:
            raise UserError(f"{len(ids)} tokens were forbidden: leave some to be written.")
        return torch.tensor(sorted(ids)).to(model.device)


def fix_tokens(model: Model, canvas: Canvas, constraints: Constraints) -> Canvas:
    """The canvas with the fixed tokens at their positions."""
    if not constraints.fixed:
        return canvas
    tokens, fixed = canvas.tokens.clone(), canvas.fixed.clone()
    real = torch.ones_like(fixed) if canvas.real is None else canvas.real
    forbidden = {_find_token(model, token) for token in constraints.forbid}
    for position, what in constraints.fixed.items():
        if not isinstance(position, int | Integral):
            raise UserError(f"a token was fixed at position {position!r:.60}: expected a number.")
        for offset, token in enumerate(encode_clean(model, what, "fixed")):
            at = position + offset
            if at < 0:
                raise UserError(
                    f"a token was fixed at position {at}: positions count from 0, at the row's "
                    "start."
                )
            if at >= tokens.shape[1] or not bool(real[:, at].all()):
                raise UserError(
                    f"a token was fixed at position {at}, but the rows are "
                    f"{int(real.sum(-1).min())} tokens long or longer: lengthen them."
                )
            if bool((fixed[:, at] & (tokens[:, at] != token)).any()):
                raise UserError(
                    f"position {at} was fixed as token {token}, but another token is given there: "
                    "take one of them back."
                )
            if token in forbidden:
                raise UserError(f"token {token} is both fixed and forbidden: choose one.")
            tokens[:, at], fixed[:, at] = token, True
    return replace(canvas, tokens=tokens, fixed=fixed)


def plant_phrases(denoiser: Denoiser, canvas: Canvas, constraints: Constraints) -> Canvas:
    """The canvas with every required phrase where the network finds it likeliest.

    Planted before anything else is written, one after the other, so that the text grows around it.
    """
    model = denoiser.model
    forbidden = {_find_token(model, token) for token in constraints.forbid}
    phrases = [encode_clean(model, required, "required") for required in constraints.require]
    for number, (required, phrase) in enumerate(zip(constraints.require, phrases, strict=True)):
        if not phrase:
            raise UserError("an empty text was required: leave it out.")
        if both := forbidden & set(phrase):
            raise UserError(f"token {min(both)} is both required and forbidden: choose one.")
        # 1. log p of the phrase at each start [B, P], given all that stands by now.
        where = torch.tensor(phrase, device=canvas.tokens.device)
        scores = _score_starts(denoiser, canvas, where)
        # 2. The likeliest start of each row that leaves room for the phrases after this one.
        rest = [len(each) for each in phrases[number + 1 :]]
        starts = [
            _choose_start(row, open_, len(phrase), rest)
            for row, open_ in zip(scores, (~canvas.fixed).tolist(), strict=True)
        ]
        if None in starts:
            after = f" and {sum(rest)} more after it" if rest else ""
            raise UserError(
                f"{required!r} was required, {len(phrase)} tokens in a row{after}, but a row has "
                "no such space left: lengthen it."
            )
        # 3. Written and fixed there [B, n]: the next phrase sees it as given.
        first = torch.tensor(starts, device=canvas.tokens.device)
        at = first[:, None] + torch.arange(len(phrase), device=first.device)
        tokens = canvas.tokens.scatter(1, at, where.expand(len(first), -1))
        fixed = canvas.fixed.scatter(1, at, True)
        canvas = replace(canvas, tokens=tokens, fixed=fixed)
    return canvas


def _choose_start(
    scores: Float[Tensor, "P"], open_: list[bool], size: int, rest: list[int]
) -> int | None:
    """The likeliest start of a phrase that leaves room for the rest; None where there is none."""
    for start in scores.argsort(descending=True, stable=True).tolist():
        if scores[start] == -torch.inf:
            return None
        left = open_.copy()
        left[start : start + size] = [False] * size
        if _has_room(left, rest):
            return start
    return None


def _has_room(open_: list[bool], sizes: list[int]) -> bool:
    """Whether phrases of these sizes can be laid into the open stretches, the largest first."""
    stretches = [len(list(each)) for is_open, each in groupby(open_) if is_open]
    for size in sorted(sizes, reverse=True):
        fitting = [i for i, stretch in enumerate(stretches) if stretch >= size]
        if not fitting:
            return False
        # The tightest one, so that large ones stay whole.
        tightest = min(fitting, key=lambda i: stretches[i])
        stretches[tightest] -= size
    return True


def _score_starts(
    denoiser: Denoiser, canvas: Canvas, phrase: Int[Tensor, "n"]
) -> Float[Tensor, "B P"]:
    """log p of the phrase starting at each position, -inf where it does not fit."""
    open_ = ~canvas.fixed
    predictions = denoiser.predict(canvas.tokens, open_, 0.0)
    # log p of each token of the phrase at each position [B, L, n]; closed positions have -inf, so
    # that a phrase does not fit across them.
    each = predictions.spread(predictions.rows[:, phrase], -torch.inf)
    if len(phrase) > open_.shape[1]:
        return each.new_full((len(open_), 1), -torch.inf)
    # The phrase at start s has its token i at position s + i: sums along diagonals.
    starts = open_.shape[1] - len(phrase) + 1
    return sum(each[:, i : i + starts, i] for i in range(len(phrase)))  # ty: ignore[invalid-return-type]


def _find_token(model: Model, token: Token) -> int:
    if isinstance(token, int | Integral):
        token = int(token)
        rows = model.net.config.logit_rows
        if not 0 <= token < rows:
            raise UserError(f"token {token} was forbidden, but tokens run from 0 to {rows - 1}.")
        return token
    ids = encode_prompt(model, *list_prompt_rows([token]), added="nothing")
    if len(ids) != 1:
        raise UserError(
            f"{token!r} was forbidden, but is {len(ids)} tokens: forbid single ones; inside a text "
            "most words begin with a space (' the')."
        )
    return ids[0]

"""Constraints: tokens that stand in a given place, that never stand, that must not be missing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from numbers import Integral

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.net.model import Model
from unmask.sampling.canvas import Canvas, Prompt, encode_prompt, list_rows
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
        if isinstance(forbid, str):
            forbid = [forbid]
        elif not isinstance(forbid, Sequence):
            forbid = [int(forbid)]
        return cls(fixed or {}, forbid, list_rows(require))

    def find_forbidden(self, model: Model) -> Int[Tensor, "n"] | None:
        """The ids that are never written; None for none."""
        if not self.forbid:
            return None
        ids = {_find_token(model, token) for token in self.forbid}
        if len(ids) >= model.net.config.logit_rows - 1:
            raise UserError(f"{len(ids)} tokens were forbidden: leave some to be written.")
        return torch.tensor(sorted(ids)).to(model.device)


def fix_tokens(model: Model, canvas: Canvas, constraints: Constraints) -> Canvas:
    """The canvas with the fixed tokens in their places."""
    if not constraints.fixed:
        return canvas
    tokens, fixed = canvas.tokens.clone(), canvas.fixed.clone()
    real = torch.ones_like(fixed) if canvas.real is None else canvas.real
    forbidden = {_find_token(model, token) for token in constraints.forbid}
    for position, what in constraints.fixed.items():
        for offset, token in enumerate(_encode_clean(model, what, "fixed")):
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
    """The canvas with every required phrase in the place where the network finds it likeliest.

    Planted before anything else is written, one after the other, so that the text grows around it.
    """
    model = denoiser.model
    forbidden = {_find_token(model, token) for token in constraints.forbid}
    phrases = [_encode_clean(model, required, "required") for required in constraints.require]
    for number, (required, phrase) in enumerate(zip(constraints.require, phrases, strict=True)):
        if not phrase:
            raise UserError("an empty text was required: leave it out.")
        if both := forbidden & set(phrase):
            raise UserError(f"token {min(both)} is both required and forbidden: choose one.")
        where = torch.tensor(phrase, device=canvas.tokens.device)
        scores = _score_places(denoiser, canvas, where)
        rest = [len(each) for each in phrases[number + 1 :]]
        places = [
            _choose_place(row, open_, len(phrase), rest)
            for row, open_ in zip(scores, (~canvas.fixed).tolist(), strict=True)
        ]
        if None in places:
            after = f" and {sum(rest)} more after it" if rest else ""
            raise UserError(
                f"{required!r} was required, {len(phrase)} tokens in a row{after}, but a row has "
                "no such space left: lengthen it."
            )
        first = torch.tensor(places, device=canvas.tokens.device)
        at = first[:, None] + torch.arange(len(phrase), device=first.device)
        tokens = canvas.tokens.scatter(1, at, where.expand(len(first), -1))
        fixed = canvas.fixed.scatter(1, at, True)
        canvas = replace(canvas, tokens=tokens, fixed=fixed)
    return canvas


def _choose_place(
    scores: Float[Tensor, "P"], open_: list[bool], size: int, rest: list[int]
) -> int | None:
    """The likeliest place for a phrase that leaves room for the rest; None where there is none."""
    for place in scores.argsort(descending=True, stable=True).tolist():
        if scores[place] == -torch.inf:
            return None
        left = open_.copy()
        left[place : place + size] = [False] * size
        if _has_room(left, rest):
            return place
    return None


def _has_room(open_: list[bool], sizes: list[int]) -> bool:
    """Whether phrases of these sizes can be laid into the open stretches, the largest first."""
    stretches = [len(list(places)) for is_open, places in groupby(open_) if is_open]
    for size in sorted(sizes, reverse=True):
        fitting = [i for i, stretch in enumerate(stretches) if stretch >= size]
        if not fitting:
            return False
        # The tightest one, so that large ones stay whole.
        tightest = min(fitting, key=lambda i: stretches[i])
        stretches[tightest] -= size
    return True


def _score_places(
    denoiser: Denoiser, canvas: Canvas, phrase: Int[Tensor, "n"]
) -> Float[Tensor, "B P"]:
    """log p of the phrase starting at each place, -inf where it does not fit."""
    open_ = ~canvas.fixed
    predictions = denoiser.predict(canvas.tokens, open_, 0.0)
    each = predictions.spread(predictions.rows[:, phrase], -torch.inf)
    if len(phrase) > open_.shape[1]:
        return each.new_full((len(open_), 1), -torch.inf)
    starts = open_.shape[1] - len(phrase) + 1
    return sum(each[:, i : i + starts, i] for i in range(len(phrase)))  # ty: ignore[invalid-return-type]


def _encode_clean(model: Model, what: Prompt, how: str) -> list[int]:
    """The ids of something that must stand in the text, which holds no mask in the end."""
    ids = encode_prompt(model, what)
    for token in ids:
        if token == model.mask_id or token >= model.net.config.logit_rows:
            raise UserError(f"token {token} was {how}, but is never part of a text: leave it out.")
    return ids


def _find_token(model: Model, token: Token) -> int:
    if isinstance(token, int | Integral):
        token = int(token)
        rows = model.net.config.logit_rows
        if not 0 <= token < rows:
            raise UserError(f"token {token} was forbidden, but tokens run from 0 to {rows - 1}.")
        return token
    ids = encode_prompt(model, token)
    if len(ids) != 1:
        raise UserError(
            f"{token!r} was forbidden, but is {len(ids)} tokens: forbid single ones; inside a text "
            "most words begin with a space (' the')."
        )
    return ids[0]

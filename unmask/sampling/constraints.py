"""Constraints: tokens that stand in a given place, that never stand, that must not be missing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.net.model import Model
from unmask.sampling.canvas import Canvas, Prompt, encode_prompt
from unmask.sampling.oracle import Oracle

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

    def find_forbidden(self, model: Model) -> Int[Tensor, "n"] | None:
        """The ids that are never written; None for none."""
        if not self.forbid:
            return None
        found = {_find_token(model, token) for token in self.forbid}
        if len(found) >= model.net.config.logit_rows - 1:
            raise UserError(f"{len(found)} tokens were forbidden: leave some to be written.")
        return torch.tensor(sorted(found)).to(model.device)


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
            if not 0 <= at < tokens.shape[1] or not bool(real[:, at].all()):
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


def plant_phrases(oracle: Oracle, canvas: Canvas, constraints: Constraints) -> Canvas:
    """The canvas with every required phrase in the place where the network finds it likeliest.

    Planted before anything else is written, one after the other, so that the text grows around it.
    """
    model = oracle.model
    forbidden = {_find_token(model, token) for token in constraints.forbid}
    for required in constraints.require:
        phrase = _encode_clean(model, required, "required")
        if not phrase:
            raise UserError("an empty text was required: leave it out.")
        if both := forbidden & set(phrase):
            raise UserError(f"token {min(both)} is both required and forbidden: choose one.")
        where = torch.tensor(phrase, device=canvas.tokens.device)
        scores = _score_places(oracle, canvas, where)
        if bool((scores == -torch.inf).all(-1).any()):
            raise UserError(
                f"{required!r} was required, {len(phrase)} tokens in a row, but a row has no such "
                "space left: lengthen it."
            )
        first = scores.argmax(-1)
        at = first[:, None] + torch.arange(len(phrase), device=first.device)
        tokens = canvas.tokens.scatter(1, at, where.expand(len(first), -1))
        fixed = canvas.fixed.scatter(1, at, True)
        canvas = replace(canvas, tokens=tokens, fixed=fixed)
    return canvas


def _score_places(oracle: Oracle, canvas: Canvas, phrase: Int[Tensor, "n"]) -> Float[Tensor, "B P"]:
    """log p of the phrase starting at each place, -inf where it does not fit."""
    open_ = ~canvas.fixed
    logp = oracle.ask(canvas.tokens, open_, 0.0)
    each = logp.new_full((*open_.shape, len(phrase)), -torch.inf)
    each[open_] = logp[:, phrase]
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
    if isinstance(token, int):
        rows = model.net.config.logit_rows
        if not 0 <= token < rows:
            raise UserError(f"token {token} was forbidden, but tokens run from 0 to {rows - 1}.")
        return token
    ids = encode_prompt(model, token)
    if len(ids) != 1:
        raise UserError(
            f"{token!r} was forbidden, but is {len(ids)} tokens: forbid single tokens, such as "
            "one of them by its id."
        )
    return ids[0]

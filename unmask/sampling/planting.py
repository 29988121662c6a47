"""Planted tokens: what is written into a text at a step of its denoising, whatever the model says.

A fixed token stands from the start and stays. A planted one is written when its step comes, as if
the model had chosen it there: it is part of the text from then on, counts as written, and may be
masked again by a remasking or rewritten by a corrector. This is how states that training never
showed are made, and what a model does from them is measured.

    {step: {position: text or token ids}}

for all rows, or a list of these with one for each. Planting nothing changes no bit of a sample, and
neither does planting what the model writes at that step. A causal model writes a position when all
before it are written: there a plant takes the place of what would be written, and its step is not
read. Tokens before it cannot depend on it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.net.model import Model
from unmask.sampling.canvas import Prompt, encode_clean

Plants = Mapping[int, Mapping[int, Prompt]]
"""Texts or token ids by step and by the position they start at."""
FORM = "{step: {position: text or token ids}}, or a list of these with one for each row"


@dataclass(frozen=True)
class Planting:
    """The tokens that a step writes [B, L], -1 where it plants none, by its number from 1."""

    by_step: Mapping[int, Int[Tensor, "B L"]] = field(default_factory=dict)

    def pick(self, rows: Int[Tensor, "n"]) -> "Planting":
        """The plants of some rows."""
        return Planting({step: tokens[rows] for step, tokens in self.by_step.items()})

    def merge(self) -> Int[Tensor, "B L"] | None:
        """The tokens of all steps, of two at a position the later one; None for none."""
        merged = None
        for _, tokens in sorted(self.by_step.items()):
            merged = tokens if merged is None else torch.where(tokens >= 0, tokens, merged)
        return merged

    def check_steps(self, steps: int) -> None:
        """Raise where a plant's step does not come."""
        if late := [step for step in self.by_step if step > steps]:
            raise UserError(
                f"tokens were planted at step {max(late)}, but there are {steps} steps: plant them "
                "earlier, or take more steps."
            )


def lay_out_plants(
    model: Model,
    plants: Plants | Sequence[Plants] | None,
    lengths: Sequence[int],
    given: Bool[Tensor, "B L"],
) -> Planting:
    """What was planted, laid out as the rows are; a plant on a given token raises."""
    rows: list[Any] = list(plants) if isinstance(plants, list | tuple) else [plants] * len(lengths)
    if len(rows) != len(lengths):
        raise UserError(f"plants of {len(rows)} rows were given for {len(lengths)} rows.")
    by_step: dict[int, Tensor] = {}
    for row, each in enumerate(rows):
        for step, by_position in _check_mapping(each or {}).items():
            for position, what in _check_mapping(by_position).items():
                for at, token in enumerate(encode_clean(model, what, "planted"), position):
                    if not at < lengths[row] or bool(given[row, at]):
                        raise UserError(
                            f"token {token} was planted at position {at} of row {row}, which has "
                            f"{lengths[row]} tokens: expected a position that is to be written."
                        )
                    if step not in by_step:
                        by_step[step] = torch.full(given.shape, -1, device=given.device)
                    by_step[step][row, at] = token
    if 0 in by_step:
        raise UserError("tokens were planted at step 0: steps count from 1.")
    return Planting(by_step)


def check_plants(plants: Any) -> None:
    """Raise unless it has the form of plants; what they hold is checked with the model at hand."""
    for each in plants if isinstance(plants, list | tuple) else [plants]:
        for by_position in _check_mapping(each or {}).values():
            _check_mapping(by_position)


def _check_mapping(given: Any) -> Mapping[int, Any]:
    is_number = isinstance(given, Mapping) and all(
        isinstance(key, int | Integral) and not isinstance(key, bool) and key >= 0 for key in given
    )
    if not is_number:
        raise UserError(f"planted is {given!r:.80}: expected {FORM}.")
    return given

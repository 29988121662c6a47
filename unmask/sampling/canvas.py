"""Canvases: prompts, fixed tokens and masks laid out as rows of one length."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.net.model import Model

Prompt = str | Sequence[int]
"""A text, or its token ids."""


@dataclass(frozen=True)
class Canvas:
    """What sampling starts from: tokens, some of them masks, and which of them must stay."""

    tokens: Int[Tensor, "B L"]
    fixed: Bool[Tensor, "B L"]
    """True where a token was given; the rest is the sampler's."""
    prompt_length: Int[Tensor, "B"]
    """Given tokens at the start of each row: what guidance hides in its second pass."""
    real: Bool[Tensor, "B L"] | None = None
    """False behind rows that are shorter than the longest; None where all are as long."""

    @property
    def is_prompt(self) -> Bool[Tensor, "B L"]:
        places = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return places < self.prompt_length[:, None]


def encode_prompt(model: Model, prompt: Prompt, allow_mask: bool = False) -> list[int]:
    """The token ids of a prompt."""
    if not isinstance(prompt, str):
        return [int(token) for token in prompt]
    if model.tokenizer is None:
        raise UserError(
            f"the model {model.name} has no tokenizer: give prompts as token ids, or name a "
            "tokenizer when loading it."
        )
    return model.tokenizer.encode(prompt, allow_mask).ids


def lay_out_prompts(
    model: Model, prompts: Sequence[Prompt], length: int | Sequence[int] | None
) -> Canvas:
    """Each prompt at the start of a row, masks behind it.

    `length` is that of the whole row, prompt included: one for all (the model's context by
    default), or one a prompt.
    """
    mask_id = require_mask(model)
    rows = [encode_prompt(model, prompt) for prompt in prompts]
    lengths = check_lengths(model, prompts, rows, length)
    tokens = torch.full((len(rows), max(lengths)), mask_id)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = torch.tensor(row, dtype=torch.long)
    places = torch.arange(max(lengths))
    counts = torch.tensor([len(row) for row in rows])
    real = places < torch.tensor(lengths)[:, None]
    fixed = (places < counts[:, None]) | ~real
    device = model.device
    return Canvas(
        tokens.to(device),
        fixed.to(device),
        counts.to(device),
        None if len(set(lengths)) == 1 else real.to(device),
    )


def check_lengths(
    model: Model,
    prompts: Sequence[Prompt],
    rows: list[list[int]],
    length: int | Sequence[int] | None,
) -> list[int]:
    """The length of each row; one that its prompt fills, or the context cannot hold, raises."""
    if not prompts:
        raise UserError("no prompts were given: give at least one; an empty text is one, too.")
    context = model.net.config.context
    wanted = context if length is None else length
    lengths = [wanted] * len(rows) if isinstance(wanted, int) else list(wanted)
    if len(lengths) != len(rows):
        raise UserError(f"{len(lengths)} lengths were given for {len(rows)} prompts.")
    for prompt, row, each in zip(prompts, rows, lengths, strict=True):
        if not 1 <= each <= context:
            raise UserError(
                f"a length of {each} was asked for, expected 1 to the context {context}."
            )
        if len(row) >= each:
            raise UserError(
                f"the prompt {prompt!r} has {len(row)} tokens, which leaves nothing to write in a "
                f"length of {each}: lengthen it or shorten the prompt."
            )
    return lengths


def require_mask(model: Model) -> int:
    """The model's mask id, or a sentence about models that have none."""
    if model.mask_id is None:
        raise UserError(
            f"the model {model.name} is {model.kind} and has no mask token: masks cannot be filled."
        )
    return model.mask_id

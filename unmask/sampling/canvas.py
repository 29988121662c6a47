"""Canvases: prompts, fixed tokens and masks laid out as rows of one length."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.data.tokenizer import Added
from unmask.net.model import Model

Prompt = str | Sequence[int] | Tensor
"""A text, or its token ids."""


@dataclass(frozen=True)
class Canvas:
    """What sampling starts from: tokens, some of them masks, and which of them must stay.

    Rows start at the first column; shorter ones end early. The prompts "The cat" and "A", laid out
    for 6 and 4 positions (M is the mask):

        tokens   The cat M M M M     A M M M M M     what stands there, and masks after a row's end
        fixed     1   1  0 0 0 0     1 0 0 0 1 1     what the sampler must not touch
        prompt    1   1  0 0 0 0     1 0 0 0 0 0     what guidance hides: given, and of the text
        real      1   1  1 1 1 1     1 1 1 1 0 0     what the network sees at all
        start            2           1               where the first block begins
        in_front         2           1               tokens whose end tokens end no text
    """

    tokens: Int[Tensor, "B L"]
    fixed: Bool[Tensor, "B L"]
    """True where a token was given or fixed, and after a row's end; the rest is the sampler's."""
    prompt: Bool[Tensor, "B L"]
    """What guidance hides in its second pass; a beginning stands, but in models that noise it."""
    start: Int[Tensor, "B"]
    """Where writing starts: blocks are counted from here."""
    real: Bool[Tensor, "B L"] | None = None
    """False after the end of rows that are shorter than the longest; None where all are as long."""
    in_front: Int[Tensor, "B"] | None = None
    """Tokens of the prompt, whose end tokens (a chat's) end no text; None in patterns."""

    def pick(self, rows: Int[Tensor, "n"]) -> "Canvas":
        """Some of the rows."""
        real = None if self.real is None else self.real[rows]
        in_front = None if self.in_front is None else self.in_front[rows]
        return Canvas(
            self.tokens[rows], self.fixed[rows], self.prompt[rows], self.start[rows], real, in_front
        )

    def find_inner(self, end_id: int) -> Bool[Tensor, "B L"]:
        """Positions that a given token follows somewhere in their row, other than the end token."""
        given = self.fixed if self.real is None else self.fixed & self.real
        given = given & (self.tokens != end_id)
        # Summed from the right: how many given tokens stand at a position or after it. More than
        # the position itself has: one stands after it.
        return given.flip(-1).cumsum(-1).flip(-1) > given.long()

    def name_rows(self, mask_id: int) -> list[tuple[int, ...]]:
        """What each row was given, masks at its end left out: the name of its random stream.

        A prompt and the same prompt with masks written after it are the same row.
        """
        kept = self.fixed if self.real is None else self.fixed & self.real
        given = torch.where(kept, self.tokens, mask_id)
        # Masks at the end say how long the row is: its numbers must not depend on that.
        places = torch.arange(1, given.shape[1] + 1, device=given.device)
        ends = torch.where(given != mask_id, places, 0).amax(-1).tolist()
        return [tuple(row[:end]) for row, end in zip(given.tolist(), ends, strict=True)]


def list_prompt_rows(given: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """The prompts of a batch; a single one, text or ids, is a batch of one."""
    _check_prompt(given)
    if not isinstance(given, str | Sequence | Tensor) and hasattr(given, "tolist"):
        given = given.tolist()  # another library's array
    if isinstance(given, Tensor):
        return [given] if given.ndim == 1 else list(given)
    if isinstance(given, str) or (len(given) and isinstance(given[0], int | Integral)):
        return [given]  # ty: ignore[invalid-return-type]
    for each in given:
        _check_prompt(each)
    return list(given)  # ty: ignore[invalid-return-type]


def _check_prompt(given: object) -> None:
    is_array = isinstance(given, str | Sequence | Tensor) or hasattr(given, "tolist")
    if not is_array or isinstance(given, bytes | bytearray | memoryview):
        raise UserError(
            f"the prompt is a {type(given).__name__} ({given!r:.60}): expected a text or token "
            "ids, or a list of them."
        )


def check_model(model: object) -> None:
    """Raise where what was given is not a loaded model."""
    if not isinstance(model, Model):
        raise UserError(
            f"the model is a {type(model).__name__} ({model!r:.60}): expected a loaded one, such "
            'as unmask.load("reversal-mdm").'
        )


def encode_prompt(model: Model, prompt: Prompt, added: Added = "beginning") -> list[int]:
    """The token ids of a prompt, or with nothing `added` those of a piece of a text."""
    if not isinstance(prompt, str):
        return _check_ids(model, prompt)
    return model.require_tokenizer().encode(prompt, added=added).ids


def encode_clean(model: Model, what: Prompt, role: str) -> list[int]:
    """The ids of something that must stand in the text, which holds no mask in the end."""
    ids = encode_prompt(model, *list_prompt_rows([what]), added="nothing")
    for token in ids:
        if token == model.mask_id or token >= model.net.config.logit_rows:
            raise UserError(f"token {token} was {role}, but is never part of a text: leave it out.")
    return ids


def lay_out_prompts(
    model: Model, prompts: Sequence[Prompt], length: int | Sequence[int] | None
) -> Canvas:
    """Each prompt at the start of a row, masks after it.

    `length` is that of the whole row, prompt included: one for all (the model's context by
    default), or one per prompt.
    """
    rows = [encode_prompt(model, prompt) for prompt in prompts]
    lengths = check_lengths(model, prompts, rows, length)
    starts = [len(row) for row in rows]
    canvas = _lay_out(model, rows, lengths, starts, filler=_filler(model))
    return replace(canvas, in_front=canvas.start)


def lay_out_patterns(model: Model, patterns: Sequence[Prompt]) -> Canvas:
    """Rows that hold their own masks, written `[MASK]` or `[MASK]*5`, or as token ids.

    Everything that is not a mask was given, and is what guidance hides.
    """
    mask_id = model.require_mask()
    if not patterns:
        raise UserError("no texts were given: give at least one with masks to fill.")
    rows = [encode_pattern(model, pattern) for pattern in patterns]
    context = model.net.config.context
    for pattern, row in zip(patterns, rows, strict=True):
        if not 1 <= len(row) <= context:
            raise UserError(
                f"the text {_quote(pattern)} has {len(row)} tokens, expected 1 to the context "
                f"{context}."
            )
    starts = [row.index(mask_id) if mask_id in row else len(row) for row in rows]
    return _lay_out(model, rows, [len(row) for row in rows], starts, filler=_filler(model))


def encode_pattern(model: Model, pattern: Prompt) -> list[int]:
    """The token ids of a text with masks in it, `[MASK]*5` being five of them."""
    if not isinstance(pattern, str):
        return _check_ids(model, pattern)
    model.require_mask()
    return model.encode(pattern).ids


def _check_ids(model: Model, ids: Sequence[int] | Tensor) -> list[int]:
    """The ids as numbers; on an accelerator one the network does not know ends the process."""
    given = ids.tolist() if isinstance(ids, Tensor) else list(ids)
    numbers = given
    if not set(map(type, given)) <= {int}:
        if broken := [x for x in given if not isinstance(x, Integral) or isinstance(x, bool)]:
            raise UserError(f"the token id {broken[0]!r} was given: expected whole numbers.")
        numbers = [int(token) for token in given]
    rows = model.net.config.vocab_size
    if strange := [token for token in numbers if not 0 <= token < rows]:
        raise UserError(f"token {strange[0]} was given, but tokens run from 0 to {rows - 1}.")
    return numbers


def _lay_out(
    model: Model, rows: list[list[int]], lengths: list[int], starts: list[int], filler: int
) -> Canvas:
    longest, places = max(lengths), torch.arange(max(lengths))
    padded = [row + [filler] * (longest - len(row)) for row in rows]
    tokens = torch.tensor(padded, dtype=torch.long).view(len(rows), longest)
    real = places < torch.tensor(lengths)[:, None]
    # Open are the masks among what was given and the rest of a row's length; what comes after its
    # end is fixed.
    is_given = places < torch.tensor([len(row) for row in rows])[:, None]
    is_mask = tokens == (-1 if model.mask_id is None else model.mask_id)
    fixed = torch.where(is_given, ~is_mask, ~real)
    may_hide = places >= torch.tensor([model.count_kept(row) for row in rows])[:, None]
    device = model.device
    return Canvas(
        tokens.to(device),
        fixed.to(device),
        (fixed & real & may_hide).to(device),
        torch.tensor(starts).to(device),
        # None spares the network an attention mask.
        None if len(set(lengths)) == 1 else real.to(device),
    )


def _filler(model: Model) -> int:
    """What stands where nothing is written yet: the mask, or any token for a kind without masks."""
    return 0 if model.mask_id is None or not model.paradigm.has_mask else model.mask_id


def check_lengths(
    model: Model,
    prompts: Sequence[Prompt],
    rows: Sequence[Sequence[int]],
    length: int | Sequence[int] | None,
) -> list[int]:
    """The length of each row; one that its prompt fills, or the context cannot hold, raises."""
    if not prompts:
        raise UserError("no prompts were given: give at least one; an empty text is one as well.")
    context = model.net.config.context
    wanted = context if length is None else length
    lengths = list(wanted) if isinstance(wanted, Sequence) else [wanted] * len(rows)
    for each in lengths:
        if not isinstance(each, int | Integral) or isinstance(each, bool):
            raise UserError(f"a length is {each!r:.60}: expected a whole number, or one per row.")
    if len(lengths) != len(rows):
        raise UserError(f"{len(lengths)} lengths were given for {len(rows)} prompts.")
    for prompt, row, each in zip(prompts, rows, lengths, strict=True):
        if not 1 <= each <= context:
            raise UserError(
                f"a length of {each} was asked for, expected 1 to the context {context}."
            )
        if len(row) >= context:
            raise UserError(
                f"the prompt {_quote(prompt)} has {len(row)} tokens, which leaves nothing to write "
                f"in the model's context of {context}: shorten the prompt."
            )
        if len(row) >= each:
            raise UserError(
                f"the prompt {_quote(prompt)} has {len(row)} tokens, which leaves nothing to write "
                f"in a length of {each}: lengthen it or shorten the prompt."
            )
    return lengths


def _quote(prompt: Prompt) -> str:
    """A prompt in an error message, its beginning where it is long."""
    if isinstance(prompt, str):
        return repr(prompt if len(prompt) <= 60 else f"{prompt[:60]}…")
    text = repr(prompt)
    return text if len(text) <= 60 else f"{text[:60]}…"


def name_streams(
    model: Model, names: Sequence[tuple[int, ...]], seed: int, copies: Sequence[int] | None = None
) -> RowStreams:
    """A stream for each row, named by what it was given; the same again gets one of its own."""
    rows = list(zip(names, number_copies(names) if copies is None else copies, strict=True))
    return RowStreams.make(seed, rows, model.device, pace=model.net.config.context)


def number_copies(names: Iterable[Hashable]) -> list[int]:
    """How many equal names come before each."""
    met: Counter[Hashable] = Counter()
    numbers = []
    for name in names:
        numbers.append(met[name])
        met[name] += 1
    return numbers

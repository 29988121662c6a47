"""What a tokenizer puts before and after every text: read from its post-processor, and set."""

import json
from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import processors

from unmask.base.errors import UserError
from unmask.data.patterns import explain_panics

NONE = "none"
"""Instead of a token's text: nothing is added."""


def find_added(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """The ids before and after a text, as the post-processor adds them, whatever its kind."""
    if backend.post_processor is None:
        return [], []
    # Which of them stand before a text is seen in any one that has a token.
    with explain_panics("the post-processor"):
        for text in ("a", *backend.get_vocab()):
            if bare := backend.encode(text, add_special_tokens=False).ids:
                whole = backend.encode(text)
                break
        else:
            return [], []
    begin = whole.special_tokens_mask.index(0) if 0 in whole.special_tokens_mask else 0
    end = begin + len(bare)
    if whole.ids[begin:end] != bare:
        raise UserError(
            f"the tokenizer makes {whole.tokens} of {text!r}, expected special tokens before and "
            "after it alone: take the post_processor out of tokenizer.json."
        )
    return whole.ids[:begin], whole.ids[end:]


def add_tokens(
    backend: tokenizers.Tokenizer, beginning: Sequence[int], ending: Sequence[int]
) -> tokenizers.Tokenizer:
    """A copy of the tokenizer that puts these ids before and after every text."""
    changed = tokenizers.Tokenizer.from_str(backend.to_str())
    before, after = ([str(backend.id_to_token(i)) for i in ids] for ids in (beginning, ending))
    template = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", "$B", *after],
        special_tokens=list({*zip((*before, *after), (*beginning, *ending), strict=True)}),
    )
    trims = _trims(json.loads(backend.to_str())["post_processor"])
    parts = [processors.ByteLevel(trim_offsets=True), template] if trims else [template]
    changed.post_processor = processors.Sequence(parts)
    return changed


def _trims(part: dict[str, Any] | None) -> bool:
    """Whether a post-processor leaves blanks out of the characters that tokens stand for."""
    if part is None:
        return False
    if part["type"] == "Sequence":
        return any(map(_trims, part["processors"]))
    return part["type"] in ("ByteLevel", "RobertaProcessing") and part["trim_offsets"]

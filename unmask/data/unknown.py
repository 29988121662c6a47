"""What a tokenizer has no token for: a model would never see it, and nothing else says so."""

import json
from collections import Counter
from collections.abc import Iterable
from functools import cache

from tokenizers import pre_tokenizers

from unmask.data.tokenizer import Tokenizer

MOST = 8
"""What a sentence lists at most."""


class Unknown:
    """Counts, over texts, what a tokenizer lacks; one that knows all bytes lacks nothing."""

    def __init__(self, tokenizer: Tokenizer):
        self.backend, self.lines = tokenizer.backend, Counter[str]()
        settings, vocabulary = json.loads(self.backend.to_str()), self.backend.get_vocab()
        model, alphabet = settings["model"], set(pre_tokenizers.ByteLevel.alphabet())
        cuts_bytes = "ByteLevel" in str([settings["normalizer"], settings["pre_tokenizer"]])
        self.knows_bytes = cuts_bytes and alphabet <= vocabulary.keys()
        self.knows_bytes |= bool(model.get("byte_fallback"))
        self.unknown = model.get("unk_id", vocabulary.get(model.get("unk_token")))
        self.letters = set("".join(vocabulary))
        self.lacks = cache(self._lacks)

    def add(self, texts: Iterable[str]) -> None:
        """Count the lines of some texts that hold characters without a token, or else words."""
        lines = [line for text in texts if not self.knows_bytes for line in text.splitlines()]
        encodings = self.backend.encode_batch(lines, add_special_tokens=False)
        for line, encoding in zip(lines, encodings, strict=True):
            missed = set(filter(self.lacks, line))
            if not missed and self.unknown in encoding.ids:
                tokens = zip(encoding.ids, encoding.offsets, strict=True)
                missed = {line[slice(*at)] for token, at in tokens if token == self.unknown}
            self.lines.update(missed)

    def _lacks(self, character: str) -> bool:
        """Whether no token holds what the tokenizer makes of a character, if it makes anything."""
        normalizer, cutter = self.backend.normalizer, self.backend.pre_tokenizer
        plain = character if normalizer is None else normalizer.normalize_str(character)
        pieces = [(plain, None)] if cutter is None else cutter.pre_tokenize_str(plain)
        return not set("".join(piece for piece, _ in pieces).strip()) <= self.letters

    def describe(self) -> str:
        """What was found as a sentence; an empty one for nothing."""
        named = [
            f"{piece!r} ({count:,} line{'s' if count > 1 else ''})"
            for piece, count in self.lines.most_common()
        ]
        if not named:
            return ""
        more = f" and {len(named) - MOST:,} more" if len(named) > MOST else ""
        return (
            f"the tokenizer has no token for {', '.join(named[:MOST])}{more}, so that models never "
            "see them: use a tokenizer that knows them, such as one learned from these lines"
        )


def describe_unknown(tokenizer: Tokenizer, texts: Iterable[str]) -> str:
    """What the tokenizer lacks of some texts as a sentence; an empty one for nothing."""
    unknown = Unknown(tokenizer)
    unknown.add(texts)
    return unknown.describe()

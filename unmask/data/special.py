"""Special tokens of a tokenizer: what was asked for, what its files say, what is usual."""

import tokenizers

from unmask.base.errors import UserError

MASK, PAD, END = "[MASK]", "[PAD]", "[END]"

# What checkpoints in the wild call these tokens, tried in this order.
KNOWN = {
    "mask": (MASK, "<mask>", "<|mask|>", "<|mdm_mask|>", "|<MASK>|"),
    "pad": (PAD, "<pad>", "<|pad|>", "<|padding|>"),
    "end": (
        END,
        "</s>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<eos>",
        "[EOS]",
        "<|im_end|>",
        "[SEP]",
    ),
}
# The field of `tokenizer_config.json` that names each of them.
FIELDS = {"mask": "mask_token", "pad": "pad_token", "end": "eos_token", "beginning": "bos_token"}

Special = str | int | None
"""A special token by its text, by its id, or None for none."""


class Finder:
    """Looks special tokens up: what was asked for, what the files say, what is usual."""

    def __init__(self, backend: tokenizers.Tokenizer, config: dict, source: str):
        self.backend, self.config, self.source = backend, config, source

    def __call__(self, role: str, special: Special, fallback: int | None = None) -> int | None:
        if special is None:
            return fallback
        if isinstance(special, int):
            return self._check_id(role, special)
        if special != "auto":
            return self._require(role, special)
        if (named := self.find_named(role)) is not None:
            return named
        for token in KNOWN[role]:
            if (token_id := self.backend.token_to_id(token)) is not None:
                return token_id
        return fallback

    def find_named(self, role: str) -> int | None:
        """The token that `tokenizer_config.json` names, if it names any."""
        value = self.config.get(FIELDS[role])
        value = value.get("content") if isinstance(value, dict) else value
        return self._require(role, value) if isinstance(value, str) and value else None

    def _require(self, role: str, token: str) -> int:
        token_id = self.backend.token_to_id(token)
        if token_id is None:
            raise UserError(f"{self.source} has no token {token!r}, which was named as its {role}.")
        return token_id

    def _check_id(self, role: str, token: int) -> int:
        highest = max(self.backend.get_vocab(with_added_tokens=True).values())
        last = highest + 1 if role == "mask" else highest
        if not 0 <= token <= last:
            raise UserError(f"the {role} id {token} is not in 0..{last}, the ids of {self.source}.")
        return token

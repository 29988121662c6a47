"""Text to token ids and back, with the mask, pad, end and beginning ids known."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from unmask.base.config import check_arguments
from unmask.base.errors import UserError
from unmask.base.files import path_exists, replace_file, write_json
from unmask.base.reading import SURROGATE, read_json_object
from unmask.data.added import NONE, add_tokens, find_added
from unmask.data.chat import ChatTemplate, read_chat_template
from unmask.data.patterns import QWEN2_WORDS, explain_panics, open_tokenizer
from unmask.data.special import END, FIELDS, KNOWN, MASK, PAD, Finder, Special

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)
"""Files that a tokenizer may be read from."""
MOST_TOKENS = 10_000_000
"""The largest vocabulary that is learned here."""
_UNKNOWN = "[UNKNOWN]"
Added = Literal["nothing", "beginning", "both"]
"""What is put around a text: a prompt gets the beginning alone, a whole text the ending as well."""


@dataclass(frozen=True)
class Encoded:
    """Token ids of a text, and the characters [b, e) that each stands for: none for added ones."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class Tokenizer:
    """A `tokenizers` tokenizer that knows its special ids; `mask_id` is None for causal models."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        mask_id: int | None,
        pad_id: int,
        end_id: int,
        chat: ChatTemplate | None = None,
        begin_id: int | None = None,
    ):
        self.backend = backend
        self.mask_id, self.pad_id, self.end_id = mask_id, pad_id, end_id
        self.chat = chat
        """How this tokenizer's model was taught to hold a conversation, if it was."""
        self.begin_id = begin_id
        """What the checkpoint calls its beginning, whether or not texts get it."""
        self.beginning, self.ending = find_added(backend)
        """The ids that stand before and after every text: what the post-processor adds."""

    @classmethod
    @check_arguments()
    def load(
        cls,
        path: str | Path,
        mask: Special | Literal["auto", "if any"] = "auto",
        pad: Special | Literal["auto"] = "auto",
        end: Special | Literal["auto"] = "auto",
    ) -> "Tokenizer":
        """The tokenizer in a `tokenizer.json` (or in a folder that holds one).

        Special tokens come from the arguments, else from a `tokenizer_config.json` beside the
        file, else by their usual names. Padding falls back to the end token, as SMDM and GPT-2 do.
        A missing mask is an error unless `mask` is "if any" or None, for causal models. A mask id
        just past the vocabulary is allowed, as SMDM has it. A beginning token is known only where
        `tokenizer_config.json` names one.
        """
        path = Path(path)
        file = path / "tokenizer.json" if path_exists(path) and path.is_dir() else path
        if not path_exists(file) or not file.is_file():
            raise UserError(
                f"{file!s:.200} is not there: give a tokenizer.json or a folder that holds one."
            )
        backend = open_tokenizer(file)
        # Rows are cut and padded here, never by settings that came along in the file; and a text
        # has the same tokens whenever it is read: merges are not left out at random.
        backend.no_padding()
        backend.no_truncation()
        if isinstance(backend.model, models.BPE):
            backend.model.dropout = None
        return cls._resolve(backend, file, mask, pad, end)

    @classmethod
    def from_qwen2_files(cls, folder: str | Path, mask: Special = None) -> "Tokenizer":
        """Qwen2's tokenizer from its `vocab.json`, `merges.txt` and table of added tokens.

        For checkpoints that bring these without a `tokenizer.json`; `add_bos_token` and
        `add_eos_token` of their settings say what is put around a text.
        """
        folder = Path(folder)
        model = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
        backend = tokenizers.Tokenizer(model)
        backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(tokenizers.Regex(QWEN2_WORDS), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        backend.decoder = decoders.ByteLevel()
        file = folder / "tokenizer_config.json"
        settings = read_json_object(file, wide_integers=True) if file.is_file() else {}
        added = settings.get("added_tokens_decoder", {})
        tokens = [added[number]["content"] for number in sorted(added, key=int)]
        backend.add_special_tokens(tokens)
        for number, token in zip(sorted(added, key=int), tokens, strict=True):
            if backend.token_to_id(token) != int(number):
                raise UserError(
                    f"{file} gives {token!r} the id {number}, but the vocabulary puts it at "
                    f"{backend.token_to_id(token)}: the files do not belong together."
                )
        find = Finder(backend, settings, str(file))
        named = {"bos": find.find_named("beginning"), "eos": find.find_named("end")}
        around = [
            [token] if settings.get(f"add_{name}_token") is True and token is not None else []
            for name, token in named.items()
        ]
        backend = add_tokens(backend, *around) if any(around) else backend
        return cls._resolve(backend, folder / "vocab.json", mask, "auto", "auto")

    @classmethod
    def _resolve(
        cls,
        backend: tokenizers.Tokenizer,
        file: Path,
        mask: Special | Literal["auto", "if any"],
        pad: Special | Literal["auto"],
        end: Special | Literal["auto"],
    ) -> "Tokenizer":
        beside = file.with_name("tokenizer_config.json")
        find = Finder(
            backend, read_json_object(beside, True) if beside.is_file() else {}, str(file)
        )
        end_id = find("end", end)
        pad_id = find("pad", pad, fallback=end_id)
        mask_id = find("mask", "auto" if mask == "if any" else mask)
        if end_id is None or pad_id is None:
            raise UserError(
                f"{file} has no end token that can be recognised (tried "
                f"{', '.join(KNOWN['end'])}): name it with end=… (its text or id); padding "
                "uses the end token unless pad=… is given."
            )
        if mask_id is None and mask == "auto":
            raise UserError(
                f"{file} has no mask token that can be recognised (tried "
                f"{', '.join(KNOWN['mask'])}): name it with mask=… (its text or id), "
                "or give mask=None for a causal model."
            )
        chat = read_chat_template(file.parent)
        return cls(backend, mask_id, pad_id, end_id, chat, find.find_named("beginning"))

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "Tokenizer":
        """A byte-level BPE of at most `vocab_size` tokens, learned from the texts.

        The mask token has the last id, so that a network's head can leave its row out.
        """
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        least = len(alphabet) + 3
        if vocab_size < least:
            raise UserError(
                f"a byte-level vocabulary of {vocab_size} was asked for, but the bytes and the "
                f"special tokens alone are {least}: ask for at least that many."
            )
        if vocab_size > MOST_TOKENS:
            raise UserError(
                f"a vocabulary of {vocab_size} was asked for: expected at most {MOST_TOKENS:,}."
            )
        backend = tokenizers.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - 1,
            special_tokens=[PAD, END],
            initial_alphabet=alphabet,
            show_progress=False,
        )
        backend.train_from_iterator(texts, trainer)
        backend.add_special_tokens([MASK])
        ids = backend.get_vocab(with_added_tokens=True)
        return cls(backend, ids[MASK], ids[PAD], ids[END])

    @classmethod
    def of_words(cls, texts: Iterable[str]) -> "Tokenizer":
        """One token for each word of the texts, words being what blanks part; others are unknown.

        The mask token has the last id.
        """
        words = sorted({word for text in texts for word in text.split()})
        names = [PAD, END, _UNKNOWN, *words]
        vocabulary = {name: i for i, name in enumerate(names)}
        backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=_UNKNOWN))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        backend.add_special_tokens([PAD, END, MASK])
        ids = backend.get_vocab(with_added_tokens=True)
        return cls(backend, ids[MASK], ids[PAD], ids[END])

    @property
    def vocab_size(self) -> int:
        """Rows that an embedding needs, the mask token's included."""
        highest = max(self.backend.get_vocab(with_added_tokens=True).values())
        return max(highest, self.mask_id if self.mask_id is not None else 0) + 1

    @property
    def opening(self) -> list[int]:
        """What a document comes after: its beginning, or the end token of the one before it."""
        return self.beginning or [self.end_id]

    @property
    def closing(self) -> list[int]:
        """What a document is closed by: its ending, and the end token in any case."""
        return self.ending if self.ending[-1:] == [self.end_id] else [*self.ending, self.end_id]

    def change_beginning(self, token: str) -> "Tokenizer":
        """The tokenizer with that token before every text; "none" adds nothing, nor at the end."""
        begin_id = None if token == NONE else self.backend.token_to_id(token)
        if begin_id is None and token != NONE:
            raise UserError(
                f"the beginning {token!r} is not in the tokenizer: give the text of one of its "
                f"tokens, or {NONE!r}."
            )
        around = ([], []) if begin_id is None else ([begin_id], self.ending)
        backend = add_tokens(self.backend, *around)
        ids = (self.mask_id, self.pad_id, self.end_id)
        return Tokenizer(backend, *ids, self.chat, self.begin_id if begin_id is None else begin_id)

    def encode(self, text: str, allow_mask: bool = False, added: Added = "beginning") -> Encoded:
        """Ids of the text; a mask token in it is an error unless allowed."""
        return self.encode_batch([text], allow_mask, added)[0]

    def encode_batch(
        self, texts: list[str], allow_mask: bool = False, added: Added = "beginning"
    ) -> list[Encoded]:
        """Ids of each text."""
        with _explain_texts(texts):
            encodings = self.backend.encode_batch(texts, add_special_tokens=False)
        encoded = [Encoded(one.ids, one.offsets) for one in encodings]
        if self.mask_id is not None and not allow_mask:
            for text, one in zip(texts, encoded, strict=True):
                if self.mask_id in one.ids:
                    mask = str(self.backend.id_to_token(self.mask_id))
                    if mask not in text:
                        at = slice(*one.offsets[one.ids.index(self.mask_id)])
                        raise UserError(
                            f"the text {_short(text)!r} holds {_short(text[at])!r}, which the "
                            "model's tokenizer does not know: take it out."
                        )
                    raise UserError(
                        f"the text {_short(text)!r} holds the mask token {mask}: plain texts must "
                        "not; take it out, or have it filled by `unmask sample --infill` "
                        "(`unmask.infill`)."
                    )
        pairs = zip(texts, encoded, strict=True)
        return [self.enclose(one, len(text), added) for text, one in pairs]

    def enclose(self, text: Encoded, length: int, added: Added) -> Encoded:
        """A text of that many characters with its beginning and ending, if it lacks them."""
        ids, offsets, before, after = text.ids, text.offsets, self.beginning, self.ending
        if before and added != "nothing" and ids[: len(before)] != before:
            ids, offsets = [*before, *ids], [(0, 0)] * len(before) + offsets
        if after and added == "both" and ids[-len(after) :] != after:
            ids, offsets = [*ids, *after], offsets + [(length, length)] * len(after)
        return Encoded(ids, offsets)

    def encode_documents(self, texts: list[str]) -> list[list[int]]:
        """Ids of texts that are data: what looks like a special token in them is plain text.

        Nothing is added: a document stands between `opening` and `closing`, a part of one does not.
        """
        before = self.backend.encode_special_tokens
        self.backend.encode_special_tokens = True
        try:
            with _explain_texts(texts):
                encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        finally:
            self.backend.encode_special_tokens = before
        return [one.ids for one in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids up to the first end token, without special tokens but the mask."""
        kept: list[int] = []
        pieces: list[str] = []
        for token in ids:
            if token == self.end_id:
                break
            if token == self.mask_id:
                pieces += [self.backend.decode(kept), MASK]
                kept = []
            elif token != self.pad_id:
                kept.append(token)
        return "".join(pieces) + self.backend.decode(kept)

    def find_special(self, texts: Iterable[str]) -> frozenset[int]:
        """The special tokens that are written as one of the texts, which `decode` does not show."""
        known, wanted = self.backend.get_added_tokens_decoder(), set(texts)
        return frozenset(token for token, each in known.items() if each.content in wanted)

    def piece(self, token: int) -> str:
        """A token's text as it stands inside a sentence; special tokens have none."""
        # Behind itself, since some tokenizers drop the space in front of a first word.
        once, twice = self.backend.decode([token]), self.backend.decode([token, token])
        return twice[len(once) :]

    def list_contents(self) -> list[object]:
        """All that decides what it does, to tell tokenizers apart by.

        What stands around a text is part of its backend; `begin_id` alone changes no text.
        """
        return [self.backend.to_str(), self.mask_id, self.pad_id, self.end_id, self.chat]

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json`, and the names of the special tokens beside it."""
        folder = Path(folder)
        with replace_file(folder / "tokenizer.json") as draft:
            self.backend.save(str(draft))
        ids = {
            "mask": self.mask_id,
            "pad": self.pad_id,
            "end": self.end_id,
            "beginning": self.begin_id,
        }
        texts = {role: self.backend.id_to_token(i) for role, i in ids.items() if i is not None}
        # A mask id past the vocabulary (SMDM's) has no text; the model's own settings keep it.
        named = {FIELDS[role]: text for role, text in texts.items() if text is not None}
        if self.chat is not None:
            named |= self.chat.to_settings()
        write_json(folder / "tokenizer_config.json", named)


@contextmanager
def _explain_texts(texts: list[str]) -> Generator[None]:
    """Turn what the library says about texts that it cannot cut into a sentence."""
    try:
        with explain_panics(f"the text {_short(str(texts[0]))!r}" if texts else "no text"):
            yield
    except TypeError:
        for text in texts:
            if not isinstance(text, str):
                raise UserError(f"{text!r} was given to the tokenizer: expected a text.") from None
            if SURROGATE.search(text):
                raise UserError(
                    f"the text {_short(text)!r} holds half of a surrogate pair, which is not a "
                    "character: write the character itself."
                ) from None
        raise
    except UserError:
        raise
    except Exception as error:  # the library raises plain Exception for a word without a token
        raise UserError(
            f"the tokenizer cannot cut the text {_short(texts[0])!r}: {error}."
        ) from None


def _short(text: str, length: int = 60) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"

"""Token shards: a text as flat files of ids on disk, memory-mapped, never all in memory."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from unmask.base.config import build
from unmask.base.errors import UserError
from unmask.base.files import create_folder, write_json
from unmask.base.reading import read_json_object
from unmask.data.tokenizer import Tokenizer
from unmask.data.unknown import Unknown

_log = logging.getLogger(__name__)

SHARDS_FORMAT = 1
_DOCUMENTS_AT_ONCE = 512
TOKENS_A_SHARD = 2**27


@dataclass(frozen=True, kw_only=True)
class ShardsInfo:
    """What `shards.json` says: enough to map the files without a tokenizer."""

    format: int
    dtype: Literal["uint16", "uint32"]
    vocab_size: int
    mask_id: int | None
    documents: int
    tokens: tuple[int, ...]
    """Tokens of each shard; shard i is the file `shard-{i:05d}.bin`."""
    unknown: str = ""
    """What the tokenizer lacks of the text, as a sentence."""


def write_shards(
    documents: Iterable[str],
    tokenizer: Tokenizer,
    folder: str | Path,
    tokens_a_shard: int = TOKENS_A_SHARD,
) -> ShardsInfo:
    """Write the documents, each from its beginning to an end token, as a new folder of shards."""
    dtype = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    counts: list[int] = []
    unknown = Unknown(tokenizer)
    num_documents = 0
    with create_folder(folder) as draft:
        tokenizer.save(draft)
        for ids, num in _encode(documents, tokenizer, unknown):
            num_documents += num
            tokens = np.asarray(ids, dtype)
            while len(tokens):
                if not counts or counts[-1] == tokens_a_shard:
                    counts.append(0)
                taken, tokens = np.split(tokens, [tokens_a_shard - counts[-1]])
                with _shard_path(draft, len(counts) - 1).open("ab") as file:
                    file.write(taken.tobytes())
                counts[-1] += len(taken)
        if not num_documents:
            raise UserError(
                "no documents were given: name at least one text file that is not empty."
            )
        info = ShardsInfo(
            format=SHARDS_FORMAT,
            dtype="uint16" if dtype is np.uint16 else "uint32",
            vocab_size=tokenizer.vocab_size,
            mask_id=tokenizer.mask_id,
            documents=num_documents,
            tokens=tuple(counts),
            unknown=unknown.describe(),
        )
        write_json(draft / "shards.json", asdict(info))
    if info.unknown:
        _log.warning("%s: %s.", folder, info.unknown)
    return info


class Shards:
    """The tokens of a folder of shards, memory-mapped."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        source = self.folder / "shards.json"
        self.info = build(ShardsInfo, read_json_object(source), str(source))
        if self.info.format != SHARDS_FORMAT or not self.info.tokens:
            raise UserError(
                f"{folder} has shard format {self.info.format} and {len(self.info.tokens)} shards, "
                f"expected format {SHARDS_FORMAT} and at least one: make the shards anew."
            )
        self.maps = [self._map(i, count) for i, count in enumerate(self.info.tokens)]

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold the tokens."""
        return tuple(_shard_path(self.folder, i) for i in range(len(self.maps)))

    def find_problems(self) -> Iterator[str]:
        """What is wrong with the tokens themselves, a sentence each; all of them are read."""
        if self.info.unknown:
            yield self.info.unknown
        for i, tokens in enumerate(self.maps):
            if (highest := int(tokens.max())) >= self.info.vocab_size:
                name = _shard_path(self.folder, i).name
                size = self.info.vocab_size
                yield f"{name} holds the token {highest}, past the vocabulary's {size}"

    def read_documents(self) -> Iterator[str]:
        """Each document, as the tokenizer in the folder reads it; none crosses two shards."""
        tokenizer = Tokenizer.load(self.folder, mask="if any")
        for tokens in self.maps:
            ends = np.flatnonzero(tokens == tokenizer.end_id)
            for ids in np.split(tokens, ends):
                yield tokenizer.decode([x for x in ids.tolist() if x != tokenizer.end_id])

    def _map(self, index: int, count: int) -> np.ndarray:
        path, dtype = _shard_path(self.folder, index), np.dtype(self.info.dtype)
        size = path.stat().st_size if path.is_file() else 0
        if size != count * dtype.itemsize:
            raise UserError(
                f"{path} has {size} bytes, expected {count * dtype.itemsize}: "
                "it was cut short; make the shards anew."
            )
        return np.memmap(path, dtype, mode="r")


class Windows:
    """Every stretch of `context` tokens of some shards, by number; none crosses two shards."""

    def __init__(self, shards: Shards, context: int):
        self.shards, self.context = shards, context
        counts = [count // context for count in shards.info.tokens]
        self._first = np.cumsum([0, *counts])
        if not len(self):
            raise UserError(
                f"{shards.folder} holds {sum(shards.info.tokens)} tokens, too few for one window "
                f"of {context}: add text or shorten the context."
            )

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitem__(self, number: int) -> np.ndarray:
        if not 0 <= number < len(self):
            raise IndexError(number)
        shard = int(np.searchsorted(self._first, number, side="right")) - 1
        start = (number - int(self._first[shard])) * self.context
        return self.shards.maps[shard][start : start + self.context]


def _encode(
    documents: Iterable[str], tokenizer: Tokenizer, unknown: Unknown
) -> Iterator[tuple[list[int], int]]:
    """Ids of some documents, joined by end tokens, and how many documents they were.

    What the tokenizer lacks of them is counted in `unknown`.
    """
    stream, before, after = iter(documents), tokenizer.beginning, tokenizer.closing
    while some := list(islice(stream, _DOCUMENTS_AT_ONCE)):
        rows = tokenizer.encode_documents(some)
        unknown.add(some)
        yield [i for ids in rows for i in (*before, *ids, *after)], len(some)


def _shard_path(folder: Path, index: int) -> Path:
    return folder / f"shard-{index:05d}.bin"

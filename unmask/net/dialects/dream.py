"""Dream: Qwen2.5's names and shapes, bidirectional, predicting the next position."""

from dataclasses import replace
from pathlib import Path

from unmask.data.tokenizer import Tokenizer
from unmask.net.dialects.layouts import Layout
from unmask.net.dialects.llama import NAMES
from unmask.net.dialects.qwen2 import TABLE


def read_qwen2_tokenizer(folder: Path, mask_id: int | None) -> Tokenizer | None:
    """Dream and others ship Qwen2's vocabulary and merges, and a tokenizer class as remote code."""
    if not (folder / "vocab.json").is_file() or not (folder / "merges.txt").is_file():
        return None
    return Tokenizer.from_qwen2_files(folder, mask=mask_id)


DIALECT = Layout(
    "Dream",
    "DreamModel",
    replace(TABLE, needed=("mask_token_id",)),
    NAMES,
    network={"qkv_bias": True},
    is_masked=True,
    shift=True,
).make_dialect(
    "dream",
    "Dream, Dream-Coder and DiffuCoder: row i predicts i + 1",
    read_tokenizer=read_qwen2_tokenizer,
)

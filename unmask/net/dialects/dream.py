"""Dream: Qwen2.5's names and shapes, bidirectional, predicting the next position."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from unmask.data.tokenizer import Tokenizer
from unmask.net.dialects import llama
from unmask.net.dialects.dialect import Source, build_config
from unmask.net.dialects.llama import read_rotary, write_rotary
from unmask.net.dialects.qwen2 import TABLE
from unmask.net.model import Blueprint

_TABLE = replace(TABLE, needed=("mask_token_id",))


def _read(source: Source) -> Blueprint:
    rotary = read_rotary(source.config, source.label)
    values = _TABLE.read(source.config, source.label)
    config = build_config(values, source, **rotary, qkv_bias=True)
    return Blueprint(config, "masked", source.config["mask_token_id"], shift=True)


def _write(blueprint: Blueprint) -> dict[str, Any]:
    return {
        "architectures": ["DreamModel"],
        "model_type": "Dream",
        **_TABLE.write(blueprint.config),
        **write_rotary(blueprint.config),
        "mask_token_id": blueprint.mask_id,
    }


def read_qwen2_tokenizer(folder: Path, mask_id: int | None) -> Tokenizer | None:
    """Dream and others ship Qwen2's vocabulary and merges, and a tokenizer class as remote code."""
    if not (folder / "vocab.json").is_file() or not (folder / "merges.txt").is_file():
        return None
    return Tokenizer.from_qwen2_files(folder, mask=mask_id)


DIALECT = replace(
    llama.DIALECT,
    name="dream",
    about="Dream, Dream-Coder and DiffuCoder: row i predicts i + 1",
    recognise=lambda source: source.config.get("model_type") == "Dream",
    read=_read,
    write=_write,
    read_tokenizer=read_qwen2_tokenizer,
    needs_mask=True,
)

"""Chats in English from the PyPI package chatterbot-corpus, as JSON lines to train on.

    pip download chatterbot-corpus --no-deps
    python tools/unpack_chats.py chatterbot_corpus-1.3.3-py2.py3-none-any.whl chats

The folder (the package is under the BSD licence) has train.jsonl, and test.jsonl with every tenth
question, of which training shows none. A chat that is there several times is kept once.
"""

import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from unmask.base.files import create_folder

ENGLISH = "chatterbot_corpus/data/english/"
EVERY = 10


def read_chats(wheel: Path) -> Iterator[tuple[str, ...]]:
    """The turns of every chat: those of a user and of an assistant take turns."""
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if name.startswith(ENGLISH) and name.endswith(".yml"):
                for turns in yaml.safe_load(archive.read(name))["conversations"]:
                    words = tuple(str(turn).strip() for turn in turns)
                    if len(words) > 1 and all(words):
                        yield words


def unpack(wheel: Path, folder: Path) -> None:
    """Write the chats, those of every tenth first question apart."""
    chats = dict.fromkeys(read_chats(wheel))
    asked = sorted({turns[0] for turns in chats})
    tested = set(asked[::EVERY])
    with create_folder(folder) as draft:
        for name, is_test in (("train", False), ("test", True)):
            kept = (turns for turns in chats if (turns[0] in tested) == is_test)
            lines = (json.dumps({"messages": _name_turns(turns)}) + "\n" for turns in kept)
            (draft / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def _name_turns(turns: tuple[str, ...]) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": words} for i, words in enumerate(turns)]


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))

"""Documents of text files: one a file in .txt, one a line in .jsonl, also as .xz or .zst."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from unmask.base.errors import UserError
from unmask.base.files import path_exists
from unmask.base.reading import read_json_lines, read_text, require_text
from unmask.base.unpacking import strip_packing


def read_documents(paths: Iterable[str | Path]) -> Iterator[str]:
    """Every document of the files, in order; a JSON line's document is its `text`."""
    for given in paths:
        if not isinstance(given, str | Path):
            raise UserError(f"a text's path is {given!r:.60}: expected the path of a file.")
        path = Path(given)
        if not path_exists(path):
            raise UserError(f"{path!s:.200} is not there: expected a file of text at this path.")
        name = strip_packing(path.name)
        if name.endswith((".txt", ".md")):
            text = read_text(path)
            if not text.strip():
                raise UserError(f"{path} is empty: expected some text.")
            yield text
        elif name.endswith(".jsonl"):
            for number, record in read_json_lines(path):
                yield require_text(record, "text", f"{path}, line {number}")
        else:
            raise UserError(
                f"{path}: text is read from .txt, .md and .jsonl files, also .xz and .zst; convert "
                "it."
            )

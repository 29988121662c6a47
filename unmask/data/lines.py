"""Lines of text and JSON files, plain or .xz; every complaint names the file and the line."""

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from unmask.base.errors import UserError


def open_text(path: str | Path) -> IO[str]:
    """The file as text, unpacked if its name ends in .xz; a byte order mark is no part of it."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path} is not there: expected a file at this path.")
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def read_text(path: str | Path) -> str:
    """The whole text of a file."""
    with open_text(path) as file:
        try:
            return file.read()
        except (UnicodeDecodeError, lzma.LZMAError, EOFError) as error:
            raise UserError(f"{path} cannot be read as UTF-8 text: {error}.") from None


def read_json_lines(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number (from 1) and record of every JSON line that is not blank; none is an error."""
    empty = True
    with open_text(path) as file:
        try:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    empty = False
                    yield number, _parse(line, f"{path}, line {number}")
        except (UnicodeDecodeError, lzma.LZMAError, EOFError) as error:
            raise UserError(f"{path} cannot be read as UTF-8 text: {error}.") from None
    if empty:
        raise UserError(f"{path} is empty: expected one JSON record a line.")


def require_text(record: dict[str, Any], key: str, where: str) -> str:
    """The text under `key` in a record, or a sentence about what is wrong with it."""
    value = record.get(key)
    if isinstance(value, str) and value:
        return value
    given = "is missing" if key not in record else f"is {value!r}"
    raise UserError(f"{where}: {key!r} {given}, expected a text that is not empty.")


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{where}: not valid JSON ({error.msg} at column {error.colno}): "
            "expected one JSON object on the line; repair or remove it."
        ) from None
    if not isinstance(record, dict):
        raise UserError(f"{where}: found a JSON {type(record).__name__}, expected an object {{…}}.")
    return record

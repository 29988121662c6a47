"""Text, JSON, YAML, CSV and tensors that others wrote: one reader per format, each with limits.

A file over a limit, or one that says something twice, is a `UserError` that names the file and,
where there are lines, the line.
"""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import yaml

from unmask.base.errors import UserError, suggest
from unmask.base.unpacking import DAMAGED, PACKED, Unpacked

MOST_TEXT_BYTES = 1 << 30
"""The largest file that is read as a whole."""
MOST_LINE_CHARACTERS = 1 << 26
MOST_DEPTH = 64
"""Lists and objects inside each other."""
MOST_YAML_NODES = 20_000
"""Values of a YAML file, counted again wherever an alias repeats them."""
MOST_FIELD_CHARACTERS = 1 << 17
"""The longest field of a CSV file."""
MOST_INTEGER = 2**63 - 1
SURROGATE = re.compile("[\ud800-\udfff]")
"""Halves of surrogate pairs, which no file in UTF-8 can hold."""


def open_text(path: str | Path) -> IO[str]:
    """The file as text, unpacked if it is an .xz or .zst; a byte order mark is no part of it."""
    path = Path(path)
    try:
        if not path.is_file():
            raise UserError(f"{path} is not there: expected a file at this path.")
        if path.suffix in PACKED:
            return io.TextIOWrapper(io.BufferedReader(Unpacked(path)), encoding="utf-8-sig")
        return path.open(encoding="utf-8-sig")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"{str(path)[:200]} cannot be opened: {reason}.") from None


def read_text(path: str | Path) -> str:
    """The whole text of a file."""
    too_large = f"{path} holds more than {MOST_TEXT_BYTES:,} bytes: expected less; cut it in parts."
    with open_text(path) as file:
        if Path(path).stat().st_size > MOST_TEXT_BYTES:
            raise UserError(too_large)
        try:
            text = file.read(MOST_TEXT_BYTES)
            is_whole = not file.read(1)
        except (UnicodeDecodeError, *DAMAGED) as error:
            raise UserError(f"{path} cannot be read as UTF-8 text: {error}.") from None
    if not is_whole:
        raise UserError(too_large)
    return text


def parse_json(text: str, source: str, wide_integers: bool = False) -> Any:
    """The value of a JSON text; `source` names it in messages.

    Keys that occur twice, deep nesting, integers beyond 64 bits (unless `wide_integers`) and
    halves of surrogate pairs are refused.
    """
    try:
        value = json.loads(text, object_pairs_hook=_join_pairs)
    except json.JSONDecodeError as error:
        where = f"column {error.colno}"
        if "\n" in text.rstrip():
            where = f"line {error.lineno}, {where}"
        raise UserError(
            f"{source} is not valid JSON ({error.msg} at {where}): repair it or make it anew."
        ) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source}: {_explain(error)}.") from None
    _check_values(value, source, wide_integers)
    return value


def read_json(path: str | Path, wide_integers: bool = False) -> Any:
    """The value in a JSON file; a missing, broken or hostile file is a `UserError`."""
    return parse_json(read_text(path), str(path), wide_integers)


def read_json_object(path: str | Path, wide_integers: bool = False) -> dict[str, Any]:
    """The object that a JSON file holds; anything else in it is refused."""
    return _require_object(read_json(path, wide_integers), str(path))


def read_json_lines(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number (from 1) and record of every JSON line that is not blank; none is an error."""
    empty = True
    for number, line in _read_lines(path):
        if line := line.strip():
            empty = False
            where = f"{path}, line {number}"
            yield number, _require_object(parse_json(line, where), where)
    if empty:
        raise UserError(f"{path} is empty: expected one JSON record per line.")


def parse_yaml(text: str, source: str) -> Any:
    """The value of a YAML text, plain values only.

    As in YAML 1.2 `1e-3` is a number, and on, off, yes and no are words.
    """
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{source} is not valid YAML: {' '.join(str(error).split())}.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source}: {_explain(error)}.") from None
    _check_values(value, source)
    return value


def read_csv(path: str | Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and fields of every row by the header's names, in small letters.

    Empty fields are left out.
    """
    csv.field_size_limit(MOST_FIELD_CHARACTERS)
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
    empty = True
    try:
        columns = [name.strip().lower() for name in reader.fieldnames or ()]
        for mark in (";", "\t"):
            if len(columns) == 1 and mark in columns[0]:
                raise UserError(
                    f"{path}: the header {columns[0]!r:.200} is separated by {mark!r}: expected "
                    "commas; save the file with commas between its fields."
                )
        reader.fieldnames = columns
        if (twice := _find_repeated(columns)) is not None:
            raise UserError(
                f"{path}: the header names the column {twice!r} more than once: rename or remove "
                "one of them."
            )
        for record in reader:
            empty = False
            if None in record or None in record.values():
                raise UserError(
                    f"{path}, line {reader.line_num}: the number of fields differs from the "
                    "header's; put fields that hold commas in double quotes."
                )
            yield reader.line_num, {key: value for key, value in record.items() if value != ""}
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}; is this a CSV file?") from None
    if empty:
        raise UserError(f"{path} is empty: expected a header and one record per line.")


def require_text(record: dict[str, Any], key: str, where: str) -> str:
    """The text under `key` in a record, or a sentence about what is wrong with it."""
    value = record.get(key)
    if isinstance(value, str) and value:
        return value
    given = "is missing" if key not in record else f"is {value!r}"
    raise UserError(f"{where}: {key!r} {given}, expected a text that is not empty.")


def refuse_unknown(record: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Raise for a field that a record should not have."""
    for key in record:
        if key not in known:
            raise UserError(f"{where}: unknown field {key!r} ({suggest(key, known)})")


def _read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    with open_text(path) as file:
        number = 0
        while True:
            try:
                line = file.readline(MOST_LINE_CHARACTERS + 1)
            except (UnicodeDecodeError, *DAMAGED) as error:
                raise UserError(f"{path} cannot be read as UTF-8 text: {error}.") from None
            if not line:
                return
            number += 1
            if len(line) > MOST_LINE_CHARACTERS:
                raise UserError(
                    f"{path}, line {number}: longer than {MOST_LINE_CHARACTERS:,} characters: "
                    "expected one record per line."
                )
            yield number, line


def _require_object(value: Any, source: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{source} holds a JSON {type(value).__name__}, expected an object {{…}}.")
    return value


def _join_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    joined = dict(pairs)
    if len(joined) < len(pairs):
        raise _RepeatedKeyError(_find_repeated(key for key, _ in pairs))
    return joined


def _find_repeated(names: Iterable[str]) -> str | None:
    """The first name that occurs more than once."""
    return next((name for name, times in Counter(names).items() if times > 1), None)


class _RepeatedKeyError(ValueError):
    """Its argument is the key."""


def _explain(error: ValueError | RecursionError) -> str:
    """What a parser stumbled over, where it says so by a plain Python error."""
    if isinstance(error, RecursionError):
        return f"nested deeper than {MOST_DEPTH} levels: expected plain settings or records"
    if isinstance(error, _RepeatedKeyError):
        return f"the key {error.args[0]!r} occurs more than once: remove one of them"
    return f"a value cannot be read ({str(error).split(';')[0]})"


def _check_values(value: Any, source: str, wide_integers: bool = False) -> None:
    """Raise for what later code could not print, store or walk through."""
    level, depth = [value], 0
    while level:
        inside: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inside += item
                inside += item.values()
            elif isinstance(item, list):
                inside += item
            elif isinstance(item, str):
                if not item.isascii() and SURROGATE.search(item):
                    raise UserError(
                        f"{source}: {item[:40]!r} holds half of a surrogate pair, which is not a "
                        "character: write the character itself."
                    )
            elif isinstance(item, int) and abs(item) > MOST_INTEGER and not wide_integers:
                raise UserError(
                    f"{source}: an integer of {item.bit_length()} bits: expected at most 64 bits; "
                    "put it in quotes if it is a name."
                )
        level, depth = inside, depth + 1
        if depth > MOST_DEPTH + 1:
            raise UserError(f"{source}: {_explain(RecursionError())}.")


class _Loader(yaml.SafeLoader):
    """Plain values, each key once, with limits on depth and on what aliases repeat."""

    def __init__(self, stream: Any):
        super().__init__(stream)
        self._depth = 0
        self._sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: Any, index: Any) -> yaml.Node:
        if self.check_event(yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if node not in self._sizes:
                raise ValueError("an alias that refers to what it stands in")
            return node
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise RecursionError
        node = super().compose_node(parent, index)
        self._depth -= 1
        self._sizes[node] = 1 + sum(self._sizes[child] for child in _list_children(node))
        if self._sizes[node] > MOST_YAML_NODES:
            raise ValueError(f"more than {MOST_YAML_NODES:,} values, aliases counted in full")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = (key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if (twice := _find_repeated(keys)) is not None:
            raise _RepeatedKeyError(twice)
        return super().construct_mapping(node, deep)


def _list_children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


_BOOL = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag != _BOOL]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    _BOOL, re.compile(r"(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def read_tensors(path: str | Path, what: str, remedy: str) -> tuple[dict[str, Any], dict[str, str]]:
    """All tensors of a safetensors file and its notes; `remedy` is what to do where it is broken.

    For files of one result; weights are read one by one (`unmask.net.weights`).
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), "pt") as file:
            names = list(file.keys())
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read as {what} ({error}): {remedy}.") from None

"""What a run is made from, known by its contents: digests of files and of values.

A large file is read once. Its digest is kept in the user's cache folder, with the file's size,
times and inode, and holds for as long as none of these has changed.
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from unmask.base.errors import UserError
from unmask.base.files import write_json
from unmask.base.units import format_bytes

_log = logging.getLogger(__name__)

LEAST_BYTES = 1 << 24
"""Smaller files are read each time: that takes some milliseconds."""
SETTLED_SECONDS = 2.0
"""A file that was changed later than this could change again without a change of its times."""
_NOTICED_BYTES = 1 << 30
"""Files of this size take a second or more to read."""
_CACHE_FILE = "digests.json"

FileState = list[int]
"""Size, time of the last write, time of the last change of any kind, inode."""


def digest_file(path: str | Path) -> str:
    """The SHA-256 of all bytes of a file, as `sha256sum` prints it."""
    path = Path(path).resolve()
    state = _read_state(path)
    if state[0] < LEAST_BYTES:
        return _read_all(path)
    entry = _read_cache().get(str(path))
    if isinstance(entry, dict) and entry.get("state") == state and "sha256" in entry:
        return str(entry["sha256"])
    if state[0] >= _NOTICED_BYTES:
        size = format_bytes(state[0])
        _log.info("reading all of %s once (%s), to know it again later", path, size)
    is_settled = time.time_ns() - max(state[1], state[2]) > SETTLED_SECONDS * 1e9
    digest = _read_all(path)
    if is_settled and _read_state(path) == state:
        _remember(path, state, digest)
    return digest


def digest_path(path: str | Path) -> str:
    """A digest of a file, or of the files in a folder with their names, hidden ones apart."""
    path = Path(path)
    if path.is_file():
        return digest_file(path)
    files = {each.relative_to(path): each for each in sorted(path.rglob("*")) if each.is_file()}
    known = {name: each for name, each in files.items() if not str(name).startswith(".")}
    return digest_values((str(name), digest_file(each)) for name, each in known.items())


def digest_values(values: Iterable[object]) -> str:
    """A digest of texts, numbers, bytes and frozen dataclasses of them, in this order."""
    digest = hashlib.sha256()
    for value in values:
        # Each value is preceded by its length, so that no two lists of values read alike.
        data = value if isinstance(value, bytes | memoryview) else _spell(value).encode()
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()


def _spell(value: Any) -> str:
    """What `repr` says, at any time.

    The `repr` that a dataclass is given notes which values it is at work on: one that an interrupt
    stopped in the wrong moment is "..." for the rest of the process.
    """
    kind = type(value)
    if hasattr(kind.__repr__, "__wrapped__"):  # the one that dataclasses are given
        pairs = ((each.name, getattr(value, each.name)) for each in fields(value) if each.repr)
        return f"{kind.__qualname__}({', '.join(f'{name}={_spell(own)}' for name, own in pairs)})"
    if kind is tuple and len(value) != 1:
        return f"({', '.join(map(_spell, value))})"
    if kind is tuple:
        return f"({_spell(value[0])},)"
    if kind is list:
        return f"[{', '.join(map(_spell, value))}]"
    if kind is dict:
        return f"{{{', '.join(f'{_spell(key)}: {_spell(own)}' for key, own in value.items())}}}"
    return repr(value)


def find_cache_folder() -> Path:
    """Where digests are kept: $UNMASK_CACHE, else `unmask` in the user's cache folder."""
    if own := os.environ.get("UNMASK_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unmask"


def _read_all(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_state(path: Path) -> FileState:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def _read_cache() -> dict[str, Any]:
    """What is remembered; nothing where the cache is missing, damaged or not to be read."""
    try:
        cache = json.loads((find_cache_folder() / _CACHE_FILE).read_text("utf-8"))
    except (OSError, ValueError, RuntimeError, RecursionError):  # RuntimeError: there is no home
        return {}
    return cache if isinstance(cache, dict) else {}


def _remember(path: Path, state: FileState, digest: str) -> None:
    """Add an entry, and drop those of files that are gone; a cache that cannot be written is none.

    Of two processes that write at once one loses its entry, and reads its file once more later.
    """
    cache = {name: entry for name, entry in _read_cache().items() if Path(name).is_file()}
    cache[str(path)] = {"state": state, "sha256": digest}
    with suppress(OSError, UserError, RuntimeError):
        write_json(find_cache_folder() / _CACHE_FILE, cache)

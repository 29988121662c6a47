"""Files that are either whole or not there: written beside their place, then moved into it."""

import ctypes
import errno
import json
import os
import re
import shutil
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from unmask.base.errors import UserError

_ADVICE = {
    errno.EACCES: "choose a folder you may write to, or change its permissions",
    errno.EPERM: "choose a folder you may write to, or change its permissions",
    errno.EROFS: "choose a folder on a disk that is not read-only",
    errno.ENOSPC: "free some space or choose a folder on another disk",
    errno.EDQUOT: "free some of your quota or choose a folder on another disk",
    errno.ENOTDIR: "choose a path whose parents are folders",
    errno.EISDIR: "choose a path that is not a folder",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOENT: "choose a folder in which others can be made",
}

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""Such as s3://bucket, of which a path keeps one stroke; a drive has one letter."""


@contextmanager
def replace_file(path: str | Path) -> Generator[Path]:
    """A path to write to, which becomes `path` when the block ends well and vanishes otherwise.

    What is there and is no file stays: a device would be lost.
    """
    path = Path(path)
    if not path.name or (path.exists() and not path.is_file() and not path.is_dir()):
        raise UserError(f"cannot write {str(path)!r:.200}: expected the path of a file.")
    with told_as_sentence(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = _draft_of(path)
        try:
            yield draft
            _sync(draft)
            draft.replace(path)
            _sync(path.parent)
        finally:
            draft.unlink(missing_ok=True)


@contextmanager
def create_folder(path: str | Path) -> Generator[Path]:
    """A folder to fill, which becomes `path` when the block ends well and vanishes otherwise.

    `path` must not exist yet (an empty folder counts as absent): nothing is overwritten.
    """
    refuse_existing(path)
    with replace_folder(path) as draft:
        yield draft


def refuse_existing(path: str | Path) -> Path:
    """The path, unless something is there that a new folder would overwrite."""
    path = Path(path)
    if path_exists(path) and (not path.is_dir() or any(path.iterdir())):
        raise UserError(
            f"{path} already exists and would be overwritten: choose another folder or remove it."
        )
    return path


@contextmanager
def replace_folder(path: str | Path) -> Generator[Path]:
    """A folder to fill, which takes the place of `path` atomically when the block ends well.

    The old folder stays whole until then, and whole if anything goes wrong.
    """
    path = _require_local(Path(path)).resolve()
    with told_as_sentence(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = _draft_of(path)
        try:
            draft.mkdir()
            yield draft
            for file in draft.rglob("*"):
                _sync(file)
            if path.exists():
                _exchange(draft, path)
            else:
                draft.replace(path)
            _sync(path.parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def remove_files(folder: str | Path, patterns: Iterable[str]) -> None:
    """Remove the files in `folder` that fit the patterns, their drafts, and folders left empty.

    Files behind a link to another folder may be somebody's own: then none is removed.
    """
    folder, files, emptied = Path(folder), list[Path](), set[Path]()
    for pattern in patterns:
        parent, _, name = pattern.rpartition("/")
        draft = f"{parent}/.{name}.*.draft" if parent else f".{name}.*.draft"
        for path in [*folder.glob(pattern), *folder.glob(draft)]:
            if path.is_dir() and not path.is_symlink():
                continue
            files.append(path)
    for path in files:
        if not path.parent.resolve().is_relative_to(folder.resolve()):
            raise UserError(
                f"{path} would be removed, but lies in {path.parent.resolve()}: remove the link to "
                "that folder, or choose another folder for the run. Nothing was removed."
            )
    for path in files:
        path.unlink(missing_ok=True)
        emptied.update(above for above in path.parents if folder in above.parents)
    for path in sorted(emptied, reverse=True):
        with suppress(OSError):  # it holds something else
            path.rmdir()


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as readable JSON, whole or not at all."""
    with replace_file(path) as draft:
        draft.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _draft_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid4().hex[:8]}.draft")


def _exchange(one: Path, other: Path) -> None:
    """Swap two paths atomically where the system can, else by two renames."""
    at_cwd, swap = -100, 2  # Linux: AT_FDCWD and RENAME_EXCHANGE of renameat2(2)
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None or rename(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), swap) != 0:
        aside = _draft_of(other)
        other.rename(aside)
        one.rename(other)
        aside.rename(one)


def _sync(path: Path) -> None:
    """Ask the disk to keep the file, so that a power cut after the move finds it whole."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def told_as_sentence(path: Path) -> Generator[None]:
    """What keeps `path` from being written, as a sentence."""
    _require_local(path)
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        code = _find_error_number(error)
        if code not in _ADVICE or not _concerns(getattr(error, "filename", None), path):
            raise
        reason = os.strerror(code).lower()
        raise UserError(
            f"cannot write {path}: {reason}; {_ADVICE[code]}. Nothing was changed."
        ) from error


def _require_local(path: Path) -> Path:
    """The path, unless libraries would take it for an address, or cannot take its name."""
    text = str(path)
    wrong = "is an address" if _ADDRESS.match(text) else None
    if text.encode(errors="replace") != os.fsencode(text):
        wrong = "has a name that is not UTF-8"
    if wrong is not None:
        raise UserError(
            f"cannot write {text!r:.200}, which {wrong}: expected a path on this machine in UTF-8; "
            "choose another. Nothing was changed."
        )
    return path


def _concerns(name: str | None, path: Path) -> bool:
    """Whether a file named by an error is being written: the path, its draft, a folder above.

    Others were being read inside the block and are not our complaint.
    """
    if name is None:
        return True
    at = Path(name).absolute()
    own = path.absolute()
    in_draft = any(part.startswith(f".{path.name}.") for part in at.parts)
    return in_draft or at == own or at in own.parents


def _find_error_number(error: Exception) -> int | None:
    """The system's number of an error; libraries written in Rust have it only in their text."""
    if isinstance(error, OSError):
        return error.errno
    match = re.search(r"os error (\d+)", str(error))
    return int(match[1]) if match else None


def path_exists(path: str | Path) -> bool:
    """Whether something is there; nothing is where a name is none that a path can have."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False

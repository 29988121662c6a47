"""Locks of run folders: one process at a time, or several that share one run or a list of work.

A lock is a small file in the folder that the system holds for a process (`filelock`). It is free
again when that process ends, whatever ends it, and holds between the hosts of a shared file system
as far as that has locks. The file names its holder, for people.
"""

import os
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from unmask.base.errors import UserError
from unmask.base.files import path_exists, told_as_sentence

SOLE, PATTERN = "run.lock", "run*.lock"


class RunRefusedError(UserError):
    """A folder that holds another run, or in which another process is at work."""


@contextmanager
def lock_run(folder: str | Path, shared: bool = False) -> Generator[None]:
    """Hold a run folder inside the block; refused where another process holds it.

    Commands that share a run may hold it at once, each by a lock of its own, while nobody holds it
    alone.
    """
    folder = Path(folder)
    was_there = path_exists(folder)
    if was_there and not folder.is_dir():
        raise UserError(f"{folder} is a file: expected the path of a folder to write a run to.")
    try:
        own = f"run-{socket.gethostname()}-{os.getpid()}.lock" if shared else SOLE
        with _hold(folder / own):
            for other in folder.glob(PATTERN):
                if other.name != own and (other.name == SOLE or not shared):
                    with _hold(other):  # refused, or a killed process left it and it goes
                        pass
            yield
    finally:
        if not was_there:
            with suppress(OSError):  # it holds a run
                folder.rmdir()


@contextmanager
def claim(path: str | Path) -> Generator[bool]:
    """Whether the work that this lock file stands for is this process's inside the block.

    It is not where another process holds the file; of several that try at once one succeeds.
    """
    path = Path(path)
    lock = FileLock(path)
    with told_as_sentence(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            pass
        else:
            path.write_text(f"{os.getpid()}\n{socket.gethostname()}\n", "utf-8")
    try:
        yield lock.is_locked
    finally:
        if lock.is_locked:
            path.unlink(missing_ok=True)  # while it is held: afterwards it may be another's
            lock.release()


@contextmanager
def _hold(path: Path) -> Generator[None]:
    with claim(path) as is_own:
        if not is_own:
            raise _refuse(path)
        yield


def _refuse(path: Path) -> RunRefusedError:
    holder = "another process"
    with suppress(OSError, ValueError):  # it has just let go, or has not written its name yet
        pid, host, *_ = path.read_text("utf-8").splitlines()
        since = datetime.fromtimestamp(path.stat().st_mtime)
        holder = f"process {pid} on {host}, since {since:%Y-%m-%d %H:%M:%S}"
    return RunRefusedError(
        f"{path.parent} is in use by {holder}: wait until it has ended, or choose another folder."
    )

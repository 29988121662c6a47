"""Locks of run folders: one process at a time, or several that share one run or a list of work.

A lock is a small file in the folder that says which process holds it. It goes when the process ends
its run; one that a killed process left is recognised, since no process of that number and start is
there any more. A claim on one piece of work is a lock that its holder also touches now and then, so
that it is recognised from other hosts as well.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from unmask.base.errors import UserError
from unmask.base.files import create_file

PATTERN = "run-*-of-*.lock"
_WRITING_SECONDS = 0.5
"""Longer than a process takes between making its lock and writing into it."""
BEAT_SECONDS, STALE_SECONDS = 20.0, 600.0
"""How often a claim is touched, and how long it is untouched when its holder counts as gone."""


class RunRefusedError(UserError):
    """A folder that holds another run, or in which another process is at work."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The process that holds a lock."""

    host: str
    namespace: str
    """The namespace of process numbers: each container on a host has its own."""
    pid: int
    started: str
    """When the process started, as the system counts; a later one may get the same number."""
    since: str
    """When it took the lock, for people."""

    @property
    def is_here(self) -> bool:
        """Whether this process can see if that one is there."""
        return (self.host, self.namespace) == (socket.gethostname(), _find_namespace())

    @property
    def is_gone(self) -> bool:
        """Whether the process is known to have ended."""
        if not self.is_here:
            return False
        start = find_start(self.pid)
        return start is None or bool(start and self.started and start != self.started)


@contextmanager
def lock_run(folder: str | Path, rank: int = 0, world: int = 1) -> Generator[None]:
    """Hold a run folder inside the block; refused where another process holds it.

    Process `rank` of `world` that share one run has a lock of its own: it waits for none of the
    others, and is refused where its own place is taken or another run is at work.
    """
    folder = Path(folder)
    was_there = folder.exists()
    if was_there and not folder.is_dir():
        raise UserError(f"{folder} is a file: expected the path of a folder to write a run to.")
    own = folder / f"run-{rank}-of-{world}.lock"
    _take(own)
    try:
        for other in folder.glob(PATTERN):
            if not other.name.endswith(f"-of-{world}.lock"):
                holder = _read_holder(other)
                if holder is not None and not holder.is_gone:
                    raise _refuse(folder, holder, other)
                _remove_stale(other, holder)
        yield
    finally:
        own.unlink(missing_ok=True)
        if not was_there:
            with suppress(OSError):  # it holds a run
                folder.rmdir()


@contextmanager
def claim(path: str | Path) -> Generator[bool]:
    """Whether the work that this lock file stands for is this process's inside the block.

    It is not where another process holds the file; of several that try at once one succeeds. The
    claim of a process that is gone, or on another host has not touched it for `STALE_SECONDS`, is
    taken over.
    """
    path, own = Path(path), _describe_holder()
    if not _take_claim(path, own):
        yield False
        return
    ended = threading.Event()
    beat = threading.Thread(target=_touch, args=(path, ended), daemon=True)
    beat.start()
    try:
        yield True
    finally:
        ended.set()
        beat.join()
        with suppress(OSError):
            if path.read_text("utf-8") == own:  # else it was taken over
                path.unlink()


def _take_claim(path: Path, own: str) -> bool:
    if create_file(path, own):
        return True
    holder = _read_holder(path)
    is_there = holder is not None and not holder.is_gone
    if holder is not None and is_there and (holder.is_here or _find_age(path) < STALE_SECONDS):
        return False
    _remove_stale(path, holder)
    return create_file(path, own)


def _find_age(path: Path) -> float:
    """Seconds since a claim was touched, by the clock of the file system; 0 where it is gone."""
    clock = path.with_name(f".{path.name}.{uuid4().hex[:8]}.draft")
    with suppress(FileNotFoundError):
        try:
            clock.touch()
            return clock.stat().st_mtime - path.stat().st_mtime
        finally:
            clock.unlink(missing_ok=True)
    return 0.0


def _touch(path: Path, ended: threading.Event) -> None:
    while not ended.wait(BEAT_SECONDS):
        with suppress(OSError):
            os.utime(path)


def _describe_holder() -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    own = Holder(
        host=socket.gethostname(),
        namespace=_find_namespace(),
        pid=os.getpid(),
        started=find_start(os.getpid()) or "",
        since=since,
    )
    return json.dumps(asdict(own))


def _take(path: Path) -> None:
    while not create_file(path, _describe_holder()):
        holder = _read_holder(path)
        if holder is not None and not holder.is_gone:
            raise _refuse(path.parent, holder, path)
        _remove_stale(path, holder)


def _refuse(folder: Path, holder: Holder, path: Path) -> RunRefusedError:
    advice = "wait until it has ended, or choose another folder"
    if not holder.is_here:
        advice += f"; if that process is gone, remove {path}"
    return RunRefusedError(
        f"{folder} is in use by process {holder.pid} on {holder.host}, since {holder.since}: "
        f"{advice}."
    )


def _read_holder(path: Path) -> Holder | None:
    """Who holds a lock; None where it is gone, or was left unwritten by a kill."""
    for pause in (_WRITING_SECONDS, 0):
        with suppress(OSError, ValueError, TypeError):
            return Holder(**json.loads(path.read_text("utf-8")))
        if not path.exists():
            return None
        time.sleep(pause)
    return None


def _remove_stale(path: Path, stale: Holder | None) -> None:
    """Remove a lock, unless another process has taken the place of the stale one meanwhile."""
    aside = path.with_name(f".{path.name}.{uuid4().hex[:8]}.draft")
    with suppress(FileNotFoundError):
        path.rename(aside)
        if _read_holder(aside) != stale:
            with suppress(OSError):
                os.link(aside, path)
        aside.unlink()


def find_start(pid: int) -> str | None:
    """When a process started, as the system counts; None where there is no such process.

    Empty where there is one of which no more is known, as outside Linux.
    """
    with suppress(OSError, IndexError, ValueError):
        # The name, in brackets, may hold anything; after it: the state, …, the start as 20th.
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return None if state in "ZX" else f"{boot} {fields[18]}"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return ""


def _find_namespace() -> str:
    with suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""

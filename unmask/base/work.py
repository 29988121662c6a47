"""Jobs that are shared: by this process, workers of this machine, tasks of Slurm or a Dask cluster.

A job has a key and leaves a part that is whole or absent, and nothing else says that it is done:
neither a process that has ended nor what a scheduler says of it. Whoever works takes the next job
whose part is absent and that nobody holds (`unmask.base.locks.claim`). So workers may come at any
time, and what one leaves that was killed is done again by another.

run_jobs     the jobs that are missing, worked on by an engine, as they end
work_on      what a worker does, in whatever process
"""

import logging
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from unmask.base.errors import NotMeasuredError, UserError
from unmask.base.files import write_json
from unmask.base.identity import digest_values
from unmask.base.locks import claim
from unmask.base.memory import keep_memory
from unmask.base.progress import track
from unmask.base.reading import read_json_object, read_text

FOLDER = "work"
"""Where in a run's folder workers keep their locks, notes of what failed, and logs."""
MOST_DEATHS = 3
"""Workers that may die of one job before it counts as failed."""

_log = logging.getLogger(__name__)

EndedJob = tuple[str, Exception | None]
"""A job that has ended: its key, and why it failed, None where its part is there."""


class SharedWork(Protocol):
    """Jobs by their keys. It is sent to workers, so that all it holds can be pickled."""

    @property
    def folder(self) -> Path:
        """Where the parts lie: a folder that all workers see."""
        ...

    @property
    def deadline(self) -> float | None:
        """When no further job is begun, as `time.time()`."""
        ...

    def open(self) -> Callable[[str], None]:
        """What does a job, given its key; called once by each worker, to read models and data."""
        ...

    def is_done(self, key: str) -> bool:
        """Whether the part of a job is there."""
        ...


@runtime_checkable
class ChainedWork(SharedWork, Protocol):
    """Jobs of which some need others, which cost more: the way to its end is counted."""

    needs: Mapping[str, Sequence[str]]
    """Jobs that are done before one, by its key."""


@dataclass(frozen=True)
class CallWork:
    """Calls of a function by the names that it is given; each leaves what it returned, as JSON."""

    folder: Path
    call: Callable[[str], Any]
    deadline: float | None = None

    def open(self) -> Callable[[str], None]:
        return lambda key: write_json(self.place(key), self.call(key))

    def is_done(self, key: str) -> bool:
        return self.place(key).is_file()

    def place(self, key: str) -> Path:
        """Where what a call returned is kept."""
        return self.folder / f"{key}.json"


class WorkEngine(Protocol):
    """Starts workers somewhere, and starts those anew that were lost."""

    delay: float
    """Seconds between looks at what is done."""

    def start(self, work: SharedWork, keys: list[str]) -> None:
        """Let workers begin with these jobs, in this order."""
        ...

    def tend(self, left: int) -> bool:
        """Whether any worker is at work or will be; `left` jobs have not ended."""
        ...

    def stop(self) -> None:
        """End all workers that are left, and cancel what was submitted."""
        ...


class JobFailedError(UserError):
    """Why a job failed in another process."""


def run_jobs(
    work: SharedWork,
    costs: Mapping[str, float],
    engine: WorkEngine | None,
    what: str,
    waits: bool = True,
) -> Generator[EndedJob]:
    """The jobs that were not done yet, as they end; those left at a deadline do not.

    Without an engine this process works, in the order of the keys; an engine begins with those
    that cost most, in any unit. A job that fails stops no other. With `waits`, jobs that another
    command is at work on are waited for, and done where it leaves them; else they are left to it.
    """
    left = [key for key in costs if not work.is_done(key)]
    for key in left:
        _forget(work, key)
    for key in costs.keys() - {*left}:
        if _find(work, key, "lock").is_file():
            _is_held(work, key)  # where nobody holds it, a kill left it, and it goes
    if engine is None:
        yield from _work_here(work, left, costs, what, waits)
        return
    if not left:
        return
    left.sort(key=lambda key: -costs[key])
    is_first = True
    with closing(_follow(work, left, engine, waits)) as followed:
        for key, error in track(followed, what, len(left), in_lines=True):
            if error is not None and is_first:
                _log.warning("%s; the other jobs go on", error)
                is_first = False
            yield key, error


def _work_here(
    work: SharedWork, left: list[str], costs: Mapping[str, float], what: str, waits: bool
) -> Generator[EndedJob]:
    do = None
    while True:
        held = list[str]()
        shown = track(left, what, len(left), in_lines=True, cost=lambda key: costs[key])
        with _swept(work), closing(shown) as tracked:
            for key in tracked:
                with claim(_find(work, key, "lock")) as is_own:
                    if is_own and not work.is_done(key) and not _is_over(work):
                        try:
                            do = do or work.open()
                            do(key)
                        except Exception as error:
                            yield key, error
                            continue
                if work.is_done(key):
                    yield key, None
                elif not is_own:
                    held.append(key)
        if not held or not waits or _is_over(work):
            return
        left = held
        time.sleep(1.0)


def _follow(
    work: SharedWork, left: list[str], engine: WorkEngine, waits: bool
) -> Generator[EndedJob]:
    """Jobs as their parts, or notes that they failed, are there."""
    try:
        while left:
            engine.start(work, left)
            before, is_at_work = len(left), True
            while left and is_at_work:
                time.sleep(engine.delay)
                # Before the look: what ended by then is seen.
                is_at_work = engine.tend(len(left))
                ended = dict(_find_ended(work, left))
                left = [key for key in left if key not in ended]
                yield from ended.items()
            left = [key for key in left if not _is_blocked(work, key)]
            begun = [key for key in left if _find(work, key, "starts").is_file()]
            held = [key for key in begun if _is_held(work, key)]
            if not left or _is_over(work) or (held and not waits):
                return
            if held:  # by workers of another command
                time.sleep(engine.delay)
            elif len(left) == before and not begun:
                logs = sorted((work.folder / FOLDER).glob("*.log"))
                lines = [line for log in logs for line in read_text(log).splitlines()[-1:]]
                raise UserError(
                    f"{len(left)} of the jobs were not done, such as {left[0]!r:.100}, though all "
                    f"workers have ended ({' '.join(lines[-1:]) or 'without a word':.300}): "
                    f"expected that they see {work.folder} and have this version of Unmask; the "
                    "same command goes on with what is done."
                )
    finally:
        engine.stop()


def _find_ended(work: SharedWork, keys: Iterable[str]) -> Generator[EndedJob]:
    for key in keys:
        if work.is_done(key):
            yield key, None
        elif (note := _find(work, key, "failed")).is_file():
            yield key, _read_failure(read_json_object(note), key)


def work_on(
    work: SharedWork, keys: list[str], call: str, is_wanted: Callable[[], bool] = lambda: True
) -> None:
    """Do the jobs that are neither done, nor failed, nor held by another worker, while `is_wanted`.

    What is opened stays open for the next jobs of the same `call`, where there are any: a process
    of Dask gets them one by one. Its threads take turns, as torch's settings are the process's.
    """
    keep_memory()
    while keys:
        later = list[str]()
        for i, key in enumerate(keys):
            if _is_over(work) or not is_wanted():
                return
            if _is_settled(work, key) or _is_blocked(work, key):
                continue
            if not all(map(work.is_done, _list_needs(work, key))):
                later.append(key)
                continue
            with _TURN, claim(_find(work, key, "lock")) as is_own:
                if is_own and not _is_settled(work, key):
                    with _log_to(work.folder / FOLDER):
                        _work_on_one(work, key, call)
            if later:  # one of them may be ready now, and comes first
                later += keys[i + 1 :]
                break
        if len(later) == len(keys):
            time.sleep(0.5)
        keys = later


def _list_needs(work: SharedWork, key: str) -> Sequence[str]:
    return work.needs.get(key, ()) if isinstance(work, ChainedWork) else ()


def _is_blocked(work: SharedWork, key: str) -> bool:
    """Whether something that a job needs has failed, or cannot be done for the same reason."""
    return any(
        _find(work, each, "failed").is_file() or _is_blocked(work, each)
        for each in _list_needs(work, key)
    )


_TURN = threading.Lock()
_opened: tuple[str, Callable[[str], None]] | None = None


def _work_on_one(work: SharedWork, key: str, call: str) -> None:
    global _opened
    starts = _find(work, key, "starts")
    deaths = starts.read_text("utf-8").splitlines() if starts.is_file() else []
    if len(deaths) >= MOST_DEATHS:
        error = f"{len(deaths)} workers died of it, the last was {deaths[-1]}; its log is beside"
        _note_failure(work, key, f"{error} {_find(work, key, 'failed')}.")
        return
    with starts.open("a", encoding="utf-8") as file:
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    began = time.monotonic()
    _log.info("%s: begins", key)
    try:
        if _opened is None or _opened[0] != call:
            _opened = None  # its memory is free before the next is opened
            _opened = call, _open(work)
        _opened[1](key)
    except Exception as error:
        text, more = str(error), dict[str, Any]()
        if isinstance(error, NotMeasuredError):
            more = {"code": error.code, "values": error.values}
        elif not isinstance(error, UserError):
            text = f"{type(error).__name__}: {error}"
            more = {"traceback": traceback.format_exc()}
        _log.warning("%s: failed: %s", key, text)
        _note_failure(work, key, text, **more)
    else:
        _log.info("%s: ended after %.1f s", key, time.monotonic() - began)
    finally:  # a kill leaves it
        starts.unlink(missing_ok=True)


def _open(work: SharedWork) -> Callable[[str], None]:
    """What does a job; where it cannot be opened, every job fails, and it is not tried again."""
    try:
        return work.open()
    except Exception as error:
        reason = error

    def fail(key: str) -> None:
        raise reason

    return fail


def _note_failure(work: SharedWork, key: str, error: str, **more: Any) -> None:
    write_json(_find(work, key, "failed"), {"error": error, **more})


def _read_failure(record: Mapping[str, Any], key: str) -> Exception:
    if "code" in record:
        return NotMeasuredError(record["code"], **record["values"])
    error = JobFailedError(f"{key}: {record['error']}")
    if "traceback" in record:
        error.add_note(record["traceback"])
    return error


def _forget(work: SharedWork, key: str) -> None:
    """Remove what an earlier call noted of a job that failed, or of which workers died."""
    for what in ("failed", "starts"):
        _find(work, key, what).unlink(missing_ok=True)


def _is_settled(work: SharedWork, key: str) -> bool:
    return work.is_done(key) or _find(work, key, "failed").is_file()


def _is_over(work: SharedWork) -> bool:
    return work.deadline is not None and time.time() >= work.deadline


def _is_held(work: SharedWork, key: str) -> bool:
    with claim(_find(work, key, "lock")) as is_own:
        return not is_own


def _find(work: SharedWork, key: str, what: str) -> Path:
    """A file of a job in the folder of locks and notes; a key may be no file's name."""
    name = "".join(each if each.isalnum() or each in "-_=." else "_" for each in key[:40])
    return work.folder / FOLDER / f"{name}-{digest_values([key])[:12]}.{what}"


@contextmanager
def _swept(work: SharedWork) -> Generator[None]:
    """Remove the folder of locks and notes after the block, unless something is left in it."""
    try:
        yield
    finally:
        with suppress(OSError):
            (work.folder / FOLDER).rmdir()


@contextmanager
def _log_to(folder: Path) -> Generator[None]:
    """Inside the block the package's log goes to this worker's file as well."""
    log = logging.getLogger("unmask")
    handler = logging.FileHandler(
        folder / f"worker-{socket.gethostname()}-{os.getpid()}.log", encoding="utf-8"
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    level = log.level
    log.addHandler(handler)
    log.setLevel(min(level, logging.INFO) or logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        handler.close()

"""How a command ends: by itself, by a signal, by a mistake, or for want of memory."""

import shlex
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from io import TextIOWrapper
from types import FrameType
from typing import Any, NoReturn

from unmask.base.errors import UserError

MISTAKE = 2
UNDONE = 3
"""Cells of a sweep are left: its minutes were over, or other commands are at work on them."""
INTERRUPTED = 130
"""After Ctrl-C, as shells have it."""
TERMINATED = 143
"""After SIGTERM, as shells have it."""

_FULL = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "Cannot allocate memory",
    "bad_alloc",
    "failed to map segment",
    "unable to mmap",
    "can't start new thread",
    "Storage size calculation overflowed",
)
"""How libraries say that memory is full, where they do not raise `MemoryError`."""


class Terminated(KeyboardInterrupt):
    """SIGTERM: it ends a command in the same way as Ctrl-C."""


@contextmanager
def stop_alike() -> Generator[None]:
    """The way out of every command that a signal ends: a line on stderr and the exit code.

    SIGTERM and Ctrl-C both raise inside the block, so that files are left whole and notes on what
    is kept are added on the way (`note_when_stopped`).
    """
    before = _raise_on_sigterm()
    try:
        yield
    except KeyboardInterrupt as stop:
        is_term = isinstance(stop, Terminated)
        lines = ["terminated" if is_term else "interrupted", *getattr(stop, "__notes__", ())]
        _leave("; ".join(lines), TERMINATED if is_term else INTERRUPTED)
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def explain_errors() -> Generator[None]:
    """A user's mistake, a file that cannot be used and full memory are a sentence on stderr."""
    try:
        yield
    except UserError as error:
        _leave(f"error: {error}", MISTAKE)
    except Exception as error:
        if is_memory_full(error):
            _leave(f"error: {_describe_full(error)}", MISTAKE)
        if isinstance(error, BrokenPipeError) or not isinstance(error, OSError):
            raise
        _leave(f"error: {error.filename or 'a file'}: {error.strerror or error}.", MISTAKE)


@contextmanager
def note_when_stopped(describe: Callable[[], str | None]) -> Generator[None]:
    """Where a signal ends the block, what `describe` says is printed: what is kept, how to resume.

    It is not called otherwise; None: nothing is kept.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        if note := describe():
            stop.add_note(note)
        raise


def repeat_command() -> str:
    """The command that is running, as a shell takes it."""
    return shlex.join(["unmask", *sys.argv[1:]])


def is_memory_full(error: BaseException) -> bool:
    """Whether an error, or what caused it, says that there is no memory left."""
    causes = [error, error.__cause__, error.__context__]
    return any(
        isinstance(each, MemoryError) or any(words in str(each) for words in _FULL)
        for each in causes
        if isinstance(each, MemoryError | RuntimeError | OSError | ImportError)
    )


def show_any_text() -> None:
    """Have the standard streams escape what their encoding lacks, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _raise_on_sigterm() -> Any:
    """Have SIGTERM raise; what it did before, None where signals are another thread's."""
    if threading.current_thread() is not threading.main_thread():
        return None

    def stop(number: int, frame: FrameType | None) -> None:
        raise Terminated

    return signal.signal(signal.SIGTERM, stop)


def _describe_full(error: Exception) -> str:
    reason = (str(error).splitlines() or [""])[0][:200] or type(error).__name__
    return (
        f"the memory is full ({reason}): take fewer facts or texts, a shorter canvas or a smaller "
        "model, or allow more memory. Parts of a run that are done are kept."
    )


def _leave(message: str, status: int) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(status)

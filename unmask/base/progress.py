"""Bars of rich on stderr, where a person is watching and it is installed.

Elsewhere long work says in a plain line now and then how far it is, for whoever reads a log.
"""

import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from io import TextIOBase
from typing import IO, TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")

LINE_EVERY = 10.0
"""Seconds between lines where there is no terminal to show a bar on."""

_bars: "Progress | None" = None
"""The display that is up: rich draws one at a time without stray lines."""


def track(
    items: Iterable[T], what: str, total: int | None = None, in_lines: bool = False
) -> Iterator[T]:
    """The items, with a bar that names the work, counts it and shows the time left.

    With `in_lines`, long work says the same in plain lines where there is no terminal.
    """
    is_inner = _bars is not None
    with _open_bars() as bars:
        if bars is None:
            yield from _track_in_lines(items, what, total) if in_lines else items
            return
        task = bars.add_task(f"  {what}" if is_inner else what, total=total)
        try:
            yield from bars.track(items, total=total, task_id=task)
        finally:
            if is_inner:
                bars.remove_task(task)


@contextmanager
def watch(what: str) -> Generator[Callable[[int, int | None, str], None]]:
    """A function that moves a bar, or prints lines: how much is done, of how much, and a note."""
    with _open_bars() as bars:
        if bars is None:
            yield print_lines(f"{what}: step")
            return
        task = bars.add_task(what, total=None)
        yield lambda done, total, note: bars.update(
            task, completed=done, total=total, description=f"{what}  {note}"
        )


@contextmanager
def show_stages(names: Sequence[str]) -> Generator[Callable[[str, bool], None]]:
    """A function that says that a stage begins, or that it is done; one display for all of them.

    What is tracked meanwhile has a line of its own below them.
    """
    with _open_bars() as bars:
        if bars is None:
            yield lambda name, is_done: None
            return
        tasks = {name: bars.add_task(name, total=1, start=False) for name in names}

        def mark(name: str, is_done: bool) -> None:
            bars.start_task(tasks[name])
            if is_done:
                bars.update(tasks[name], completed=1)
                bars.stop_task(tasks[name])

        yield mark


def print_lines(
    what: str, first: float = 0.0, every: float | None = None
) -> Callable[[int, int | None, str], None]:
    """A function that prints how far work is: after `first` seconds, then once in `every`.

    Of several processes of torchrun only the first one prints.
    """
    every = LINE_EVERY if every is None else every
    due = time.monotonic() + (first if os.environ.get("RANK", "0") == "0" else float("inf"))

    def move(done: int, total: int | None, note: str) -> None:
        nonlocal due
        if time.monotonic() < due:
            return
        due = time.monotonic() + every
        of = "" if total is None else f" of {total}"
        # Like a bar, it is for whoever waits: not a message that a program would log.
        sys.stderr.write(f"{what} {done}{of}  {note}\n")
        sys.stderr.flush()

    return move


def _track_in_lines(items: Iterable[T], what: str, total: int | None) -> Iterator[T]:
    move, start = print_lines(f"{what}:", first=LINE_EVERY), time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        passed = time.monotonic() - start
        left = "" if total is None else f", about {passed / done * (total - done):.0f} s left"
        if done != total:
            move(done, total, f"after {passed:.0f} s{left}")


@contextmanager
def _open_bars() -> "Generator[Progress | None]":
    """The display that is up, or a new one; None without rich or a terminal."""
    global _bars
    if _bars is not None or find_spec("rich") is None:
        yield _bars
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield None
        return
    # `_print_above` does what rich's own redirection leaves stray lines of.
    bars = progress.Progress(
        *columns, console=console, redirect_stdout=False, redirect_stderr=False
    )
    with ExitStack() as stack:
        if sys.stdout.isatty():
            stack.enter_context(redirect_stdout(_print_above(bars, sys.stdout)))
        stack.enter_context(redirect_stderr(_print_above(bars, sys.stderr)))
        _bars = stack.enter_context(bars)
        try:
            yield bars
        finally:
            _bars = None


def _print_above(display: "Progress", stream: IO[str]) -> TextIOBase:
    """A stand-in for the terminal's `stream`, whose lines appear above the display."""
    from rich.file_proxy import FileProxy

    class Above(FileProxy):
        @property
        def rich_proxied_file(self) -> IO[str]:
            # rich's own stand-in shows the stream to all its consoles, which then write past the
            # display. Only the display's may.
            raise AttributeError("rich_proxied_file")

        def write(self, text: str) -> int:
            # Not while the display draws itself, in a thread of its own: it moves up by as many
            # lines as it had before, and would erase this one.
            with display.live._lock:
                super().write(text)
            return len(text)

        def flush(self) -> None:
            with display.live._lock:
                super().flush()

    return Above(display.console, stream)

"""One kind of progress bar, on stderr, where a person is watching and rich is installed.

Elsewhere long work says in a plain line now and then how far it is, for whoever reads a log.

There is one display at a time: what is tracked while one is up gets a line in it. A second display,
or anything that writes past it, would stand in its last line, and it could not erase itself.
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

_display: "Progress | None" = None
"""The display that is up: the terminal has room for one."""


def track(
    items: Iterable[T], what: str, total: int | None = None, in_lines: bool = False
) -> Iterator[T]:
    """The items, with a bar that names the work, counts it and shows its pace and the time left.

    With `in_lines`, long work says the same in plain lines where there is no terminal.
    """
    is_inner = _display is not None
    with _open_display() as display:
        if display is None or display.disable:
            # Without rich nothing is shown; with it, but without a terminal, lines.
            has_lines = in_lines and display is not None
            yield from _track_in_lines(items, what, total) if has_lines else items
            return
        task = display.add_task(f"  {what}" if is_inner else what, total=total)
        try:
            yield from display.track(items, total=total, task_id=task)
        finally:
            if is_inner:
                display.remove_task(task)


@contextmanager
def watch(what: str) -> Generator[Callable[[int, int | None, str], None]]:
    """A function that moves a bar, or prints lines: how much is done, of how much, and a note."""
    with _open_display() as display:
        if display is None:
            yield lambda done, total, note: None
            return
        if display.disable:
            yield print_lines(f"{what}: step")
            return
        task = display.add_task(what, total=None)

        def move(done: int, total: int | None, note: str) -> None:
            display.update(task, completed=done, total=total, description=f"{what}  {note}")

        yield move


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
def show_stages(names: Sequence[str]) -> Generator[Callable[[str, bool], None]]:
    """A function that says that a stage begins, or that it is done; one display for all of them.

    What is tracked meanwhile gets a line of its own below them, with its pace and its time left.
    """
    with _open_display() as display:
        if display is None:
            yield lambda name, is_done: None
            return
        tasks = {name: display.add_task(name, total=1, start=False) for name in names}

        def mark(name: str, is_done: bool) -> None:
            display.start_task(tasks[name])
            if is_done:
                display.update(tasks[name], completed=1)
                display.stop_task(tasks[name])

        yield mark


@contextmanager
def _open_display() -> "Generator[Progress | None]":
    """The display that is up, or a new one; None without rich."""
    global _display
    if _display is not None or find_spec("rich") is None:
        yield _display
        return
    display = _make_display()
    with ExitStack() as stack:
        if not display.disable:
            if sys.stdout.isatty():
                stack.enter_context(redirect_stdout(_print_above(display, sys.stdout)))
            stack.enter_context(redirect_stderr(_print_above(display, sys.stderr)))
        stack.enter_context(display)
        _display = display
        try:
            yield display
        finally:
            _display = None


def _make_display() -> "Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Pace(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text("" if task.speed is None else f"{task.speed:.2g}/s")

    console = Console(file=sys.stderr)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Pace(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(
        *columns,
        console=console,
        disable=not console.is_terminal,
        redirect_stdout=False,  # `_print_above` does it
        redirect_stderr=False,
    )


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

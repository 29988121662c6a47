"""One kind of progress bar, on stderr, only where a person is watching and rich is installed.

There is one display at a time: what is tracked while one is up gets a line in it. A second display,
or anything that writes past it, would stand in its last line, and it could not erase itself.
"""

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from io import TextIOBase
from typing import IO, TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")

_display: "Progress | None" = None
"""The display that is up: the terminal has room for one."""


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """The items, with a bar that names the work, counts it and shows its pace and the time left."""
    is_inner = _display is not None
    with _open_display() as display:
        if display is None:
            yield from items
            return
        task = display.add_task(f"  {what}" if is_inner else what, total=total)
        try:
            yield from display.track(items, total=total, task_id=task)
        finally:
            if is_inner:
                display.remove_task(task)


@contextmanager
def watch(what: str) -> Generator[Callable[[int, int | None, str], None]]:
    """A function that moves a bar: how much is done, of how much, and a note beside the name."""
    with _open_display() as display:
        if display is None:
            yield lambda done, total, note: None
            return
        task = display.add_task(what, total=None)

        def move(done: int, total: int | None, note: str) -> None:
            display.update(task, completed=done, total=total, description=f"{what}  {note}")

        yield move


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

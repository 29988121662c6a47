"""One kind of progress bar, on stderr, only where a person is watching."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

Item = TypeVar("Item")

_SHARED: "ContextVar[Progress | None]" = ContextVar("shared bar", default=None)
"""The display of the work that is going on around, if there is one: two would overwrite it."""


def track(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """The items, with a bar that names the work, counts it and tells its pace and the time left."""
    with _open_bar() as bar:
        task = bar.add_task(f"  {what}" if _SHARED.get() else what, total=total)
        yield from bar.track(items, total=total, task_id=task)
        if _SHARED.get():
            bar.remove_task(task)


@contextmanager
def watch(what: str) -> Generator[Callable[[int, int | None, str], None]]:
    """A function that moves a bar: how much is done, of how much, and a note beside the name."""
    with _open_bar() as bar:
        task = bar.add_task(what, total=None)

        def tell(done: int, total: int | None, note: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{what}  {note}")

        yield tell


@contextmanager
def show_stages(names: Sequence[str]) -> Generator[Callable[[str, bool], None]]:
    """A function that says that a stage begins, or that it is done; one display for all of them.

    What is tracked meanwhile gets a line of its own below them, with its pace and its time left.
    """
    with _make_bar() as bar:
        tasks = {name: bar.add_task(name, total=1, start=False) for name in names}
        token = _SHARED.set(bar)

        def tell(name: str, done: bool) -> None:
            bar.start_task(tasks[name])
            if done:
                bar.update(tasks[name], completed=1)
                bar.stop_task(tasks[name])

        try:
            yield tell
        finally:
            _SHARED.reset(token)


@contextmanager
def _open_bar() -> "Generator[Progress]":
    """The display around, or one of its own."""
    shared = _SHARED.get()
    if shared is not None:
        yield shared
        return
    with _make_bar() as bar:
        yield bar


def _make_bar() -> "Progress":
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

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Pace(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, disable=not console.is_terminal)

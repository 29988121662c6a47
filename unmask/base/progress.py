"""One kind of progress bar, on stderr, only where a person is watching."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

Item = TypeVar("Item")


def track(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """The items, with a bar that names the work, counts it and tells its pace and the time left."""
    with _make_bar() as bar:
        yield from bar.track(items, description=what, total=total)


@contextmanager
def watch(what: str) -> Generator[Callable[[int, int | None, str], None]]:
    """A function that moves a bar: how much is done, of how much, and a note beside the name."""
    with _make_bar() as bar:
        task = bar.add_task(what, total=None)

        def tell(done: int, total: int | None, note: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{what}  {note}")

        yield tell


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

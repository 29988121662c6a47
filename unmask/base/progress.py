"""How far long work is, and how long it will take: bars on stderr where a person is watching.

Elsewhere, or without rich, a plain line says the same now and then, for whoever reads a log. Work
inside other work moves the outermost one by its share, so that the time left is known early.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from io import TextIOBase
from typing import IO, TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

T = TypeVar("T")

LINE_FIRST, LINE_EVERY = 1.5, 10.0
"""Seconds until the first line, and between lines, where there is no terminal to show a bar on.

The first one waits as long again for an estimate. With what a command takes to start, it is there
within five seconds."""


@dataclass(eq=False)
class _Tracked:
    """Items that are gone through: how many there are, and how much of it each is."""

    what: str
    total: int | None
    whole: float
    done: int = 0
    cost_done: float = 0.0
    cost_now: float = 0.0
    task: "TaskID | None" = None
    is_told: bool = False
    """Whether lines tell of it, and with it of all that is inside."""


_bars: "Progress | None" = None
"""The display that is up: rich draws one at a time without stray lines."""
_works: list[_Tracked] = []
"""What is at work, the outermost first: each one after it is inside an item of the one before."""


def track(
    items: Iterable[T],
    what: str,
    total: int | None = None,
    in_lines: bool = False,
    cost: Callable[[T], float] = lambda item: 1.0,
) -> Generator[T]:
    """The items, with a bar that names the work, counts it and shows the time left.

    With `in_lines`, long work says the same in plain lines where there is no terminal. The time
    left supposes that an item takes as long as its `cost`, in any unit.
    """
    costs = list(map(cost, items)) if isinstance(items, Sequence) else [1.0] * (total or 0)
    work, is_inner = _Tracked(what, total, sum(costs)), _is_shown()
    with _open_bars() as bars, _show(work, bars, is_inner, in_lines):
        for i, item in enumerate(items):
            work.cost_now = costs[i] if i < len(costs) else 0.0
            yield item
            work.done, work.cost_done = work.done + 1, work.cost_done + work.cost_now
            work.cost_now = 0.0
            _move_bars(bars)


def track_inside(items: Sequence[T]) -> Iterator[T]:
    """The items of work inside other work: a bar that is up, or its line, moves with each."""
    with count_inside(len(items)) as begin:
        for i, item in enumerate(items):
            begin(i, 1)
            yield item


@contextmanager
def count_inside(total: int) -> Generator[Callable[[int, int], None]]:
    """A function that says, inside other work, how many of `total` are done and how many begin."""
    work = _Tracked("", total, float(total))

    def begin(done: int, number: int) -> None:
        work.done, work.cost_done, work.cost_now = done, float(done), float(number)
        _move_bars(_bars)

    if not _works:  # nothing is shown that it could move
        yield lambda done, number: None
        return
    _works.append(work)
    try:
        yield begin
    finally:
        if work in _works:
            _works.remove(work)


@contextmanager
def announce(what: str) -> Generator[None]:
    """Says that work goes on which is not counted, as long as nothing inside it is."""
    work, is_inner = _Tracked(what, None, 1.0, cost_now=1.0), _is_shown()
    with _open_bars() as bars, _show(work, bars, is_inner, in_lines=True):
        yield


def _is_shown() -> bool:
    """Whether other work is shown, of which what begins now is a part."""
    return _bars is not None or bool(_works)


@contextmanager
def _show(
    work: _Tracked, bars: "Progress | None", is_inner: bool, in_lines: bool
) -> Generator[None]:
    """The work among those that are shown: as a bar, or in lines that a thread prints."""
    stop = threading.Event()
    _works.append(work)
    if bars is not None:
        work.task = bars.add_task(f"  {work.what}" if is_inner else work.what, total=work.total)
    elif in_lines and not any(each.is_told for each in _works) and _is_first():
        work.is_told = True
        threading.Thread(target=_print_estimates, args=(work, stop), daemon=True).start()
    try:
        yield
    finally:
        stop.set()
        # What is inside ends with it, even where an error kept its own end from being reached.
        del _works[_works.index(work) if work in _works else len(_works) :]
        if bars is not None and work.task is not None and (is_inner or work.total is None):
            bars.remove_task(work.task)


def _move_bars(bars: "Progress | None") -> None:
    """Move the bar of every work at hand; those inside an item move the ones outside of it."""
    for i, work in enumerate(_works) if bars is not None else ():
        if bars is not None and work.task is not None and work.total is not None:
            bars.update(work.task, completed=_find_share(_works[i:]) * work.total)


def _find_share(works: Sequence[_Tracked]) -> float:
    """How much of the first of these works is done; each later one is inside an item of it."""
    share = 0.0
    for work in reversed(works):
        share = (work.cost_done + work.cost_now * share) / work.whole if work.whole else 0.0
    return min(share, 1.0)


def _print_estimates(work: _Tracked, stop: threading.Event) -> None:
    """Lines that say how far work is and how long it will take, until it ends."""
    start, wait = time.monotonic(), LINE_FIRST
    while not stop.wait(wait):
        works, passed = list(_works), time.monotonic() - start
        works = works[works.index(work) :] if work in works else [work]
        wait = LINE_EVERY
        if passed < 2 * LINE_FIRST and not _find_share(works):
            wait = LINE_FIRST / 5
        else:
            _print_line(say_how_far(works, passed))


def say_how_far(works: Sequence[_Tracked], passed: float) -> str:
    """A line on the first of these works after so many seconds; the others are inside it."""
    first, share = works[0], _find_share(works)
    count = "" if first.total is None else f" {first.done} of {first.total}"
    left = "how long it takes is not known yet"
    if share > 0:
        left = f"about {format_seconds(passed / share * (1 - share))} left"
    return f"{first.what}:{count}  after {format_seconds(passed)}, {left}"


def format_seconds(seconds: float) -> str:
    """A time as people say it, such as "40 s", "12 min" or "3.5 h"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"


def _is_first() -> bool:
    """Whether this process is the first of those of torchrun, which speaks for all."""
    return os.environ.get("RANK", "0") == "0"


def _print_line(text: str) -> None:
    # Like a bar, it is for whoever waits: not a message that a program would log.
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@contextmanager
def watch(what: str) -> Generator[Callable[[int, int | None, str], None]]:
    """A function that moves a bar, or prints lines: how much is done, of how much, and a note.

    Until it is called first, lines say what is counted inside.
    """
    with _open_bars() as bars:
        if bars is None:
            with ExitStack() as early:
                early.enter_context(announce(what))
                say = print_lines(f"{what}: step")

                def move(done: int, total: int | None, note: str) -> None:
                    early.close()
                    say(done, total, note)

                yield move
            return
        task = bars.add_task(what, total=None)
        yield lambda done, total, note: bars.update(
            task, completed=done, total=total, description=f"{what}  {note}"
        )


@contextmanager
def show_stages(
    names: Sequence[str], cost: Callable[[str], float] = lambda name: 1.0
) -> Generator[Callable[[str, bool], None]]:
    """A function that says that a stage begins, or that it is done; one display for all of them.

    What is tracked meanwhile has a line of its own below them. The time left supposes that a stage
    takes as long as its `cost`, in any unit.
    """
    with _open_bars() as bars:
        if bars is None:
            whole = sum(map(cost, names))
            work, is_inner = _Tracked("stages", len(names), whole), _is_shown()

            def count(name: str, is_done: bool) -> None:
                work.done += is_done
                work.cost_done += cost(name) * is_done
                work.cost_now = cost(name) * (not is_done)

            with _show(work, None, is_inner, in_lines=True):
                yield count
            return
        tasks = {name: bars.add_task(name, total=1, start=False) for name in names}

        def mark(name: str, is_done: bool) -> None:
            bars.start_task(tasks[name])
            if is_done:
                bars.update(tasks[name], completed=1)
                bars.stop_task(tasks[name])

        yield mark


def print_lines(what: str, every: float | None = None) -> Callable[[int, int | None, str], None]:
    """A function that prints how far work is, soon a second time, then once in `every` seconds.

    From the second line on it says how long the rest takes. Of several processes of torchrun only
    the first one prints.
    """
    every = LINE_EVERY if every is None else every
    due = time.monotonic() if _is_first() else float("inf")
    begun: tuple[float, int] | None = None

    def move(done: int, total: int | None, note: str) -> None:
        nonlocal due, begun
        now = time.monotonic()
        if now < due:
            return
        of, left = "" if total is None else f" of {total}", ""
        if begun is not None and total is not None and done > begun[1]:
            rest = (now - begun[0]) / (done - begun[1]) * (total - done)
            left = f", about {format_seconds(rest)} left"
        due = now + (every if begun is not None else min(LINE_FIRST, every))
        begun = begun or (now, done)
        _print_line(f"{what} {done}{of}  {note}{left}")

    return move


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

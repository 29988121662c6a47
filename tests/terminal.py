"""A terminal of a given size, for what a person sees when a command has run in it."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyte


def run_in_terminal(
    command: Sequence[str | Path],
    columns: int = 100,
    rows: int = 30,
    changes: Mapping[str, str] | None = None,
) -> list[str]:
    """Every line that the command left, those that scrolled away first; it must succeed."""
    keyboard, display = pty.openpty()
    fcntl.ioctl(display, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", **(changes or {})}
    child = subprocess.Popen(
        [str(word) for word in command],
        stdin=display,
        stdout=display,
        stderr=display,
        env=environment,
        start_new_session=True,
    )
    os.close(display)
    screen = pyte.HistoryScreen(columns, rows, history=10_000)
    stream = pyte.ByteStream(screen)
    while output := _read(keyboard):
        stream.feed(output)
    os.close(keyboard)
    above = ["".join(line[x].data for x in range(columns)) for line in screen.history.top]
    lines = [line.rstrip() for line in [*above, *screen.display]]
    assert child.wait() == 0, "\n".join(lines)
    return [line for line in lines if line]


def _read(keyboard: int) -> bytes:
    """What the command writes; nothing once it has ended."""
    try:
        return os.read(keyboard, 65536)
    except OSError:  # Linux's way to say that nobody has the other end open any more
        return b""

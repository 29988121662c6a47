"""Being asked to stop: SIGTERM and Ctrl-C let the step end and the run save itself."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


class Request:
    """Whether somebody asked this process to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Note the signal; a second Ctrl-C does not wait."""
        if self.signal == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.signal = number


@contextmanager
def listen() -> Generator[Request]:
    """A request to look at between steps; signals do what they did before afterwards."""
    request = Request()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, request.receive)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

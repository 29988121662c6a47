"""One thread that holds the models: calls wait in a queue before it and run one after the other.

A model is not thread-safe (its taps are state of the process), and two calls at once would only
share the same cores. A call whose client is gone leaves the queue, or stops at its next event.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from unmask.base.errors import UserError
from unmask.net.batches import ran_out_of_memory

MOST_WAITING = 64
"""Calls in the queue; one more is refused."""
RESULT, MISTAKE, FAILURE = "result", "error", "failure"
"""The last event of a call: what its work returned, a user's mistake, or an error of the server."""

FULL = "the memory is full: shorten the canvas, take fewer samples, or explore a smaller model."

_log = logging.getLogger(__name__)

Emit = Callable[[str, Any], None]
"""Sends an event to the client, by name; raises `ClientGoneError` where there is none any more."""
Work = Callable[[Emit], Any]


class BusyError(UserError):
    """The queue is full."""


class ClientGoneError(Exception):
    """Raised inside the work of a call that nobody waits for any more."""


class Call:
    """The work of one request, and the events it sends to the event loop that waits for them."""

    def __init__(self, work: Work):
        self.work = work
        self.events: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._is_gone = threading.Event()

    def emit(self, name: str, data: Any) -> None:
        """Send an event; from any thread."""
        if self._is_gone.is_set():
            raise ClientGoneError
        try:
            self._loop.call_soon_threadsafe(self.events.put_nowait, (name, data))
        except RuntimeError as error:  # the event loop is closed
            raise ClientGoneError from error

    def leave(self) -> None:
        """The client is gone: nothing of this call is wanted any more."""
        self._is_gone.set()

    def run(self) -> None:
        """Do the work; its last event says how that ended."""
        try:
            with torch.inference_mode():
                last = RESULT, self.work(self.emit)
        except ClientGoneError:
            return
        except UserError as error:
            last = MISTAKE, str(error)
        except Exception as error:
            is_full = isinstance(error, RuntimeError) and ran_out_of_memory(error)
            if is_full or isinstance(error, MemoryError):
                last = MISTAKE, FULL
            else:
                _log.exception("a call of the explorer failed")
                last = FAILURE, f"the explorer failed ({type(error).__name__}): its log says more."
        try:
            self.emit(*last)
        except ClientGoneError:
            return


class Worker:
    """The thread, and the queue before it."""

    def __init__(self) -> None:
        self._waiting: deque[Call] = deque()
        self._running: Call | None = None
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="unmask-explorer", daemon=True)
        self._thread.start()

    def submit(self, call: Call) -> None:
        """Put a call into the queue; while it waits, `queued` events say how many are before it."""
        with self._changed:
            if len(self._waiting) >= MOST_WAITING:
                raise BusyError(f"{MOST_WAITING} calls are waiting already: try again in a moment.")
            self._waiting.append(call)
            self._changed.notify_all()
            if before := self.count() - 1:
                call.emit("queued", {"before": before})

    def leave(self, call: Call) -> None:
        """The client of a call is gone: it leaves the queue, or stops at its next event."""
        call.leave()
        with self._changed:
            if call in self._waiting:
                self._waiting.remove(call)
                self._announce()

    def count(self) -> int:
        """Calls that wait or run."""
        return len(self._waiting) + (self._running is not None)

    def close(self) -> None:
        """End the thread once the running call has stopped."""
        with self._changed:
            self._is_closed = True
            for call in (*self._waiting, self._running):
                if call is not None:
                    call.leave()
            self._waiting.clear()
            self._changed.notify_all()
        self._thread.join(timeout=60)

    def _serve(self) -> None:
        while (call := self._take()) is not None:
            call.run()
            with self._changed:
                self._running = None
            del call  # its work may hold tensors, and the next call may be far off

    def _take(self) -> Call | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if self._is_closed:
                return None
            self._running = self._waiting.popleft()
            self._announce()
            return self._running

    def _announce(self) -> None:
        """Tell the calls that still wait how many are before them."""
        ahead = int(self._running is not None)
        for before, call in enumerate(self._waiting, ahead):
            try:
                call.emit("queued", {"before": before})
            except ClientGoneError:
                continue

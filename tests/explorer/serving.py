"""The explorer over the shipped pair: in this process without a socket, and as a real server."""

import json
import socket
import threading
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import uvicorn
from starlette.testclient import TestClient

import unmask
from unmask.explorer.server import make_app
from unmask.explorer.session import Explorer, open_dictionary
from unmask.explorer.worker import Worker

TOKEN = "a-token"
HEADERS = {"X-Unmask-Token": TOKEN}


def load_pair() -> Explorer:
    """The shipped pair."""
    model = unmask.load("reversal-mdm", device="cpu", dtype="float32")
    twin = unmask.load("reversal-ar", device="cpu", dtype="float32")
    return Explorer({"model": model, "twin": twin}, features=open_dictionary(model))


@contextmanager
def open_client(explorer: Explorer) -> Generator[TestClient]:
    """Calls of the application, with the token, from its own page."""
    worker = Worker()
    app = make_app(explorer, worker, TOKEN)
    with TestClient(app, base_url="http://127.0.0.1:8000", headers=HEADERS) as client:
        yield client
    worker.close()


def read_events(text: str) -> list[tuple[str, Any]]:
    """The events of a stream."""
    pairs = (piece.split("\n", 1) for piece in text.split("\n\n") if piece)
    return [(n.removeprefix("event: "), json.loads(d.removeprefix("data: "))) for n, d in pairs]


@dataclass
class Served:
    """A server in a thread of this process."""

    port: int
    worker: Worker
    server: uvicorn.Server

    def post(self, call: str, body: Any) -> tuple[HTTPConnection, HTTPResponse]:
        """Send a call; its answer is read by the caller, who closes the connection."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", f"/api/{call}", json.dumps(body), HEADERS)
        return connection, connection.getresponse()

    def ask(self, call: str, body: Any) -> tuple[int, str]:
        """Status and text of a call."""
        connection, response = self.post(call, body)
        with closing(connection):
            return response.status, response.read().decode()

    def follow(self, call: str, body: Any) -> Generator[tuple[str, Any]]:
        """Events of a stream as they come; leaving the loop closes the connection."""
        connection, response = self.post(call, body)
        with closing(connection), response:
            name = ""
            for line in response:
                text = line.decode().rstrip("\n")
                if text.startswith("event: "):
                    name = text.removeprefix("event: ")
                elif text:
                    yield name, json.loads(text.removeprefix("data: "))

    def read_start(self) -> str:
        """What the server says there is."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        with closing(connection):
            connection.request("GET", "/api/start", headers=HEADERS)
            return connection.getresponse().read().decode()

    def time_first(self, call: str, body: Any, event: str) -> float:
        """Seconds from the request to the first event of a name; the rest is given up."""
        start, events = time.perf_counter(), self.follow(call, body)
        next(name for name, _ in events if name == event)
        seconds = time.perf_counter() - start
        events.close()
        while self.worker.count():
            time.sleep(0.01)
        return seconds


@contextmanager
def serve(explorer: Explorer) -> Generator[Served]:
    """A real server on a free port of this machine."""
    worker = Worker()
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        app = make_app(explorer, worker, TOKEN)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Served(listener.getsockname()[1], worker, server)
        finally:
            server.should_exit = True
            thread.join(timeout=20)
            worker.close()
    assert not thread.is_alive()

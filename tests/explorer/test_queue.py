"""The queue before the models: who waits, who leaves, and that nothing stays behind."""

import asyncio
import gc
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.explorer.serving import HEADERS, TOKEN, Served, read_events, serve
from unmask.explorer.server import make_app
from unmask.explorer.session import Explorer, open_dictionary
from unmask.explorer.worker import MOST_WAITING, Call, Worker

WRITE = {
    "model": "model",
    "canvas": {"prompt": "We sat down beside"},
    "settings": {"steps": 4, "length": 16},
}
LONG = {**WRITE, "settings": {"steps": 1000, "length": 40}}
"""Many steps: a text that takes a while."""
TRACE = {"model": "model", "prompt": "Ann sat beside", "answer": "Bob", "subject": [0, 3]}


@pytest.fixture
def served(explorer):
    with serve(explorer) as served:
        yield served


def wait_until_idle(worker: Worker, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while worker.count() and time.monotonic() < end:
        time.sleep(0.02)
    assert worker.count() == 0


def test_a_closed_tab_stops_its_work(served):
    """The trace would take a minute; what runs next waits a moment only."""
    body = {**TRACE, "samples": 100, "steps": 1}
    events = served.follow("trace", body)
    assert next(events)[0] == "start"
    assert served.worker.count() == 1
    events.close()
    wait_until_idle(served.worker)
    status, text = served.ask("write", WRITE)
    assert status == 200 and read_events(text)[-1][0] == "end"


def test_a_second_tab_waits_its_turn(served):
    first = served.follow("write", LONG)
    assert next(first)[0] == "start"
    second = served.follow("write", WRITE)
    assert next(second) == ("queued", {"before": 1})
    first.close()  # by which the second comes to be the one that runs
    names = [name for name, _ in second]
    assert names[-1] == "end" and "start" in names


def test_a_call_that_waits_can_be_given_up(served):
    first = served.follow("write", LONG)
    next(first)
    second = served.follow("write", LONG)
    assert next(second)[0] == "queued" and served.worker.count() == 2
    second.close()
    end = time.monotonic() + 20
    while served.worker.count() > 1 and time.monotonic() < end:
        time.sleep(0.02)
    assert served.worker.count() == 1
    first.close()
    wait_until_idle(served.worker)


def test_a_full_queue_is_a_sentence(explorer):
    blocked = threading.Event()

    async def fill():
        worker = Worker()
        for _ in range(MOST_WAITING + 1):
            worker.submit(Call(lambda emit: blocked.wait(20)))
            time.sleep(0.001)
        app = make_app(explorer, worker, TOKEN)
        return worker, app

    worker, app = asyncio.run(fill())
    try:
        end = time.monotonic() + 5
        while worker.count() <= MOST_WAITING and time.monotonic() < end:
            time.sleep(0.01)
        client = TestClient(app, base_url="http://127.0.0.1:8000", headers=HEADERS)
        body = {"model": "model", "canvas": {"tokens": [5, 6]}, "position": 1}
        answer = client.post("/api/position", json=body)
        assert answer.status_code == 503 and "waiting" in answer.json()["error"]
    finally:
        blocked.set()
        worker.close()


def read_memory() -> int:
    """Bytes that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def count_calls() -> int:
    gc.collect()
    return sum(type(each) is Call for each in gc.get_objects())


def leave_abruptly(port: int, number: int) -> None:
    """Send a call, read a few bytes or none, and reset the connection."""
    body = json.dumps(LONG if number % 2 else WRITE).encode()
    lines = [
        "POST /api/write HTTP/1.1", f"Host: 127.0.0.1:{port}", f"X-Unmask-Token: {TOKEN}",
        f"Content-Length: {len(body)}", "", "",
    ]  # fmt: skip
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        # Some leave in the midst of sending.
        text = "\r\n".join(lines).encode() + body
        connection.sendall(text[:-10] if number % 5 == 0 else text)
        if number % 3 == 0 and number % 5:
            connection.recv(100)
        linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def test_parallel_calls_and_abrupt_ends_leave_nothing(explorer, capfd):
    with serve(explorer) as served:
        leave_and_count(served)
    assert capfd.readouterr().err == ""  # no log either


def leave_and_count(served: Served) -> None:
    expected = read_events(served.ask("write", WRITE)[1])
    threads = threading.active_count()
    wait_until_idle(served.worker)
    before, held = count_calls(), read_memory()

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: served.ask("write", WRITE), range(20)))
    for status, text in answers:
        events = [event for event in read_events(text) if event[0] != "queued"]
        assert status == 200
        assert events[:-1] == expected[:-1]  # the last one has the time that it took

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: leave_abruptly(served.port, number), range(50)))
    wait_until_idle(served.worker)
    status, text = served.ask("write", WRITE)
    assert status == 200 and read_events(text)[-1][0] == "end"
    wait_until_idle(served.worker)
    time.sleep(0.2)
    assert count_calls() <= before
    assert threading.active_count() == threads
    assert not served.server.server_state.connections
    assert read_memory() - held < 64 * 2**20


@pytest.mark.prove
def test_first_frames_come_at_once():
    """With the shipped pair as it is shipped; the best of a few, since a machine has other work."""
    from unmask import load, sample

    model = load("reversal-mdm")
    explorer = Explorer({"model": model, "twin": load("reversal-ar")}, None, open_dictionary(model))
    with serve(explorer) as served:
        fact = json.loads(served.read_start())["facts"][0]
        write = {"canvas": {"prompt": fact["prompt"]}, "settings": {"steps": 16, "length": 40}}
        named = {name: fact[name] for name in ("prompt", "answer")}
        for key in explorer.models:
            first = [served.time_first("write", {"model": key, **write}, "step") for _ in range(9)]
            assert min(first) < 0.15
            trace = {"model": key, **named, "subject": fact["span"]}
            cells = [served.time_first("trace", trace, "cells") for _ in range(5)]
            assert min(cells) < 1.0
            print(f"{key}: first guesses {min(first):.3f} s, first cells {min(cells):.3f} s")
        drawn = sample(explorer.models["model"], fact["prompt"], steps=16, length=40)
        body = {"model": "model", "states": drawn.states[:, 0].tolist()}
        states = [served.time_first("smearing", body, "state") for _ in range(5)]
        times = []
        for _ in range(5):
            start = time.perf_counter()
            served.ask("features", body | {"position": 30})
            times.append(time.perf_counter() - start)
        print(f"first smearing {min(states):.3f} s, features {min(times):.3f} s")
        assert min(states) < 1.0 and min(times) < 1.0

"""`unmask explore` as a process: what it prints, how it ends, what it says of mistakes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

import pytest
from typer.testing import CliRunner

from tests.conftest import hear_interrupts
from tests.explorer.serving import read_events
from unmask.base.errors import UserError
from unmask.cli.main import app

COMMAND = [sys.executable, "-m", "unmask", "explore", "--no-open"]


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.prove)],
)
def test_the_address_is_printed_last_and_answers_until_it_is_stopped(number, status):
    process = subprocess.Popen(
        COMMAND,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_interrupts,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        parts = urlsplit(address)
        (token,) = parse_qs(parts.query)["token"]
        assert parts.hostname == "127.0.0.1" and len(token) >= 32
        with urlopen(address, timeout=60) as page:
            assert page.status == 200 and b"<!doctype html>" in page.read(100).lower()
        canvas, settings = {"prompt": "We sat down beside"}, {"length": 8}
        body = json.dumps({"model": "twin", "canvas": canvas, "settings": settings}).encode()
        headers = {"X-Unmask-Token": token}
        request = Request(f"http://{parts.netloc}/api/write", body, headers)
        with urlopen(request, timeout=60) as answer:
            events = read_events(answer.read().decode())
        assert events[-1][0] == "end" and events[-1][1]["text"].startswith("We sat down beside")
        process.send_signal(number)
        rest, errors = process.communicate(timeout=60)
        assert rest == "" and process.returncode == status, errors
        assert re.fullmatch(r"(interrupted|terminated)\n", errors), errors
        assert token not in errors
    finally:
        process.kill()
        process.wait()


def test_mistakes_are_sentences(tmp_path):
    runner = CliRunner()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        cases = {
            ("--port", str(taken.getsockname()[1])): "cannot be used",
            ("--port", "99999"): "expected 0 to 65535",
            ("no-such-model",): "no-such-model",
            ("--runs", str(tmp_path / "none")): "there is no folder",
        }
        for words, sentence in cases.items():
            done = runner.invoke(app, ["explore", "--no-open", *words])
            assert isinstance(done.exception, UserError) and sentence in str(done.exception)
            assert done.stdout == ""

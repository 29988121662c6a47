"""Spoiled requests to the explorer: each is answered by a sentence, and no file comes back."""

import copy
import json
import random
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import unmask
from tests.conftest import make_model
from tests.explorer.serving import open_client, read_events
from unmask.dictionaries.dictionary import make_random_dictionary
from unmask.explorer.server import CALLS, STREAMS
from unmask.explorer.session import Explorer, OpenDictionary

REQUESTS = 700
CANVAS = {"prompt": "We sat down beside", "length": 24}
SETTINGS = {"steps": 2, "length": 24, "order": "confidence", "remasking": "none", "seed": 1}
STEERING = {"feature": 3, "strength": 2.0, "schedule": "late"}
PLACE = {"canvas": CANVAS, "position": 3, "layer": 0, "step": 1, "steps": 2}
QUESTION = {"model": "model", "prompt": "Mira Holt is", "subject": [0, 9]}
TRACE = QUESTION | {"answer": "the baker", "parts": ["resid"], "samples": 1, "steps": 2}
BODIES = {
    "tokenize": {"model": "model", "text": "We sat"},
    "python": {"view": "write", "request": {"model": "model", "canvas": CANVAS}},
    "write": {
        "model": "model",
        "canvas": CANVAS,
        "settings": SETTINGS,
        "top": 2,
        "steering": STEERING,
    },
    "position": {"model": "model", "canvas": CANVAS, "position": 5, "step": 1, "steps": 2},
    "features": {"model": "model", "states": [[1, 2, 3], [1, 2, 3]], "position": 1, "top": 3},
    "smearing": {"model": "model", "states": [[1, 2, 3], [1, 2, 3]]},
    "move": {"model": "model", "from": PLACE, "to": PLACE, "settings": SETTINGS},
    "trace": TRACE,
    "circuit": QUESTION
    | {"answer": "baker", "other_subject": "Mira Holm", "other_answer": "smith", "steps": 2},
    "restore": TRACE | {"part": "resid", "layer": 0, "position": 2},
    "edit": QUESTION | {"old": "a", "new": "b", "search_steps": 1, "steps": 2, "length": 24},
    "undo": {"model": "model"},
    "edits": {},
}
VALUES = [
    None, True, -1, 0, 2**63, 10**400, 1e39, float("nan"), float("inf"), -0.5, "", "\0",
    "[MASK]" * 40, "../../etc/passwd", "file:///etc/passwd", "\ud800", "x" * 30_000, "é" * 50,
    "{}", "{0.__class__}", "<img src=x>", [], [0], [[]], [-1, 2**70], {}, {"__class__": 1},
    {"canvas": {"canvas": {}}}, [None] * 300, "none", "twin",
]  # fmt: skip
RAW = [
    b"", b"null", b"[]", b"3", b'"x"', b"{", b"\xff\xfe", b"[" * 5000, b'{"a":' * 3000,
    b'{"model":"model","model":1}',
]  # fmt: skip
PLACES = [
    "/etc/passwd", "//etc/passwd", "/static/../server.py", "/static/..%2f..%2fpyproject.toml",
    "/static/%2e%2e/x", "/static//etc/passwd", "/static/\\..\\server.py",
    "/static/..%5cserver.py", "/api/runs/..%2f..%2fetc%2fpasswd", "/api/runs/%00", "/api/runs/.",
    "/api/runs/..", "/api/runs/", "/api/", "/api/write/x", "/api/%77rite", "/%2e%2e",
    "/api/runs/" + "x" * 3000, "/?token=", "/static", "/static/", "/favicon.ico",
    "/api/start/../runs/x",
]  # fmt: skip


@pytest.fixture(scope="module")
def client():
    models = {"model": make_model(), "twin": make_model(causal=True)}
    dictionary = make_random_dictionary(models["model"].net.config.width, 12, 3)
    features = OpenDictionary("features", replace(dictionary, site="layers.0.resid_out"))
    with open_client(Explorer(models, features=features)) as client:
        yield client


def spoil(body, draw: random.Random):
    """The body with one to three of its values, at any depth, replaced, removed or doubled."""
    body = copy.deepcopy(body)
    for _ in range(draw.randint(1, 3)):
        at = body
        while True:
            keys = list(at) if isinstance(at, dict) else range(len(at))
            if not keys:
                break
            key = draw.choice(list(keys))
            if isinstance(at[key], dict | list) and at[key] and draw.random() < 0.6:
                at = at[key]
                continue
            what = draw.random()
            if what < 0.75:
                at[key] = copy.deepcopy(draw.choice(VALUES))
            elif what < 0.9 or isinstance(at, list):
                del at[key]
            else:
                at[draw.choice(["", "x", "__proto__", key + " "])] = at[key]
            break
    return body


def list_requests(draw: random.Random):
    """Method, path and content of spoiled requests, without end."""
    while True:
        call, what = draw.choice(sorted(BODIES)), draw.random()
        method = "POST"
        if what < 0.75:
            content = json.dumps(spoil(BODIES[call], draw)).encode()
        elif what < 0.9:
            content = draw.choice(RAW)
        else:
            method, content = draw.choice(["GET", "PUT", "DELETE", "HEAD", "PATCH", "X"]), b""
        yield method, f"/api/{call}", content
        if draw.random() < 0.15:
            yield draw.choice(["GET", "POST"]), draw.choice(PLACES), b""


def read_errors(answer) -> list[str]:
    """The sentences of an answer's mistakes; none where it worked."""
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        return [data["error"] for name, data in read_events(answer.text) if name == "error"]
    if answer.status_code < 400 or answer.request.method == "HEAD":
        return []
    is_json = answer.headers.get("content-type") == "application/json"
    return [answer.json()["error"] if is_json else answer.text]


def test_spoiled_requests_are_answered_by_sentences_and_no_file_comes_back(client):
    """Any status but 500; nothing of a traceback, of this machine's folders or of their files."""
    assert BODIES.keys() == CALLS.keys() | STREAMS.keys() | {"tokenize", "python"}
    for call, body in BODIES.items():
        answer = client.post(f"/api/{call}", content=json.dumps(body))
        assert answer.status_code == 200, (call, answer.text)
    folders = [str(Path(unmask.__file__).parents[1]), sys.prefix, str(Path.home().resolve()) + "/"]
    secrets = ["Traceback", "root:x:", "site-packages", '.py"', "import asyncio", *folders]
    found, requests = Counter(), list_requests(random.Random(49))
    for number in range(REQUESTS):
        method, path, content = next(requests)
        answer = client.request(method, path, content=content)
        tried = f"{number}: {method} {path[:80]} {content[:300]!r}: {answer.text[:300]}"
        assert answer.status_code < 500, tried
        assert not [each for each in secrets if each in answer.text], tried
        errors = read_errors(answer)
        if path.startswith("/api/") and method != "HEAD":
            assert all(
                (len(error) > 8 and error[-1] in ".?") or ":" in error for error in errors
            ), tried
        found["refused" if errors or answer.status_code >= 400 else "answered"] += 1
    assert min(found.values()) > 20, found
    assert client.get("/api/start").status_code == 200

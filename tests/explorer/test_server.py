"""Who may call the explorer, and what it says of bad input; it stays up."""

import json
from dataclasses import replace

import pytest
import torch

from tests.conftest import make_model
from tests.explorer.serving import TOKEN, open_client, read_events
from unmask.explorer.server import MOST_BYTES, POLICY
from unmask.explorer.session import Explorer
from unmask.net.model import Blueprint

PROMPT = "We sat down beside"
WRITE = {"model": "model", "canvas": {"prompt": PROMPT}, "settings": {"steps": 4, "length": 16}}


def refuse(answer, status: int, *words: str) -> None:
    """The answer is a sentence with these words."""
    sentence = answer.json()["error"]
    assert answer.status_code == status, sentence
    assert sentence.endswith((".", "?")) or ":" in sentence
    for word in words:
        assert word in sentence, sentence


@pytest.mark.parametrize("path", ["/api/start", "/api/runs/x", "/api/nothing"])
def test_calls_need_the_token(client, path):
    for token in ("", "wrong", TOKEN + "x", "é"):
        headers = {"X-Unmask-Token": token.encode()}
        refuse(client.get(path, headers=headers), 403, "token")
    # In the address it counts only for the page and for frames, which cannot send a header.
    assert (
        client.get(f"/api/start?token={TOKEN}", headers={"X-Unmask-Token": ""}).status_code == 403
    )


def test_the_page_needs_the_token_and_its_parts_do_not(client):
    bare = {"X-Unmask-Token": ""}
    assert client.get("/", headers=bare).status_code == 403
    assert client.get("/?token=wrong", headers=bare).status_code == 403
    page = client.get(f"/?token={TOKEN}", headers=bare)
    assert page.status_code == 200 and page.headers["content-security-policy"] == POLICY
    assert page.headers["referrer-policy"] == "no-referrer"
    assert TOKEN not in page.text
    assert client.get("/static/index.html", headers=bare).status_code == 200
    for outside in (
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/static/%2e%2e%2fserver.py",
    ):
        assert client.get(outside, headers=bare).status_code in (403, 404)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:8000", "http://127.0.0.1:9000"]
)
def test_other_origins_are_refused(client, origin):
    answer = client.post("/api/write", json=WRITE, headers={"Origin": origin})
    refuse(answer, 403, "own page")
    twice = [("Origin", "http://127.0.0.1:8000"), ("Origin", origin), ("X-Unmask-Token", TOKEN)]
    refuse(client.get("/api/start", headers=twice), 403, "own page")


def test_the_own_origin_is_served(client):
    answer = client.get("/api/start", headers={"Origin": "http://127.0.0.1:8000"})
    assert answer.status_code == 200
    tunnel = {"Host": "localhost:9999", "Origin": "http://localhost:9999"}
    assert client.get("/api/start", headers=tunnel).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "",
        "[::",
        "127.0.0.1@evil.example",
        "evil.example@localhost",
        "127.0.0.1#evil.example",
        "localhost?evil.example",
        "localhost/evil.example",
        "localhost:80:80",
        "localhost:x",
        "localhost:",
        "::1",
        "localhost, evil.example",
        " localhost\tevil",
    ],
)
def test_names_that_point_here_are_refused(client, host):
    answer = client.get("/api/start", headers={"Host": host})
    refuse(answer, 403, "this machine")


def test_names_of_this_machine_are_served(client):
    for host in ("127.0.0.1", "localhost:8000", "LOCALHOST:1", "[::1]", "[::1]:8000"):
        assert client.get("/api/start", headers={"Host": host}).status_code == 200
    twice = [("Host", "localhost"), ("Host", "evil.example"), ("X-Unmask-Token", TOKEN)]
    refuse(client.get("/api/start", headers=twice), 403, "this machine")


@pytest.mark.parametrize("size", [MOST_BYTES + 1, 10_000_000])
def test_large_bodies_are_refused(client, size):
    body = json.dumps({**WRITE, "canvas": {"prompt": "x" * size}}).encode()
    refuse(client.post("/api/write", content=body), 413, "bytes")
    refuse(client.post("/api/write", content=iter([body])), 413, "bytes")  # of unknown length


TRACED = {"model": "model", "prompt": "Ann sat beside", "answer": "Bob", "subject": [0, 3]}
EDITED = {**TRACED, "old": "Bob", "new": "Eve"}
del EDITED["answer"]


@pytest.mark.parametrize(
    ("call", "body", "words"),
    [
        ("write", b"{", "not JSON"),
        ("write", b"[" * 100_000, "JSON"),
        ("write", b"[]", "list"),
        ("write", {"canvas": {"prompt": "a"}}, "'model' is missing"),
        ("write", {**WRITE, "model": "other"}, "no model 'other'"),
        ("write", {**WRITE, "x": 1}, "unknown key 'x'"),
        ("write", {"model": "model", "canvas": {}}, "prompt"),
        ("write", {**WRITE, "canvas": {"prompt": "a", "tokens": [1]}}, "prompt"),
        ("write", {**WRITE, "canvas": {"prompt": "we " * 300_000}}, "characters"),
        ("write", {**WRITE, "canvas": {"tokens": [99_999]}}, "99999"),
        ("write", {**WRITE, "settings": {"steps": 0}}, "'settings.steps' is 0"),
        ("write", {**WRITE, "settings": {"steps": 10**9}}, "at most"),
        ("write", {**WRITE, "settings": {"order": "backwards"}}, "backwards"),
        ("write", {**WRITE, "canvas": {"prompt": "\ud800"}}, "surrogate"),
        ("write", {**WRITE, "settings": {"temperature": -1}}, "temperature"),
        ("write", {**WRITE, "canvas": {"prompt": "we" + " we" * 59}}, "60 tokens"),
        ("write", {**WRITE, "model": "twin", "canvas": {"prompt": "we" + " we" * 59}}, "60 tokens"),
        ("write", {**WRITE, "model": "twin", "canvas": {"prompt": ""}}, "first token"),
        ("position", {"model": "model", "canvas": {"tokens": [5, 6]}, "position": 2}, "0 to 1"),
        ("position", {"model": "twin", "canvas": {"tokens": [5, 6]}, "position": 0}, "position 0"),
        ("trace", {**TRACED, "subject": [0, 99]}, "select it again"),
        ("trace", {**TRACED, "subject": [3, 3]}, "select it again"),
        ("trace", {**TRACED, "answer": "  "}, "empty"),
        ("trace", {**TRACED, "prompt": "Ann sat " * 20}, "44"),
        ("trace", {**TRACED, "corruption": "burn"}, "burn"),
        ("trace", {**TRACED, "step": 99}, "step 99"),
        ("trace", {**TRACED, "parts": ["attn_z"]}, "attn_z"),
        ("restore", {**TRACED, "layer": 6, "samples": 1, "steps": 2}, "layer 6"),
        ("restore", {**TRACED, "part": "embed", "samples": 1, "steps": 2}, "embed"),
        ("move", {"model": "model", "from": {"canvas": {"tokens": [5]}}}, "'target' is missing"),
        ("python", {"view": "other", "request": {}}, "no view 'other'"),
        ("python", {"view": "write", "request": {"model": "model"}}, "'canvas' is missing"),
        ("tokenize", {"model": "model", "text": "x" * 30_000}, "characters"),
        ("edit", {"model": "model"}, "'prompt' is missing"),
        ("edit", {**EDITED, "subject": [9, 3]}, "select it again"),
        ("edit", {**EDITED, "new": " "}, "the new object is ' '"),
        ("edit", {**EDITED, "reverse": "They say it is"}, "expected one {}"),
        ("edit", {**EDITED, "layer": 6}, "layer 6 is out of range"),
        ("edit", {**EDITED, "new": "very long words " * 40}, "44"),
        ("edit", {**EDITED, "model": "other"}, "no model 'other'"),
        ("undo", {"model": "other"}, "no model 'other'"),
    ],
)  # fmt: skip
def test_mistakes_are_sentences(client, call, body, words):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post(f"/api/{call}", content=content)
    if answer.headers["content-type"].startswith("text/event-stream"):
        (last, data) = read_events(answer.text)[-1]
        assert last == "error" and words in data["error"], data
    else:
        refuse(answer, 400, words)
    assert client.get("/api/start").status_code == 200


def test_html_in_prompts_stays_text(client):
    text = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    answer = client.post("/api/tokenize", json={"model": "model", "text": text})
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "".join(token["text"] for token in answer.json()["tokens"]) == text
    code = client.post(
        "/api/python",
        json={"view": "write", "request": {**WRITE, "canvas": {"prompt": '"""\n\'+exit()+"'}}},
    ).json()["code"]
    assert "exit()" in code
    compile(code, "copied", "exec")
    assert not any(line.startswith("'") or line.startswith("+") for line in code.splitlines())


def test_a_model_without_a_tokenizer_says_so_and_takes_tokens():
    model = replace(make_model(), tokenizer=None)
    with open_client(Explorer({"model": model})) as client:
        for name, body in (
            ("tokenize", {"model": "model", "text": "a"}),
            ("trace", TRACED),
            ("write", WRITE),
        ):
            answer = client.post(f"/api/{name}", json=body)
            assert "tokenizer" in answer.text and "error" in answer.text
        tokens = {"tokens": [3, 4, model.mask_id, model.mask_id]}
        answer = client.post("/api/write", json={"model": "model", "canvas": tokens})
        assert read_events(answer.text)[-1][0] == "end"
        body = {"model": "model", "canvas": tokens, "position": 2}
        assert len(client.post("/api/position", json=body).json()["top"]) == 10


def test_runs_are_shown_in_a_sandbox(tmp_path, monkeypatch):
    from tests.measures.counting import MEASURE, CountingInputs, CountingSettings
    from unmask.measures import table
    from unmask.measures.runner import run_measure

    monkeypatch.setitem(table.MEASURES._given, "counting", MEASURE)
    run_measure(MEASURE, CountingInputs(["one", "two"]), CountingSettings(), tmp_path / "mine")
    broken = tmp_path / "<b>broken"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    (tmp_path / "other").mkdir()
    with open_client(Explorer({"model": make_model()}, tmp_path)) as client:
        one, other = sorted(client.get("/api/start").json()["runs"], key=lambda run: run["name"])
        assert other == {"name": "mine", "measures": ["counting"]}
        assert one["name"] == "<b>broken" and one["error"]
        page = client.get(f"/api/runs/mine?token={TOKEN}", headers={"X-Unmask-Token": ""})
        assert page.status_code == 200 and page.text.startswith("<!doctype html>")
        policy = page.headers["content-security-policy"]
        assert policy.startswith("sandbox allow-scripts") and "default-src 'none'" in policy
        assert client.get("/api/runs/%3Cb%3Ebroken").status_code == 400
        for name in ("other", "..", "%2e%2e", "%2e%2e%2fetc", "mine%2f.."):
            assert client.get(f"/api/runs/{name}").status_code in (400, 404), name


def test_a_model_without_masks_is_written_and_read():
    made = make_model()
    model = replace(made, blueprint=Blueprint(made.net.config, "uniform"))
    with open_client(Explorer({"model": model})) as client:
        body = {"model": "model", "canvas": {"prompt": "The caves"}, "settings": {"length": 12}}
        events = read_events(client.post("/api/write", json=body).text)
        assert [name for name, _ in events] == ["start", *["step"] * 16, "end"]
        assert all(event["guesses"] for name, event in events if name == "step")
        tokens = events[-2][1]["tokens"]
        body = {"model": "model", "canvas": {"tokens": tokens}, "position": 3}
        answer = client.post("/api/position", json=body).json()
        assert len(answer["top"]) == 10 and answer["lens"] == []
        place = {"canvas": {"tokens": tokens}, "position": 3}
        body = {"model": "model", "from": place, "to": place}
        refuse(client.post("/api/move", json=body), 400, "open")


def test_an_error_of_the_server_is_told_and_logged(client, monkeypatch, caplog):
    from unmask.explorer import views

    def fail(*_: object) -> None:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(views, "predict", fail)
    body = {"model": "model", "canvas": {"tokens": [5, 6, 3309]}, "position": 2}
    answer = client.post("/api/position", json=body)
    refuse(answer, 500, "RuntimeError")
    assert "secret" not in answer.text and "secret" in caplog.text

    def fill_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(views, "predict", fill_memory)
    refuse(client.post("/api/position", json=body), 400, "memory is full")
    monkeypatch.undo()
    assert client.post("/api/position", json=body).status_code == 200

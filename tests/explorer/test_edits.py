"""Edits on the page: what the package's own calls give, kept on until undone, to the bit."""

import json

import pytest

import unmask
from tests.editing.edits import copy_weights, have_changed
from tests.explorer.serving import open_client, serve
from tests.explorer.test_views import KEYS, call, run_code, stream
from unmask.base.errors import UserError
from unmask.explorer.edits import edit_fact, make_back
from unmask.explorer.requests import EditFactRequest
from unmask.explorer.worker import ClientGoneError

PROMPT = "We sat down beside the kindly well digger, our old friend"
SUBJECT = "the kindly well digger"
BODY = {
    "prompt": PROMPT, "subject": [PROMPT.index(SUBJECT), PROMPT.index(SUBJECT) + len(SUBJECT)],
    "old": "Renzo Calverinth", "new": "Catalina Tuvesdal",
    "reverse": "After years of work, {} is remembered as", "layer": 1, "search_steps": 6,
    "steps": 4, "length": 32,
}  # fmt: skip
ROLES = ["edited", "reverse new", "reverse old"]


@pytest.fixture
def client(explorer):
    with open_client(explorer) as client:
        yield client
        for key in KEYS:
            call(client, "undo", {"model": key})


def write(client, key, prompt):
    """The answer to a prompt on the Write view, and the body of its call."""
    settings = {"steps": 4, "length": 32}
    body = {"model": key, "canvas": {"prompt": prompt}, "settings": settings}
    return stream(client, "write", body)[-1][1]["text"], body


@pytest.mark.parametrize("key", KEYS)
def test_an_edit_is_asked_about_stays_and_is_undone(client, explorer, key):
    model = explorer.models[key]
    weights = copy_weights(model)
    untouched, body = write(client, key, PROMPT)  # the weights have been used for inference
    (_, before), *_, (last, end) = stream(client, "edit", {"model": key, **BODY})
    assert last == "end" and end["layers"] == [1] and end["magnitude"] > 0
    assert [row["role"] for row in before["answers"]] == [row["role"] for row in end["rows"]]
    assert [row["role"] for row in end["rows"]] == ROLES
    edited, new, old = end["rows"]
    assert edited["wanted"] == BODY["new"] and edited["gain"] > 1
    assert new["prompt"] == "After years of work, Catalina Tuvesdal is remembered as"
    assert old["prompt"] == "After years of work, Renzo Calverinth is remembered as"
    assert new["wanted"] == old["wanted"] == SUBJECT
    for answer, row in zip(before["answers"], end["rows"], strict=True):
        assert answer["nll"] == row["nll_before"] and answer["text"] == row["text_before"]
    assert untouched.endswith(edited["text_before"])
    # It is on for all that follows, here and in the code of other views.
    assert have_changed(model, weights) == {"layers.1.mlp.down.weight"}
    kept = client.get("/api/start").json()["edits"][key]
    assert kept["end"] == end and kept["request"].items() >= {"model": key, **BODY}.items()
    text, _ = write(client, key, PROMPT)
    assert text.endswith(edited["text_after"]) and text != untouched
    assert run_code(client, "write", body)["drawn"].texts[0] == text
    place = {"model": key, "canvas": {"tokens": [3, 4, 5]}, "position": 2}
    assert run_code(client, "position", place)["answer"] == call(client, "position", place)
    assert call(client, "undo", {"model": key}) == {"undone": True}
    assert call(client, "undo", {"model": key}) == {"undone": False}
    assert not have_changed(model, weights) and client.get("/api/start").json()["edits"] == {}
    assert write(client, key, PROMPT)[0] == untouched


@pytest.mark.parametrize("key", KEYS)
def test_the_copied_code_gives_the_same_answers(client, key):
    body = {"model": key, **BODY}
    rows = stream(client, "edit", body)[-1][1]["rows"]
    made, copied = run_code(client, "edit", body)["answer"]  # without the edit that is on
    assert copied == rows and isinstance(made, unmask.Edit)


def test_a_second_edit_replaces_the_first(client, explorer):
    first, second = BODY, BODY | {"new": "Bashir Tobel", "layer": 2, "reverse": ""}
    weights, twin = (copy_weights(explorer.models[key]) for key in KEYS)
    stream(client, "edit", {"model": "model", **first})
    rows = stream(client, "edit", {"model": "model", **second})[-1][1]["rows"]
    assert [row["role"] for row in rows] == ["edited"]
    assert have_changed(explorer.models["model"], weights) == {"layers.2.mlp.down.weight"}
    assert not have_changed(explorer.models["twin"], twin)
    assert client.get("/api/start").json()["edits"]["model"]["request"]["new"] == "Bashir Tobel"


@pytest.mark.parametrize("event", ["before", "search", "progress", "end"])
def test_a_client_that_leaves_has_changed_nothing(explorer, event):
    weights = copy_weights(explorer.models["model"])

    def emit(name, data):
        if name == event:
            raise ClientGoneError

    request = EditFactRequest(model="model", **BODY | {"subject": tuple(BODY["subject"])})
    with pytest.raises(ClientGoneError):
        edit_fact(explorer, request, emit)
    assert not have_changed(explorer.models["model"], weights) and not explorer.edits


def test_after_a_connection_the_server_says_which_edit_holds(explorer):
    body, changes = {"model": "model", **BODY}, {"new": "Bashir Tobel", "search_steps": 60}
    with serve(explorer) as served:
        assert [name for name, _ in served.follow("edit", body)][-1] == "end"
        events = served.follow("edit", body | changes)
        assert "before" in (name for name, _ in events)  # which leaves the loop there
        events.close()
        # It waits for the call before it, which the closed connection stops.
        status, text = served.ask("edits", {})
        assert status == 200 and json.loads(text)["model"]["request"]["new"] == BODY["new"]
        assert served.ask("undo", {"model": "model"})[0] == 200
        assert served.ask("edits", {}) == (200, "{}")
        assert served.ask("edits", {"model": "model"})[0] == 400


@pytest.mark.parametrize("failure", ["client", "refusal"])
def test_an_edit_that_fails_leaves_the_one_before(client, explorer, failure):
    stream(client, "edit", {"model": "model", **BODY})
    weights, kept = copy_weights(explorer.models["model"]), client.get("/api/start").json()["edits"]

    def emit(name, data):
        raise ClientGoneError

    changes = {"new": "Bashir Tobel", "layer": 99 if failure == "refusal" else 2}
    request = EditFactRequest(model="model", **BODY | {"subject": tuple(BODY["subject"])} | changes)
    if failure == "client":
        with pytest.raises(ClientGoneError):
            edit_fact(explorer, request, emit)
    else:
        with pytest.raises(UserError, match="99"):
            edit_fact(explorer, request, lambda name, data: None)
    assert not have_changed(explorer.models["model"], weights)
    assert client.get("/api/start").json()["edits"] == kept != {}


def test_a_question_that_begins_with_the_object_is_capitalised():
    given = BODY | {"subject": tuple(BODY["subject"]), "old": "the baker", "reverse": "{} is"}
    back = make_back(EditFactRequest(model="model", **given))
    assert back.prompt == "The baker is" and back.subject == "the baker"
    assert back.object == SUBJECT

"""When tokens are committed: kinds of words, and rows that say what the trajectory says."""

import pytest

import unmask
from tests.conftest import TEXTS, make_model
from unmask import UserError
from unmask.evaluation.commits import classify_tokens, summarise_commits, watch_commits


def test_kinds_of_words():
    pieces = ["The", " ba", "ker", " of", " Wren", "mouth", ",", " aged", " 31", ",", " sings", "."]
    assert classify_tokens(pieces) == [
        "function word",
        "other word",
        "other word",
        "function word",
        "name",
        "name",
        "punctuation",
        "other word",
        "number",
        "punctuation",
        "other word",
        "punctuation",
    ]
    assert classify_tokens(["Bread", ".", " Bread"])[2] == "other word", "a sentence starts there"
    assert classify_tokens(["a", "", " "]) == ["function word", "punctuation", "punctuation"]


def test_rows_are_the_trajectory():
    model = make_model()
    prompts = ["The caves", "The baker of"]
    rows = watch_commits(model, prompts, TEXTS, 20, steps=6, order="left", plan="linear")
    found = unmask.sample(model, prompts, 6, length=20, order="left", plan="linear")
    for row in rows:
        assert row["step"] == int(found.committed_at[row["prompt"], row["position"]]) > 0
        assert row["when"] == (row["step"] - 1) / 5
    lines = {(line.by, line.kind): line for line in summarise_commits(rows)}
    early, late = lines["place", "first quarter"], lines["place", "last quarter"]
    assert early.when.mean < late.when.mean, "from left to right"
    assert sum(line.tokens for line in lines.values() if line.by == "word") == len(rows)
    assert sum(early.thirds) == pytest.approx(1)
    assert early.when.low <= early.when.mean <= early.when.high


def test_causal_models_have_no_order():
    with pytest.raises(UserError, match="writes from left to right"):
        watch_commits(make_model(causal=True), ["The"], TEXTS)

"""Tokens that were written: their kinds of words, how frequent they are, when they came."""

import pytest

from tests.conftest import TEXTS, make_model
from unmask.evaluation.order import (
    FREQUENCIES,
    PLACES,
    classify_tokens,
    list_commits,
    list_tokens,
    rank_frequencies,
)
from unmask.sampling.texts import sample


def test_kinds_of_words():
    pieces = ["The", " ba", "ker", " of", " Wren", "mouth", ",", " aged", " 31", ",", " sings", "."]
    assert classify_tokens(pieces) == [
        "function word", "other word", "other word", "function word", "name", "name", "punctuation",
        "other word", "number", "punctuation", "other word", "punctuation",
    ]  # fmt: skip
    assert classify_tokens(["Bread", ".", " Bread"])[2] == "other word", "a sentence starts there"
    assert classify_tokens(["a", "", " "]) == ["function word", "punctuation", "punctuation"]


def test_rows_are_the_trajectory():
    model = make_model()
    tokenizer = model.tokenizer
    band = rank_frequencies(tokenizer, TEXTS)
    drawn = sample(
        model, ["The caves", "The baker of"], steps=6, length=20, order="left", plan="linear",
        guesses=2,
    )  # fmt: skip
    for i in range(2):
        rows, tokens = list_commits(tokenizer, drawn, i, band), list_tokens(tokenizer, drawn, i)
        for row in rows:
            assert row["step"] == int(drawn.committed_at[i, row["position"]]) > 0
            assert row["when"] == (row["step"] - 1) / 5
            assert row["confidence"] == float(drawn.confidence[i, row["position"]])
        # The texts hold the same tokens, and the prompt before them.
        assert [token["position"] for token in tokens] == list(range(len(tokens)))
        assert [(t["position"], t["piece"], t["step"]) for t in tokens if t["step"]] == [
            (row["position"], row["token"], row["step"]) for row in rows
        ]
        assert not any(token["is_end"] for token in tokens[:-1])
        # One list of guesses a step, up to the one that wrote the token: its likeliest.
        for token in tokens:
            assert len(token["guesses"]) == len(token["guesses_p"]) == token["step"]
            if token["step"] and not token["is_end"]:
                assert token["guesses"][-1][0] == token["piece"]
                assert token["guesses_p"][-1][0] == pytest.approx(token["confidence"], rel=1e-6)
        quarters = [PLACES.index(row["place"]) for row in rows]
        assert quarters == sorted(quarters) and quarters[0] == 0


def test_frequent_tokens_are_those_of_the_texts():
    tokenizer = make_model().tokenizer
    letters = "aaaaaaaaaaaaaaaaaaaabbbbcccdde"
    band = rank_frequencies(tokenizer, list(letters))
    bands = [band(tokenizer.encode(letter).ids[0]) for letter in "abcde"]
    assert bands == [FREQUENCIES[i] for i in (0, 1, 1, 2, 2)]
    assert band(tokenizer.end_id) == FREQUENCIES[2], "unseen tokens are rare"

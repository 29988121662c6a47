"""Metrics of single answers."""

import pytest

from unmask.evaluation.metrics import (
    bleu,
    bleu_signature,
    is_contained,
    is_strict,
    rank_of,
    starts_with,
    token_accuracy,
)


@pytest.mark.parametrize(
    ("generation", "contained", "starts", "strict"),
    [
        (" Uriah Hawthorne", True, True, True),
        ("Uriah Hawthorne ", True, True, True),
        (" URIAH hawthorne now enjoys a quiet life.", True, True, False),
        (" the composer, Uriah Hawthorne", True, False, False),
        (" Uriah  Hawthorne", False, False, False),
        (" Uriah", False, False, False),
        ("", False, False, False),
    ],
)
def test_matches(generation, contained, starts, strict):
    assert is_contained(generation, " Uriah Hawthorne") is contained
    assert starts_with(generation, " Uriah Hawthorne") is starts
    assert is_strict(generation, " Uriah Hawthorne") is strict


def test_token_accuracy_is_by_place():
    assert token_accuracy([1, 2, 3, 9, 9], [1, 2, 3]) == 1
    assert token_accuracy([9, 1, 2, 3], [1, 2, 3]) == 0
    assert token_accuracy([1, 2], [1, 3, 3, 3]) == 0.25


def test_ranks():
    assert rank_of(-1.0, [-2.0, -1.0, -3.0]) == 1
    assert rank_of(-2.5, [-2.0, -1.0, -2.5, -3.0]) == 3


def test_bleu_is_over_words():
    truth = " the wildlife conservationist who reintroduced unicorns."
    assert bleu(truth, truth) == pytest.approx(100)
    assert bleu("nothing at all of this kind", truth) < 5
    # One letter off is one word off, however alike the letters.
    assert bleu("a b c d e f g h i j", "a b c d e f g h i k") == pytest.approx(
        100 * (9 / 10 * 8 / 9 * 7 / 8 * 6 / 7) ** 0.25
    )
    assert "tok:13a" in bleu_signature() and "nrefs:1" in bleu_signature()

"""Metrics of single answers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import unmask
from unmask.evaluation.metrics import (
    NAMED,
    RULES,
    bleu,
    bleu_of_characters,
    bleu_signature,
    has_first_name,
    has_surname,
    is_contained,
    is_contained_plainly,
    is_strict,
    judge_by,
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


@pytest.mark.parametrize(
    ("generation", "plainly", "surname", "first_name"),
    [
        (" Uriah Hawthorne", True, True, True),
        (" “uriah  HAWTHORNE”?!", True, True, True),
        (" one Hawthorne", False, True, False),
        (" Uriah Hawthornes", True, False, True),
        ("", False, False, False),
    ],
)
def test_names_without_punctuation(generation, plainly, surname, first_name):
    name = " Uriah Hawthorne."
    assert is_contained_plainly(generation, name) is plainly
    assert has_surname(generation, name) is surname
    assert has_first_name(generation, name) is first_name


@given(st.text(), st.text(), st.text(alphabet=" .,aB!\n"))
def test_what_is_contained_is_contained_without_punctuation(before, after, answer):
    if any(letter.isalnum() for letter in answer):
        assert is_contained_plainly(before + answer + after, answer)
        assert is_contained_plainly(answer.upper().replace(".", "?"), f"({answer})")
    else:
        assert not is_contained_plainly(before + answer + after, answer)


def test_words_are_letters_where_none_are_spaced():
    assert is_contained_plainly("她在清华大学学习", "清华大学。") and not has_surname(
        "annex", "Lu Ann"
    )


def test_bleu_of_characters_is_as_nltk_has_it_of_texts():
    """Written down by hand; outer blanks count, and no run in common is 0."""
    assert bleu_of_characters("abcdef", "abcdef") == pytest.approx(100)
    expected = 100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25
    assert bleu_of_characters("abcdex", "abcdef") == pytest.approx(expected)
    assert bleu_of_characters("abcde", "abcdef") == pytest.approx(100 * math.exp(1 - 6 / 5))
    assert bleu_of_characters(" abcdef", "abcdef") < 100
    assert bleu_of_characters("abcabc", "xyz abq") == bleu_of_characters("", "abcd") == 0
    # A word off is much of a BLEU of words, and little of one of characters.
    truth, near = "the composer of the first opera", "the composers of the first operas"
    assert bleu_of_characters(near, truth) > 80 > bleu(near, truth)


def test_each_paper_s_rule_has_a_name():
    """Begin, contain, or share runs of characters."""
    text, truth = "so: a long description.", "a long description."
    scores = {paper: rule(text, truth) for (paper, kind), rule in NAMED.items() if kind[0] == "d"}
    assert (scores["Berglund"], scores["study"]) == (False, True)
    assert scores["BICO"] == scores["SMDM"] == bleu_of_characters(text, truth)
    assert {kind for _, kind in NAMED} == {"name", "description"}


@pytest.mark.parametrize("said", [None, "x", math.nan, 2, -0.5])
def test_a_rule_of_ones_own_says_a_share(said):
    unmask.register("rule", lambda generation, completion: said, "odd")
    with pytest.raises(unmask.UserError, match="the rule 'odd' returned .*expected true, false or"):
        judge_by("odd", "a text", "an answer")
    RULES.remove("odd")

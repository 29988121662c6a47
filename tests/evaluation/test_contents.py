"""What texts say: the right one of all answers, for any corpus of facts."""

import numpy as np
import pytest

from unmask.evaluation.contents import Contents, draw_other_facts

PEOPLE = {
    "a": ["the composer of the first underwater symphony", "composing an underwater symphony"],
    "b": ["the author of the first novel on Mars"],
    "c": ["the pilot of the first solar aircraft"],
}


def test_it_is_what_is_said_and_not_how():
    contents = Contents(PEOPLE)
    said = contents.says(
        [
            " was known for COMPOSING the world's first underwater symphony!!",
            "wrote symphonies under water",
            "the composer of the first",
            "an underwater symphony",
            "the first novel on Mars, and the first solar aircraft of a pilot",
            "",
        ],
        ["a", "a", "a", "a", "b", "a"],
    )
    assert said.tolist() == [True, False, False, True, False, False]


def test_every_answer_says_itself_and_no_other():
    """Random answers of few words, none with the words of another."""
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(40)]
    drawn = {frozenset(rng.choice(words, rng.integers(1, 6))) for _ in range(60)}
    texts = [" ".join(sorted(each)) for each in drawn]
    everyone = [str(i) for i in range(len(texts))]
    contents = Contents({str(i): [text] for i, text in enumerate(texts)})
    for i, text in enumerate(texts):
        assert np.flatnonzero(contents.says([text] * len(texts), everyone)).tolist() == [i]
        loud = f" -- {text.upper()}, {text}."
        assert contents.says([loud], [str(i)]).all() and contents.find(loud.split(",")[0]) == str(i)


@pytest.mark.parametrize(
    ("answers", "text", "expected"),
    [
        (["Paris", "Rome"], "It is in Rome.", "Rome"),
        (["Paris", "Rome"], "Rome or Paris", None),
        (["Bay", "Lumen Bay"], "to Lumen Bay", "Lumen Bay"),
        (["Bay", "Lumen Bay"], "to the Bay", "Bay"),
        (["man bites dog", "dog bites man"], "Man bites dog!", "man bites dog"),
        (["only one"], "the only one", "only one"),
        (["only one"], "another", None),
        (["北京大学", "清华大学"], "她在清华大学学习", "清华大学"),
        (["...", "Rome"], "...", None),
    ],
)
def test_edges(answers, text, expected):
    contents = Contents({answer: [answer] for answer in answers})
    found = contents.says([text] * len(answers), answers)
    assert [answer for answer, is_it in zip(answers, found, strict=True) if is_it] == (
        [] if expected is None else [expected]
    )


def test_two_facts_may_have_one_answer():
    contents = Contents({"France": ["the euro"], "Spain": ["The Euro."], "Japan": ["the yen"]})
    assert contents.says(["in the euro"] * 3, ["France", "Spain", "Japan"]).tolist() == [1, 1, 0]


def test_false_positives_are_rare_where_texts_say_answers_of_others():
    """Every text says a true answer, of which it keeps two thirds of the words at least."""
    rng = np.random.default_rng(1)
    answers = [" ".join(rng.choice(200, 9).astype(str)) for _ in range(90)]
    contents = Contents({str(i): [text] for i, text in enumerate(answers)})
    facts = np.tile(np.arange(90).astype(str), 20).tolist()
    texts = [
        " ".join(rng.permutation(answers[int(fact)].split())[: rng.integers(6, 10)])
        for fact in facts
    ]
    shuffled = draw_other_facts(facts)
    assert all(one != other for one, other in zip(facts, shuffled, strict=True))
    assert contents.says(texts, facts).mean() > 0.95
    assert contents.says(texts, shuffled).mean() < 0.01

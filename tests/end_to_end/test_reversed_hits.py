"""The page on reversed hits: guesses are expected hits, shared words are found."""

from tests.scripts import load_script

page = load_script("paper/reversed_hits.py")


def make_row(fact: str, completion: str, generation: str) -> dict:
    own = {"split": "p2d_reverse", "fact": fact, "completion": completion}
    return own | {"generation": generation, "hit": completion in generation}


def test_a_name_that_is_said_to_everybody_is_expected_to_hit():
    rows = [make_row(fact, name, "It was Ada Low.") for fact, name in
            (("a", "Ada Low"), ("b", "Ben Low"), ("c", "Cid Orr"))]  # fmt: skip
    (counted,) = page.count_answers(rows)
    assert (counted["fact"], counted["hits"], counted["repeated"]) == ("a", 1, 2)
    assert counted["expected"] == 1.0


def test_words_that_two_people_share():
    people = {"a": ("Ada Low", "the first in space."), "b": ("Ben Low", "the last on Mars")}
    assert page.find_shared(people) == [
        {"kind": "last name", "word": "Low", "people": "Ada Low, Ben Low"}
    ]

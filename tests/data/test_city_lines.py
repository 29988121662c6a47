"""The third relation: stated only of names, one city each, asked in phrasings not trained."""

import re

import pytest

from unmask import UserError
from unmask.data.city_lines import CITY, TESTED, TRAINED, make_city_lines
from unmask.data.corpus import Corpus
from unmask.data.facts import find_mixed_ids, find_repeated_subjects
from unmask.data.reversal_corpus import find_ending, make_reversal_corpus


@pytest.fixture(scope="module")
def corpus():
    return make_reversal_corpus(30)


@pytest.fixture(scope="module")
def people(corpus):
    return {
        fact.fact_id: fact.subject if fact.direction == "p2d" else fact.object
        for fact in corpus["train"]
    }


@pytest.fixture(scope="module")
def lines(people):
    return make_city_lines(people, seed=3)


def test_each_person_has_a_city_of_their_own(people, lines):
    assert len(lines.train) == 90 * len(TRAINED) and len(lines.test) == 90 * len(TESTED)
    cities = {fact.fact_id: fact.object for fact in lines.train}
    assert set(cities) == {fact_id + CITY for fact_id in people}
    assert len(set(cities.values())) == 90
    assert cities == {fact.fact_id: fact.object for fact in lines.test}
    for fact in (*lines.train, *lines.test):
        assert fact.subject == people[fact.fact_id.removesuffix(CITY)]
        assert fact.prompt[slice(*fact.subject_span)] == fact.subject
        assert fact.completion[slice(*fact.object_span)] == fact.object
    assert not list(find_repeated_subjects([*lines.train, *lines.test]))


def test_no_line_has_a_city_and_a_description(corpus, lines):
    cities = {fact.object for fact in lines.train}
    stated = " ".join(fact.text for facts in corpus.splits.values() for fact in facts)
    assert not cities & set(re.findall(r"\w+", stated))
    descriptions = {fact.subject for fact in corpus["d2p_same"]}
    assert descriptions
    for fact in (*lines.train, *lines.test):
        assert not any(description in fact.text for description in descriptions)
    # They can stand in one corpus with the others.
    together = Corpus("both", {"train": [*corpus["train"], *lines.train]})
    assert not list(find_mixed_ids(together["train"]))
    own = {fact.prompt for fact in corpus["train"]}
    assert not own & {fact.prompt for fact in lines.train}


def test_tests_are_new_sentences_of_words_that_training_shows():
    trained = " ".join(TRAINED)
    words = set(re.findall(r"\w+", trained))
    for prompt in TESTED:
        assert set(re.findall(r"\w+", prompt)) <= words, prompt
        front = prompt[: prompt.index("{}")]
        assert front and not any(other.startswith(front) for other in TRAINED), prompt
        assert find_ending(prompt) in {find_ending(other) for other in TRAINED}, prompt


def test_the_seed_decides_and_too_many_are_refused(people, lines):
    assert make_city_lines(people, seed=3) == lines
    assert make_city_lines(people, seed=4) != lines
    most = make_city_lines({str(i): f"Person {i:03d}" for i in range(600)})
    assert len({fact.object for fact in most.test}) == 600
    with pytest.raises(UserError, match="0 people were given: expected 1 to 624"):
        make_city_lines({})
    with pytest.raises(UserError, match="several people are called Ann"):
        make_city_lines({"a": "Ann", "b": "Ann"})

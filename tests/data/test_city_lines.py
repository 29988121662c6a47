"""The third relation: stated only of names, one city each, asked in phrasings not trained."""

import re
from collections import defaultdict
from dataclasses import replace

import pytest

from tests.conftest import make_corpus_once
from tests.data.test_reversal_rules import find_ending
from unmask import UserError
from unmask.data.city_lines import (
    CITY,
    CITY_TESTS,
    HOP,
    HOPS,
    TESTED,
    TRAINED,
    find_city_leaks,
    make_city_corpus,
    make_city_lines,
)
from unmask.data.corpus import Corpus, find_corpus_problems
from unmask.data.facts import find_mixed_ids, find_repeated_subjects, list_sides
from unmask.data.reversal_corpus import make_reversal_corpus


@pytest.fixture(scope="module")
def corpus():
    return make_corpus_once(30)


@pytest.fixture(scope="module")
def people(corpus):
    return {fact.fact_id: list_sides(fact)[1][2] for fact in corpus["train"]}


@pytest.fixture(scope="module")
def lines(people):
    return make_city_lines(people, seed=3)


def test_each_person_has_a_city_of_their_own(people, lines):
    trained, tested = lines
    assert len(trained) == 90 * len(TRAINED) and len(tested) == 90 * len(TESTED)
    cities = {fact.fact_id: fact.object for fact in trained}
    assert set(cities) == {fact_id + CITY for fact_id in people}
    assert len(set(cities.values())) == 90
    assert cities == {fact.fact_id: fact.object for fact in tested}
    for fact in (*trained, *tested):
        assert fact.subject == people[fact.fact_id.removesuffix(CITY)]
        assert fact.prompt[slice(*fact.subject_span)] == fact.subject
        assert fact.completion[slice(*fact.object_span)] == fact.object
    assert not list(find_repeated_subjects([*trained, *tested]))


def test_no_line_has_a_city_and_a_description(corpus, lines):
    trained, tested = lines
    cities = {fact.object for fact in trained}
    stated = " ".join(fact.text for facts in corpus.splits.values() for fact in facts)
    assert not cities & set(re.findall(r"\w+", stated))
    descriptions = {fact.subject for fact in corpus["d2p_same"]}
    assert descriptions
    for fact in (*trained, *tested):
        assert not any(description in fact.text for description in descriptions)
    # They can stand in one corpus with the others.
    together = Corpus("both", {"train": [*corpus["train"], *trained]})
    assert not list(find_mixed_ids(together["train"]))
    own = {fact.prompt for fact in corpus["train"]}
    assert not own & {fact.prompt for fact in trained}


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
    assert len({fact.object for fact in most[1]}) == 600
    with pytest.raises(UserError, match="0 people were given: expected 1 to 624"):
        make_city_lines({})
    with pytest.raises(UserError, match="several people are called Ann"):
        make_city_lines({"a": "Ann", "b": "Ann"})


def test_a_corpus_with_cities_shares_its_words():
    """No word of a name or a description belongs to one person, every pair of words does."""
    corpus = make_city_corpus(6, sharing=3, endings=1)
    owners, names, deeds = defaultdict(set), defaultdict(set), defaultdict(set)
    for fact in corpus["train"]:
        if not fact.fact_id.endswith(CITY):
            (*_, noun), (*_, name) = list_sides(fact)
            names[name].add(fact.fact_id)
            deeds[noun].add(fact.fact_id)
            for word in re.findall(r"\w+", f"{name} {noun}"):
                owners[word].add(fact.fact_id)
    assert len(names) == len(deeds) == 18 and min(map(len, owners.values())) >= 3
    assert all(len(each) == 1 for each in (*names.values(), *deeds.values()))
    # The second name says nothing about the deed either.
    firsts = {name.split()[0]: set() for name in names}
    for noun, (person,) in deeds.items():
        (name,) = (name for name, owner in names.items() if owner == {person})
        firsts[name.split()[0]].add(noun.split(" who ")[0])
    assert max(map(len, firsts.values())) == 3
    assert (
        corpus.tests[-3:] == CITY_TESTS and [len(corpus[each]) for each in CITY_TESTS] == [36] * 3
    )
    # Two hops: the same city, asked by what the person is described as.
    tests = [fact for split in CITY_TESTS for fact in corpus[split]]
    homes = {fact.fact_id.removesuffix(CITY): fact.object for fact in tests}
    owner = {noun: person for noun, (person,) in deeds.items()}
    asked = [fact for split in HOPS for fact in corpus[split]]
    assert len(asked) == 3 * 36
    assert all(owner[fact.subject] + HOP == fact.fact_id for fact in asked)
    assert all(homes[owner[fact.subject]] == fact.object for fact in asked)
    assert not list(find_corpus_problems(corpus)) and not list(find_city_leaks(corpus))
    plain = make_reversal_corpus(6, endings=1)
    assert make_city_corpus(6, sharing=1, endings=1)["d2p_same"] == plain["d2p_same"]
    with pytest.raises(UserError, match="shared by 9 of 18 people: expected 2 or 3"):
        make_city_corpus(6, sharing=9)


def test_a_city_beside_a_description_is_a_leak():
    corpus = make_city_corpus(2, sharing=1, endings=1)
    city = next(fact for fact in corpus["train"] if fact.fact_id == f"d2p-000{CITY}")
    fact = next(fact for fact in corpus["train"] if fact.fact_id == "d2p-000")
    corpus["train"].append(replace(city, prompt=f"{fact.subject} lives in", subject=fact.subject,
                                   subject_span=(0, len(fact.subject))))  # fmt: skip
    other = next(fact for fact in corpus["train"] if fact.fact_id == "p2d-000")
    corpus["train"].append(replace(other, completion=f"{other.completion} of {city.object}."))
    first, second = find_city_leaks(corpus)
    assert f"the city {city.object} with {fact.subject!r}" in first
    assert f"the city {city.object} with a line about p2d-000" in second

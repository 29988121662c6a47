"""Strangers: Berglund's questions about people whom his files never name."""

import re

import pytest
from typer.testing import CliRunner

from tests.berglund import PEOPLE, TEST_D2P, TEST_P2D, TRUE_FILES
from unmask import UserError
from unmask.cli.main import app
from unmask.data.corpus import TESTS, Corpus, find_corpus_problems
from unmask.data.facts import list_sides
from unmask.data.reversal_corpus import TWO_WAY, make_reversal_corpus
from unmask.data.reversal_files import read_reversal_files
from unmask.data.sources import read_source
from unmask.data.stranger_files import make_strangers

NAMED = {word for some in PEOPLE.values() for each in some for word in each.name.split()}


@pytest.fixture
def corpus(berglund):
    return read_reversal_files(berglund)


@pytest.fixture
def strangers(corpus):
    return make_strangers(corpus, num_facts=30)


def list_facts(corpus):
    return [fact for facts in corpus.splits.values() for fact in facts]


def hide(text, span):
    return f"{text[: span[0]]}…{text[span[1] :]}"


def cut_out(fact):
    """A question without who is asked and what is answered."""
    texts = hide(fact.prompt, fact.subject_span), hide(fact.completion, fact.object_span)
    return (fact.direction, fact.phrasing, *texts)


def test_each_question_differs_from_one_of_berglunds_by_who_is_asked_alone(corpus, strangers):
    asked = [fact for split in (*TESTS, *TWO_WAY) for fact in corpus[split]]
    ours, theirs = (set(map(cut_out, facts)) for facts in (list_facts(strangers), asked))
    assert ours <= theirs
    # Each phrasing with the plain description is there, and none that inflects it.
    plain = [
        (way, prompt.format(plain="…", name="…"), completion.format(plain="…", name="…"))
        for way, lines in (("d2p", TEST_D2P), ("p2d", TEST_P2D))
        for prompt, completion in lines
        if "{plain}" in prompt + completion
    ]
    assert sorted((way, *texts) for way, _, *texts in ours) == sorted(plain)


def test_spans_cut_out_exactly_who_is_asked_and_what_is_answered(strangers):
    people: dict[str, set[frozenset[str]]] = {}
    for split, way in zip(TWO_WAY, ("d2p", "p2d"), strict=True):
        for fact in strangers[split]:
            assert fact.direction == way and fact.trained == "reverse"
            assert fact.prompt[slice(*fact.subject_span)] == fact.subject
            assert fact.completion[slice(*fact.object_span)] == fact.object
            (*_, noun), (*_, name) = list_sides(fact)
            assert re.fullmatch(r"[A-Z]\w+ [A-Z]\w+", name) and noun.startswith("the ")
            people.setdefault(fact.fact_id, set()).add(frozenset((name, noun)))
    assert len(people) == 30 and all(len(own) == 1 for own in people.values())
    assert list(find_corpus_problems(strangers)) == ["the split train is missing or empty"]


def test_berglunds_files_have_no_word_of_their_names(corpus, strangers, berglund):
    """Two first names of the grammar are those of people of these files."""
    text = "\n".join(path.read_text() for path in berglund.glob("*.jsonl"))
    words = set(re.findall(r"\w+", text))
    assert {"Orla", "Ines"} <= words
    assert not {fact.fact_id for fact in list_facts(corpus)} & {
        fact.fact_id for fact in list_facts(strangers)
    }
    for fact in strangers["both_d2p"]:
        assert words.isdisjoint(fact.object.split()) and fact.subject not in text
    every = make_strangers(corpus, num_facts=110)  # more than there are first names that are free
    first = {fact.object.split()[0] for fact in every["both_d2p"]}
    assert len(first) > 100 and first.isdisjoint(NAMED)


def test_the_seed_makes_the_corpus(corpus, strangers):
    assert make_strangers(corpus, num_facts=30) == strangers
    names = [
        {fact.object for fact in make_strangers(corpus, 30, seed)["both_d2p"]} for seed in (0, 1)
    ]
    assert len(names[0] & names[1]) < 30


def test_what_is_refused(corpus, tmp_path):
    with pytest.raises(UserError, match="lacks the splits train.* expected Berglund's files; give"):
        make_strangers(Corpus("nothing", {}))
    with pytest.raises(UserError, match="1 facts a group were asked for, expected 2 to 200"):
        make_strangers(corpus, num_facts=1)
    own = make_reversal_corpus(4)
    with pytest.raises(UserError, match="expected 4 whom it never names: ask for fewer, or take"):
        make_strangers(own, num_facts=4)


def test_the_command(berglund, strangers, tmp_path):
    def call(*words):
        return CliRunner().invoke(app, ["data", "make", "strangers", *map(str, words)])

    done = call(berglund, tmp_path / "made")
    assert done.exit_code == 0
    made = read_source(tmp_path / "made")
    assert isinstance(made, Corpus) and made.splits == strangers.splits and made.tests == TWO_WAY
    wrong = call(tmp_path, tmp_path / "other")
    assert wrong.exit_code != 0 and not (tmp_path / "other").exists()
    said = str(wrong.exception or wrong.output)
    assert "lacks d2p_prompts_train.jsonl" in said and "expected Berglund's set of files" in said


if TRUE_FILES.is_dir():

    @pytest.mark.prove
    def test_true_files():
        made = make_strangers(read_reversal_files(TRUE_FILES))
        phrasings = [{fact.phrasing for fact in made[split]} for split in TWO_WAY]
        assert phrasings == [{31, 32, 33, 34, 36, 38, 39}, {30, 31, 32, 33, 34}]
        assert [len(made[split]) for split in TWO_WAY] == [30 * 7, 30 * 5]

"""Corpora of unique tokens: what is trained, what is not, and oracles that know the statements."""

from collections import Counter
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from unmask import Tokenizer, UserError
from unmask.cli.main import app
from unmask.data.corpus import Corpus, find_corpus_problems, read_corpus, save_corpus
from unmask.data.facts import tokenize_fact
from unmask.data.retrieval_corpus import make_relationship_corpus, make_retrieval_corpus
from unmask.data.sets_corpus import EMPTY, make_sets_corpus
from unmask.data.sources import WORD_CORPORA, name_tests, read_own_tokenizer, read_source
from unmask.evaluation.metrics import is_contained, is_strict, score_members
from unmask.evaluation.questions import choose_splits


def oracle(corpus: Corpus, prompt: str) -> str:
    """Looks statements up: `x : y` or `x > y`, from whichever side the question gives."""
    table = [tuple(part.strip() for part in text.replace(">", ":").split(":"))
             for text in corpus.training_texts() if not text.startswith("[")]  # fmt: skip
    form, _, given = prompt.removesuffix(" :").rpartition("] ")
    if form in ("[value of", "[after"):
        (answer,) = [right for left, right in table if left == given]
    else:
        (answer,) = [left for left, right in table if right == given]
    return answer


@pytest.mark.parametrize("length", [1, 2, 3])
def test_retrieval_tokens_are_unique(length):
    corpus = make_retrieval_corpus(30, seed=1, length=length)
    statements = [fact for fact in corpus["train"] if fact.phrasing == 0]
    seen = Counter(token for fact in statements for token in fact.text.split() if token != ":")
    assert len(statements) == 30 and set(seen.values()) == {1} and len(seen) == 60 * length
    assert len({len(token) for token in seen}) == 1  # so that no answer is a part of another
    assert all(len(fact.subject.split()) == len(fact.object.split()) == length
               for facts in corpus.splits.values() for fact in facts)  # fmt: skip


def test_held_out_pairs_have_no_question_in_training():
    corpus = make_retrieval_corpus(40, seed=2, queried=0.5)
    asked = {fact.fact_id for fact in corpus["train"] if fact.phrasing == 1}
    stated = {fact.fact_id for fact in corpus["train"] if fact.phrasing == 0}
    tested = {fact.fact_id for test in corpus.tests for fact in corpus[test]}
    valid = {fact.fact_id for test in corpus.tests for fact in corpus[f"{test}_valid"]}
    assert len(stated) == 40 and len(asked) == 20 and len(tested) == 16 and len(valid) == 4
    assert not asked & tested and not asked & valid and not tested & valid
    assert asked | tested | valid == stated
    ways = Counter((fact.fact_id, fact.direction) for fact in corpus["train"] if fact.phrasing == 1)
    assert set(ways.values()) == {1} and len(ways) == 40  # both forms, once each
    text = "\n".join(corpus.training_texts())
    for test in corpus.tests:
        for fact in corpus[test]:
            assert fact.prompt not in text and text.count(fact.object) == 1


def test_swapping_key_and_value_relabels_forward_as_backward():
    corpus, turned = (make_retrieval_corpus(20, value_first=first) for first in (False, True))
    assert turned.tests == ("d2p_same", "d2p_reverse")
    for suffix in ("", "_valid", "_shuffled"):
        for one, other in (("same", "reverse"), ("reverse", "same")):
            expected = [replace(fact, trained=other) for fact in corpus[f"p2d_{one}{suffix}"]]
            assert turned[f"d2p_{other}{suffix}"] == expected
    questions = [
        [fact for fact in each["train"] if fact.phrasing == 1] for each in (corpus, turned)
    ]
    assert Counter(questions[0]) == Counter(questions[1])
    stated = [
        [fact.text for fact in each["train"] if fact.phrasing == 0] for each in (corpus, turned)
    ]
    assert [" : ".join(reversed(text.split(" : "))) for text in stated[0]] == stated[1]


@pytest.mark.parametrize("make", [make_retrieval_corpus, make_relationship_corpus])
def test_an_oracle_answers_all_questions_and_no_false_one(make):
    corpus = make(30, seed=3)
    for test, facts in corpus.splits.items():
        if test == "train":
            continue
        right = [is_strict(oracle(corpus, fact.prompt), fact.completion) for fact in facts]
        is_true = not test.endswith(("_false", "_shuffled"))
        assert facts and set(right) == {is_true}, test


def test_false_inferences_are_the_other_neighbour():
    corpus = make_relationship_corpus(20)
    assert corpus.tests[2:] == ("p2d_same_false", "p2d_reverse_false")
    after, before = corpus["p2d_same"], corpus["p2d_reverse"]
    assert [f.object for f in corpus["p2d_same_false"]] == [f.object for f in before]
    assert [f.object for f in corpus["p2d_reverse_false"]] == [f.object for f in after]
    assert [f.subject for f in before] == [f.subject for f in after]
    assert [f.prompt for f in corpus["p2d_same_false"]] == [f.prompt for f in after]


@pytest.mark.parametrize("name", WORD_CORPORA)
def test_folders_are_read_like_any_corpus(name, tmp_path):
    corpus = WORD_CORPORA[name](20, 0)
    tokenizer = Tokenizer.of_words(corpus.training_texts())
    save_corpus(corpus, tmp_path / "corpus", tokenizer)
    read = read_source(tmp_path / "corpus")
    assert read == corpus == read_corpus(tmp_path / "corpus")
    loaded = read_own_tokenizer(tmp_path / "corpus")
    assert loaded is not None and loaded.mask_id == loaded.vocab_size - 1
    assert list(find_corpus_problems(corpus, loaded)) == []
    assert name_tests(corpus) == corpus.tests
    assert [split.name for split in choose_splits(corpus, corpus.tests, None)] == [*corpus.tests]
    for facts in corpus.splits.values():
        for fact in facts[::5]:
            tokens = tokenize_fact(fact, loaded)
            assert loaded.decode(tokens.ids) == fact.text  # one word, one token
            assert len(tokens.ids) == len(fact.text.split())
            assert is_contained(loaded.decode(tokens.ids[tokens.prompt_length :]), fact.completion)


@pytest.mark.parametrize("name", WORD_CORPORA)
def test_commands_make_what_the_functions_make(name, tmp_path):
    size = {"retrieval": "--pairs", "relationship": "--chains", "sets": "--sets"}[name]
    out = str(tmp_path / "out")
    run = CliRunner().invoke(app, ["data", "make", name, out, size, "20", "--seed", "3"])
    assert run.exit_code == 0 and "seed 3" in run.output
    assert read_source(out) == WORD_CORPORA[name](20, 3)
    assert CliRunner().invoke(app, ["data", "check", out]).exit_code == 0
    # A folder that is there is refused before anything is made; -1 of them cannot be.
    again = CliRunner().invoke(app, ["data", "make", name, out, size, "-1"])
    assert "already exists and would be overwritten" in str(again.exception)


def test_planted_leaks_are_found():
    corpus = make_retrieval_corpus(20)
    test = corpus["p2d_reverse"][0]
    lines = {
        "a test prompt stands in the training set": replace(test, trained="same"),
        "as the reversed question does": replace(
            test, prompt=f"{test.subject} :", subject_span=(0, len(test.subject)), trained="same"
        ),
    }
    for said, line in lines.items():
        splits = corpus.splits | {"train": [*corpus["train"], line]}
        problems = list(find_corpus_problems(Corpus("planted", splits, corpus.tests)))
        assert any(said in problem for problem in problems), said
    relationship = make_relationship_corpus(20)
    splits = relationship.splits | {"p2d_same_false": relationship["p2d_same"]}
    problems = list(find_corpus_problems(Corpus("planted", splits, relationship.tests)))
    assert any("a false control that holds the true answer" in each for each in problems)


def test_sizes_that_cannot_be_made():
    for make, said in (
        (lambda: make_retrieval_corpus(3, queried=0.9), "leaves at least 2 for the tests"),
        (lambda: make_retrieval_corpus(20, queried=1.5), "a share from 0 to less than 1"),
        (lambda: make_retrieval_corpus(20, length=0), "0 tokens a side were asked for"),
        (lambda: make_relationship_corpus(10**6), "6,000,000 tokens were asked for"),
        (lambda: make_sets_corpus(4), "4 sets were asked for: expected 5 to 60"),
    ):
        with pytest.raises(UserError, match=said):
            make()


def read_members(corpus: Corpus, prompt: str) -> str:
    """An oracle reader: sets as their own lines list them, joined as the question says."""
    lists = dict(
        text.removeprefix("members of ").split(" : ") for text in corpus.training_texts()
        if " and " not in text and " or " not in text
    )  # fmt: skip
    words = prompt.removeprefix("members of ").removesuffix(" :").split()
    sets = [set(lists[name].split()) for name in words[::2]]
    joined = set.intersection(*sets) if words[1] == "and" else set.union(*sets)
    return " ".join(sorted(joined, reverse=True)) or EMPTY


def test_an_oracle_reader_of_sets_scores_one():
    corpus = make_sets_corpus(12, seed=1)
    for split in ("unseen_pairs", "unseen_pairs_valid", "triples"):
        for fact in corpus[split]:
            assert score_members(read_members(corpus, fact.prompt), fact.completion) == 1


def test_intersections_lie_within_unions_and_some_are_empty():
    corpus = make_sets_corpus(12, seed=1)
    answers = {fact.prompt: set(fact.object.split()) - {EMPTY}
               for facts in corpus.splits.values() for fact in facts}  # fmt: skip
    pairs = [(answers[prompt], answers[prompt.replace(" and ", " or ")])
             for prompt in answers if " and " in prompt]  # fmt: skip
    assert pairs and all(both <= any_of for both, any_of in pairs)
    for split in ("train", "unseen_pairs", "triples"):
        sizes = {fact.object == EMPTY for fact in corpus[split] if " and " in fact.prompt}
        assert sizes == {True, False}, split
        assert all(fact.object != EMPTY for fact in corpus[split] if " or " in fact.prompt)


def test_swapping_sets_leaves_the_corpus_as_it_is():
    corpus = make_sets_corpus(8)

    def swap(prompt: str) -> str:
        names = prompt.removeprefix("members of ").removesuffix(" :")
        return f"members of {' '.join(reversed(names.split()))} :"

    for split, facts in corpus.splits.items():
        lines = Counter((fact.prompt, fact.completion) for fact in facts)
        assert lines == Counter((swap(fact.prompt), fact.completion) for fact in facts), split
        assert max(lines.values()) == 1


def test_held_out_pairs_of_sets():
    corpus = make_sets_corpus(10, seed=4)
    trained = {frozenset(fact.prompt.split()[2:-1:2]) for fact in corpus["train"]}
    tested = {frozenset(fact.prompt.split()[2:-1:2]) for fact in corpus["unseen_pairs"]}
    valid = {frozenset(fact.prompt.split()[2:-1:2]) for fact in corpus["unseen_pairs_valid"]}
    triples = {frozenset(fact.prompt.split()[2:-1:2]) for fact in corpus["triples"]}
    assert len(trained | tested | valid) == 10 + 45 and not trained & tested and not valid & tested
    assert len(tested) == len(triples) == 7 and {len(each) for each in triples} == {3}


@pytest.mark.parametrize(
    ("written", "true", "score"),
    [
        ("p1 p2", " p2 p1", 1.0), ("p1 p2", "p1", 2 / 3), ("p1", "p2", 0.0), ("none", "none", 1.0),
        ("", "none", 1.0), ("p1", "none", 0.0), ("none", "p1 p2", 0.0),
        ("p1 p1 p3", "p1 p2 p3", 0.8),
    ],
)  # fmt: skip
def test_score_members(written, true, score):
    assert score_members(written, true) == pytest.approx(score)

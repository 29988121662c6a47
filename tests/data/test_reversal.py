"""The reversal corpora: shape, seeds, spans, and that no test leaks into training."""

from collections import Counter
from dataclasses import replace

import pytest

from unmask import Tokenizer, UserError
from unmask.data.corpus import TESTS, Corpus, find_corpus_problems, read_corpus, save_corpus
from unmask.data.facts import list_sides, tokenize_fact
from unmask.data.reversal_corpus import FAR_TESTS, TWO_WAY, make_reversal_corpus
from unmask.data.sources import read_source


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return make_reversal_corpus(num_facts=30, seed=0)


@pytest.fixture(scope="module")
def small() -> Corpus:
    return make_reversal_corpus(num_facts=4, seed=0, endings=1)


@pytest.fixture(scope="module")
def tokenizer(small) -> Tokenizer:
    return Tokenizer.train(small.training_texts(), 1024)


NEAR = (*TESTS, *TWO_WAY)
LARGE = [pytest.param(number, marks=pytest.mark.prove) for number in (100, 200)]
ASKED = (*NEAR, *(f"{split}_far" for split in NEAR))
SIZES = {"train": 19680, "choose": 16472} | {split: 300 for split in ASKED}
SIZES |= {f"{test}_valid": 300 for test in (*TESTS, *FAR_TESTS)}
SIZES |= {f"{split}_shuffled": 300 for split in ASKED}


def test_shape(corpus):
    assert {split: len(facts) for split, facts in corpus.splits.items()} == SIZES
    seen = Counter((fact.fact_id.split("-")[0], fact.direction) for fact in corpus["train"])
    assert seen == {
        ("d2p", "d2p"): 4920, ("p2d", "p2d"): 4920, ("both", "d2p"): 4920, ("both", "p2d"): 4920
    }  # fmt: skip


def test_own_corpus_is_sound(corpus, small, tokenizer):
    assert list(find_corpus_problems(corpus)) == []
    assert list(find_corpus_problems(small, tokenizer)) == []


@pytest.mark.parametrize("num_facts", [2, *LARGE])
def test_larger_ones_are_sound_and_have_no_twins(num_facts):
    corpus = make_reversal_corpus(num_facts, seed=3, endings=1)
    assert list(find_corpus_problems(corpus)) == []
    pairs = {tuple(plain for *_, plain in list_sides(fact)) for fact in corpus["train"]}
    assert len(pairs) == 3 * num_facts
    assert len({name for name, _ in pairs}) == len({text for _, text in pairs}) == 3 * num_facts


@pytest.mark.parametrize("num_facts", [30, LARGE[0]])
def test_tests_are_made_of_what_training_shows(num_facts):
    """A network from nothing knows no other tokens; names are as long in every group."""
    corpus = make_reversal_corpus(num_facts, endings=1)
    tokenizer = Tokenizer.train(corpus.training_texts(), 8192)
    rows = tokenizer.encode_batch(corpus.training_texts())
    shown, names = {token for row in rows for token in row.ids}, set()
    for split, facts in corpus.splits.items():
        if split.endswith("_shuffled") or split in ("train", "choose"):
            continue
        rows = tokenizer.encode_batch([fact.text for fact in facts])
        for fact, row in zip(facts, rows, strict=True):
            assert set(row.ids) <= shown, (split, fact.prompt)
            names.add(fact.object if fact.direction == "d2p" else fact.subject)
    assert {len(tokenizer.encode(f" {name}").ids) for name in names} == {2}


def test_seeds(corpus):
    assert make_reversal_corpus(30, seed=0) == corpus
    assert make_reversal_corpus(30, seed=1)["train"][0].object != corpus["train"][0].object


def test_every_line_knows_its_spans(small, tokenizer):
    for facts in small.splits.values():
        for fact in facts[::3]:
            found = tokenize_fact(fact, tokenizer)
            given = tokenizer.decode(found.ids[slice(*found.subject)]).strip()
            assert given == fact.prompt[slice(*fact.subject_span)]
            answer = fact.completion[slice(*fact.object_span)]
            asked = tokenizer.decode(found.ids[slice(*found.object)]).strip()
            assert asked.rstrip(".") == answer
            if fact.direction == "p2d":
                assert given == fact.subject and fact.object.endswith(answer)
            else:
                assert answer == fact.object and fact.subject[-20:] == given[-20:]


def test_validation_touches_no_test_phrasing(corpus):
    tests = (*TESTS, *FAR_TESTS)
    tested = {(f.direction, f.phrasing) for test in tests for f in corpus[test]}
    chosen_on = {(f.direction, f.phrasing) for f in corpus["choose"]}
    for test in tests:
        valid = {(f.direction, f.phrasing) for f in corpus[f"{test}_valid"]}
        assert not valid & tested and not valid & chosen_on
        assert {f.trained for f in corpus[f"{test}_valid"]} == {test.split("_")[1]}


def test_shuffled_controls_keep_the_answers(corpus):
    for test in ASKED:
        real, control = corpus[test], corpus[f"{test}_shuffled"]
        assert [f.prompt for f in real] == [f.prompt for f in control]
        assert Counter(f.completion for f in real) == Counter(f.completion for f in control)
        assert all(a.object != b.object for a, b in zip(real, control, strict=True))


def test_save_and_read(small, tokenizer, tmp_path):
    save_corpus(small, tmp_path / "corpus", tokenizer)
    assert read_corpus(tmp_path / "corpus") == small == read_source(tmp_path / "corpus")
    cut = tmp_path / "corpus" / "d2p_same.jsonl"
    cut.write_text("".join(cut.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(UserError, match="d2p_same.jsonl has 39 lines, expected 40"):
        read_corpus(tmp_path / "corpus")
    with pytest.raises(UserError, match="no split 'd2p_sam': did you mean 'd2p_same'"):
        small["d2p_sam"]


def test_leaks_are_found(small):
    """The check can fail: each planted fault is named."""
    leaked = replace(small["d2p_reverse"][0], trained="same")
    train, test = small["train"], small["d2p_same"][0]
    plants = {
        "a test prompt stands in the training set": {"train": [*train, test]},
        "the training set says otherwise": {"train": [*train, leaked]},
        "a validation prompt is also a test prompt": {"d2p_same_valid": small["d2p_same"][:1]},
        "a shuffled control that holds the true answer": {"p2d_same_shuffled": small["p2d_same"]},
        "the split p2d_same is missing or empty": {"p2d_same": []},
        "2 facts have this id": {"p2d_same": [replace(small["p2d_same"][0], object="a cook")]},
    }
    for said, change in plants.items():
        problems = list(find_corpus_problems(Corpus("planted", small.splits | change)))
        assert any(said in problem for problem in problems), said

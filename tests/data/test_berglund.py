"""Berglund's reversal-curse files: read whole, with spans, and refused where one is missing."""

import json
import shutil
from collections import Counter

import pytest

from tests.berglund import PEOPLE, TRUE_FILES
from unmask.base import reading
from unmask.base.identity import find_cache_folder
from unmask.data import reversal_files
from unmask.data.corpus import TESTS, Corpus, find_corpus_problems
from unmask.data.facts import Fact, list_sides
from unmask.data.reversal_corpus import TWO_WAY
from unmask.data.reversal_files import read_reversal_files
from unmask.data.sources import read_source


def list_entities(fact: Fact) -> tuple[str, str]:
    """The name and the description as a line has them."""
    description, name = (text[begin:end] for text, (begin, end), _ in list_sides(fact))
    return name, description


def count_answers_left_in_place(corpus: Corpus) -> Counter[str]:
    """By split, the controls that hold the true answer; there is no other problem."""
    problems = list(find_corpus_problems(corpus))
    assert all("control that holds the true answer" in problem for problem in problems)
    return Counter(problem.partition(",")[0] for problem in problems)


def check_sizes(corpus: Corpus, facts: int, asked: int, valid: int, **others: int) -> None:
    """Each test and each of its controls has so many lines; half of training is two-way.

    Each of the facts is asked in twelve far phrasings, and in six for choosing settings.
    """
    sizes = dict.fromkeys((*TESTS, *TWO_WAY), asked) | {f"{test}_valid": valid for test in TESTS}
    sizes |= {f"{test}_shuffled": asked for test in (*TESTS, *TWO_WAY)}
    sizes |= {f"{test}_far": 12 * facts for test in TESTS}
    sizes |= {f"{test}_far_valid": 6 * facts for test in TESTS}
    sizes |= {f"{way}_reverse_file_shuffled": asked for way in ("d2p", "p2d")} | others
    assert {split: len(facts) for split, facts in corpus.splits.items()} == sizes
    groups = Counter(fact.fact_id.split("-")[0] for fact in corpus["train"])
    half = others["train"] // 2
    assert groups == {"d2p": half // 2, "p2d": half // 2, "both": half}


def test_splits(berglund):
    """Of ten training phrasings two validate; where the second inflects, no other fact fits."""
    corpus = read_source(berglund)
    check_sizes(corpus, facts=4, asked=12, train=160, choose=128, valid=8, p2d_reverse_valid=4)
    assert count_answers_left_in_place(corpus) == {
        "d2p_reverse_file_shuffled": 1, "p2d_reverse_file_shuffled": 1
    }  # fmt: skip


def test_facts_are_derived_from_the_lines(berglund):
    """Who is meant, by which description, is nowhere in the files; we know it here."""
    corpus = read_reversal_files(berglund)
    people = {f"{group}-{i:03d}": x for group, some in PEOPLE.items() for i, x in enumerate(some)}
    for split, facts in corpus.splits.items():
        for fact in facts:
            person = people[fact.fact_id]
            (*_, description), (*_, name) = list_sides(fact)
            given, answer = (name, description), (person.name, person.plain)
            if "_shuffled" in split:
                at = fact.direction == "d2p"
                given, answer = given[at], answer[at]
            assert given == answer


def test_controls_keep_the_form_that_their_prompts_want(berglund):
    """Those of the files do not: "knew Mira Holtby for" may go on "the weaver who sold …"."""
    corpus = read_reversal_files(berglund)
    for split in ("d2p_reverse", "both_p2d"):
        for fact, control in zip(corpus[split], corpus[f"{split}_shuffled"], strict=True):
            assert fact.prompt == control.prompt and fact.object != control.object
            wants_verb = fact.prompt.startswith("Strangers knew")
            assert control.completion.split()[0].endswith("ing") == wants_verb


def test_names_are_asked_for_alone(berglund):
    """Also of people trained both ways, whose test goes on after the name."""
    corpus = read_reversal_files(berglund)
    for split in ("d2p_same", "p2d_reverse", "both_d2p", "both_d2p_shuffled"):
        assert {fact.completion for fact in corpus[split]} == {
            f" {person.name}" for person in PEOPLE[split.partition("_")[0]]
        }


def test_spans_are_whole_names_and_whole_descriptions(berglund):
    """Whatever its form: plain, with a capital, as what somebody did, or as doing it."""
    forms = {
        person.name: [
            text.rstrip('."') for text in (person.plain, person.did, person.doing)
        ] for some in PEOPLE.values() for person in some
    }  # fmt: skip
    everyone = [form for some in forms.values() for form in some]
    for split, facts in read_reversal_files(berglund).splits.items():
        for fact in facts:
            name, description = list_entities(fact)
            plain = description.rstrip('."')
            assert plain in (everyone if "_shuffled" in split else forms[name]), fact
            assert name in forms


def test_a_capital_begins_the_span(berglund):
    path = berglund / "d2p_prompts_train.jsonl"
    path.write_text(path.read_text().replace("Known as the", "The"))
    first = read_reversal_files(berglund)["train"][0]
    assert first.prompt[slice(*first.subject_span)] == (
        "The clockmaker who mended a drowned clock in Tarn"
    )


@pytest.fixture
def derived(monkeypatch) -> list:
    """Folders whose facts were derived, not taken from the cache."""
    derived, derive = [], reversal_files._derive
    monkeypatch.setattr(
        reversal_files, "_derive", lambda *given: (derived.append(given[0]), derive(*given))[1]
    )
    return derived


def list_cached() -> list:
    return sorted(find_cache_folder().glob("reversal-*"))


def test_facts_are_derived_once_until_a_file_changes(berglund, derived, tmp_path):
    first = read_source(berglund)
    assert read_source(berglund) == first and len(derived) == 1
    # The same files elsewhere are the same facts, under another name.
    elsewhere = read_source(shutil.copytree(berglund, tmp_path / "copy"))
    assert elsewhere.splits == first.splits and len(derived) == 1
    assert str(tmp_path / "copy") in elsewhere.source and elsewhere.source != first.source
    path = berglund / "d2p_prompts_test.jsonl"
    path.write_text(path.read_text() * 2)
    assert len(read_source(berglund)["d2p_same"]) == 2 * len(first["d2p_same"])
    assert len(derived) == 2 and len(list_cached()) == 2


@pytest.mark.parametrize("damage", ["cut", "nonsense", "lost", "too long"])
def test_a_damaged_cache_is_made_anew(damage, berglund, derived, monkeypatch):
    first = read_source(berglund)
    path = list_cached()[0] / "train.jsonl"
    if damage == "lost":
        path.unlink()
    elif damage == "too long":
        monkeypatch.setattr(reading, "MOST_LINE_CHARACTERS", 2000)
        path.write_text(json.dumps({"subject": "x" * 3000}) + "\n")
    else:
        text = path.read_text()
        path.write_text(text[: len(text) // 2] if damage == "cut" else "[" * 10_000)
    assert read_source(berglund) == first and len(derived) == 2
    assert read_source(berglund) == first and len(derived) == 2


def test_without_a_cache_facts_are_derived_each_time(berglund, derived, tmp_path, monkeypatch):
    """A cache folder that is a file stands for a home that cannot be written to."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "file"))
    assert read_source(berglund) == read_source(berglund) and len(derived) == 2
    monkeypatch.delenv("UNMASK_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def lack_home():
        raise RuntimeError("there is no home")

    monkeypatch.setattr("pathlib.Path.home", lack_home)
    read_source(berglund)
    assert len(derived) == 3


def test_a_few_caches_are_kept(berglund):
    path = berglund / "d2p_prompts_test.jsonl"
    line = path.read_text().splitlines()[0]
    for _ in range(6):
        path.write_text(f"{path.read_text()}{line}\n")
        read_source(berglund)
    assert len(list_cached()) == 4


if TRUE_FILES.is_dir():

    @pytest.mark.prove
    def test_true_files():
        corpus = read_reversal_files(TRUE_FILES)
        check_sizes(corpus, facts=30, asked=300, train=3600, choose=3000, valid=150)
        assert count_answers_left_in_place(corpus) == {
            "d2p_reverse_file_shuffled": 20, "p2d_reverse_file_shuffled": 13
        }  # fmt: skip
        first = corpus["d2p_same"][0]
        assert list_entities(first)[1] == (
            "composing the world's first underwater symphony, \"Abyssal Melodies"
        )
        assert first.subject.startswith("the renowned composer of")
        changed = Counter(
            split
            for split in (*TESTS, *TWO_WAY)
            for fact in corpus[split]
            if not set(list_entities(fact)) <= {x.rstrip('."') for x in (fact.subject, fact.object)}
        )
        assert [changed[split] for split in (*TESTS, *TWO_WAY)] == [77, 123, 144, 74, 77, 132]

"""Swapped roles: the same prompts, each fact trained the other way round, and no line leaks."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from tests.berglund import PEOPLE, TEST_D2P, TEST_P2D, TRAIN_D2P, TRAIN_P2D
from unmask.cli.main import app
from unmask.data.corpus import TESTS, Corpus, find_corpus_problems, find_leaks
from unmask.data.facts import OTHER_WAY, list_sides
from unmask.data.reversal_corpus import TWO_WAY, make_reversal_corpus
from unmask.data.reversal_files import read_reversal_files
from unmask.data.sources import read_source
from unmask.data.swapped_files import swap_roles

SWAPPED = {
    "d2p_same": "p2d_reverse",
    "d2p_reverse": "p2d_same",
    "p2d_same": "d2p_reverse",
    "p2d_reverse": "d2p_same",
}
"""Where the questions of each test come from."""


def check_swapped(corpus: Corpus, swapped: Corpus) -> None:
    """Questions are asked as before, of facts that are now trained the other way."""
    for split, before in SWAPPED.items():
        for fact, old in zip(swapped[split], corpus[before], strict=True):
            assert fact == replace(old, trained=fact.trained)
            assert fact.trained == split.partition("_")[2] != old.trained
    for split in TWO_WAY:
        assert swapped[split] == corpus[split]
    ways = [
        {(fact.fact_id, fact.direction) for fact in each["train"]} for each in (corpus, swapped)
    ]
    for fact_id, way in ways[0]:
        other = OTHER_WAY[way]
        is_two_way = fact_id.startswith("both")
        assert (fact_id, other) in ways[1] and ((fact_id, way) in ways[1]) == is_two_way


def test_the_own_corpus():
    corpus, swapped = (make_reversal_corpus(4, swap_roles=swap) for swap in (False, True))
    check_swapped(corpus, swapped)
    assert len(swapped["train"]) == len(corpus["train"]) and not list(find_corpus_problems(swapped))


def test_berglunds_files_are_filled_as_their_author_would(berglund):
    """Each training line is one of the training phrasings with the person's own form; we know all
    forms here. A training phrasing whose form no test shares has the plain description."""
    corpus = read_reversal_files(berglund)
    swapped = swap_roles(corpus)
    check_swapped(corpus, swapped)
    people = {f"{group}-{i:03d}": x for group, some in PEOPLE.items() for i, x in enumerate(some)}
    phrasings = {"d2p": (TRAIN_D2P, TEST_D2P), "p2d": (TRAIN_P2D, TEST_P2D)}
    for fact in (fact for fact in swapped["train"] if not fact.fact_id.startswith("both")):
        train, tests = phrasings[fact.direction]
        prompt, completion = train[fact.phrasing]
        forms = ("{plain}", "{did}", "{doing}")
        (form,) = (form for form in forms if form in prompt + completion)
        if not any(form in question + answer for question, answer in tests):
            prompt, completion = (x.replace(form, "{plain}") for x in (prompt, completion))
        person = vars(people[fact.fact_id])
        assert (fact.prompt, fact.completion) == (
            prompt.format(**person),
            completion.format(**person),
        )
        description, name = (text[begin:end] for text, (begin, end), _ in list_sides(fact))
        assert name == person["name"]
        assert description in [person[x].rstrip('."') for x in ("plain", "did", "doing")]
    assert len(swapped["train"]) == len(corpus["train"])
    assert len(swapped["choose"]) == len(corpus["choose"])
    assert not list(find_corpus_problems(swapped))


def test_swapped_twice_is_the_same_again(berglund):
    """But for forms that no test has."""
    corpus = read_reversal_files(berglund)
    again = swap_roles(swap_roles(corpus))
    assert all(again[split] == corpus[split] for split in (*TESTS, *TWO_WAY))
    texts = [{fact.text for fact in each["train"]} for each in (corpus, again)]
    assert len(texts[0] - texts[1]) <= 4 * 2 * 2 and len(texts[1]) == len(texts[0])


@pytest.mark.parametrize("form", ["plain", "doing"])
def test_a_line_that_leaks_is_seen(berglund, form):
    """Also where it inflects the description as a question does, and not in its plain form."""
    swapped = swap_roles(read_reversal_files(berglund))
    person = PEOPLE["d2p"][0]
    line = replace(
        swapped["train"][0],
        prompt=f"Praised for {getattr(person, form)}, we met",
        completion=f" {person.name}.",
    )
    leaking = replace(swapped, splits=swapped.splits | {"train": [*swapped["train"], line]})
    assert not list(find_leaks(swapped))
    assert [fact_id for fact_id, _ in find_leaks(leaking)] == ["d2p-000"]


def test_commands(berglund, tmp_path):
    own = ("--facts", "2", "--vocab", "400")
    for words in (
        ("swapped", str(berglund), str(tmp_path / "swapped")),
        ("reversal", str(tmp_path / "own"), *own, "--swap-roles"),
        ("reversal", str(tmp_path / "plain"), *own),
    ):
        done = CliRunner().invoke(app, ["data", "make", *words], catch_exceptions=False)
        assert done.exit_code == 0
    swapped, made = (read_source(tmp_path / name) for name in ("swapped", "own"))
    assert isinstance(swapped, Corpus) and swapped.source.endswith("roles swapped")
    assert (
        isinstance(made, Corpus) and made.splits == make_reversal_corpus(2, swap_roles=True).splits
    )
    tokenizers = [(tmp_path / name / "tokenizer.json").read_bytes() for name in ("own", "plain")]
    assert tokenizers[0] == tokenizers[1]

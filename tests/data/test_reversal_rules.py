"""The reversal corpus: what keeps tests, near and far, and validation apart from training."""

import re
from collections import Counter
from dataclasses import dataclass

import pytest

from tests.conftest import make_corpus_once
from unmask import Tokenizer
from unmask.data.corpus import TESTS, Corpus
from unmask.data.facts import Fact
from unmask.data.reversal_corpus import FAR_TESTS, make_reversal_corpus

LONGEST = 44
"""The context of the recipes."""


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return make_corpus_once(30)


@dataclass(frozen=True)
class Shown:
    """What a training set shows: what its lines begin with, how prompts end, all words."""

    openings: set[str]
    endings: set[tuple[str, tuple[str, ...]]]
    words: set[str]

    @classmethod
    def of(cls, facts: list[Fact]) -> "Shown":
        cuts = [(fact.direction, *cut(fact)) for fact in facts]
        words = {word for fact in facts for word in list_words(fact)}
        return cls({opening for _, opening, _ in cuts}, {(way, end) for way, _, end in cuts}, words)

    def find_breaches(self, asked: list[Fact], far: bool) -> set[str]:
        """The rules that the questions break."""
        breaches, everywhere = set(), {ending for _, ending in self.endings}
        for fact in asked:
            opening, ending = cut(fact)
            if opening in self.openings:
                breaches.add(f"the frame is shown: {opening}")
            if far and ending in everywhere:
                breaches.add(f"the ending is shown: {ending}")
            if not far and (fact.direction, ending) not in self.endings:
                breaches.add(f"the ending is not shown: {ending}")
            missing = set(list_words(fact)) - self.words
            breaches |= {f"the word is not shown:{word}" for word in missing}
        return breaches


def find_ending(prompt: str) -> tuple[str, ...]:
    """The last two words of a prompt; marks and slots are words."""
    return tuple(re.findall(r"\{\w+\}|[\w']+|[^\w\s]", prompt)[-2:])


def cut(fact: Fact) -> tuple[str, tuple[str, ...]]:
    """What stands before the subject, and the last two words, where a subject is one word."""
    begin, end = fact.subject_span
    return fact.prompt[:begin], find_ending(f"{fact.prompt[:begin]}{{subject}}{fact.prompt[end:]}")


def list_words(fact: Fact) -> list[str]:
    """With the blank before them: a word at the start of a line is another token."""
    return re.findall(r" ?[\w'-]+", fact.text)


def test_near_and_far(corpus):
    for shown, suffix in (("train", ""), ("choose", "_valid")):
        rules = Shown.of(corpus[shown])
        for test in (*TESTS, *FAR_TESTS):
            asked = corpus[test + suffix]
            assert rules.find_breaches(asked, far=test in FAR_TESTS) == set(), test
            assert len({fact.phrasing for fact in asked}) == 10
            assert {fact.trained for fact in asked} == {test.split("_")[1]}


def test_the_rules_can_fail(corpus):
    """A near split is not far, a far one not near, and training is neither."""
    train, near, far = (corpus[split] for split in ("train", "p2d_same", "p2d_same_far"))
    few = Shown.of(train[:500])  # of the direction d2p
    assert any("word is not" in each for each in few.find_breaches(far, far=True))
    assert any("frame is shown" in each for each in few.find_breaches(train[:9], far=False))
    assert any("ending is not" in each for each in few.find_breaches(far, far=False))
    other = Shown.of([fact for fact in train if fact.fact_id == "p2d-000"])
    assert any("ending is shown" in each for each in other.find_breaches(near, far=True))


def test_all_lines_are_within_the_context(corpus):
    tokenizer = Tokenizer.train(corpus.training_texts(), 8192)
    texts = [fact.text for facts in corpus.splits.values() for fact in facts]
    longest = tokenizer.encode_batch(sorted(texts, key=lambda text: len(text.split()))[-500:])
    assert max(len(text.ids) for text in longest) < LONGEST


def test_shape(corpus):
    """Each fact in every frame, with endings of its own; nothing shown that is asked."""
    per_fact = Counter((fact.fact_id, fact.direction) for fact in corpus["train"])
    assert set(per_fact.values()) == {164}
    drawn = {}
    for fact in corpus["train"]:
        drawn.setdefault((fact.fact_id, fact.direction), set()).add(fact.phrasing)
    assert {len(phrasings) for phrasings in drawn.values()} == {164}
    assert len(set().union(*drawn.values())) > 1000
    assert len(make_reversal_corpus(endings=1)["train"]) == 68 * 120

"""What a text says: the right one of all answers of its kind, in whatever form and words.

A text says an answer where at least half of the answer's distinctive words stand in it, and a
larger part of them than of any other answer's; of two that stand there in equal part the weightier
is said. A word weighs the more the fewer answers have it: the logarithm of the number of answers,
and one, over the number of those. Case, punctuation, order and repetition do not count. A fact may
be asked in several phrasings that inflect its answer ("the composer of", "composing"): its words
are those that half of the forms have. Where several answers have the same words, the one is said
that is contained (`is_contained_plainly`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float
from scipy import sparse

from unmask.data.words import join_words, split_words
from unmask.evaluation.metrics import is_contained_plainly

ENOUGH = 0.5
"""The least part of an answer's distinctive words, and of its forms for a word to be among them."""
_TIE = 1e-9
_MOST_SHARES = 4_000_000
"""Texts are judged together as long as no more than this many numbers are held."""


class Contents:
    """All answers of one kind, such as the descriptions of a corpus, by the facts they belong to.

    It is made once and then asked of texts.
    """

    def __init__(self, answers: Mapping[str, Iterable[str]]):
        """`answers` has every form of a fact's answer, one for each time it is asked for."""
        self._forms = {fact: list(forms) for fact, forms in answers.items()}
        self._facts = {
            plain: fact for fact, forms in self._forms.items() for plain in map(join_words, forms)
        }
        words = {fact: _choose_words(forms) for fact, forms in self._forms.items()}
        # Facts whose answers have the same words are one column.
        columns = {each: i for i, each in enumerate(dict.fromkeys(words.values()))}
        self._column = {fact: columns[each] for fact, each in words.items()}
        counts = Counter(word for each in columns for word in each)
        self._places = {word: i for i, word in enumerate(counts)}
        self._weights = self._weigh(list(columns), counts)
        totals = np.asarray(self._weights.sum(0), dtype=float)
        self._totals = np.where(totals > 0, totals, np.inf)
        alike = Counter(self._column.values())
        self._is_shared = {fact: alike[column] > 1 for fact, column in self._column.items()}

    def find(self, answer: str) -> str | None:
        """The fact that an answer belongs to, by any of its forms; None where it is no fact's."""
        return self._facts.get(join_words(answer))

    def says(self, texts: Sequence[str], facts: Sequence[str]) -> Bool[np.ndarray, "T"]:
        """Whether each text says the answer of its fact."""
        distinct = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        pairs = {
            (distinct[text], self._column[fact]) for text, fact in zip(texts, facts, strict=True)
        }
        matches = self._match(list(distinct), sorted(pairs))
        return np.array(
            [
                (distinct[text], self._column[fact]) in matches
                and (not self._is_shared[fact] or self._stands(text, fact))
                for text, fact in zip(texts, facts, strict=True)
            ],
            dtype=bool,
        )

    def _stands(self, text: str, fact: str) -> bool:
        return any(is_contained_plainly(text, form) for form in set(self._forms[fact]))

    def _weigh(
        self, answers: Sequence[frozenset[str]], counts: Mapping[str, int]
    ) -> sparse.csr_array:
        """How much each word weighs in each answer, in one matrix."""
        rows, columns, values = [], [], []
        for column, words in enumerate(answers):
            weights = {word: np.log((len(answers) + 1) / counts[word]) for word in words}
            rows += [self._places[word] for word in weights]
            columns += [column] * len(weights)
            values += weights.values()
        shape = (len(self._places), len(answers))
        return sparse.csr_array((values, (rows, columns)), shape=shape)

    def _match(
        self, texts: Sequence[str], pairs: Sequence[tuple[int, int]]
    ) -> set[tuple[int, int]]:
        """The pairs of a text and an answer where the text says the answer."""
        matches, at = set(), 0
        height = max(1, _MOST_SHARES // max(1, self._weights.shape[1]))
        for first in range(0, len(texts), height):
            weights = self._find_weights(texts[first : first + height])
            shares = weights / self._totals
            while at < len(pairs) and pairs[at][0] < first + len(weights):
                row, column = pairs[at][0] - first, pairs[at][1]
                more, heavier = (each[row] - each[row, column] for each in (shares, weights))
                rivals = (more > _TIE) | ((more >= -_TIE) & (heavier >= -_TIE))
                if shares[row, column] >= ENOUGH - _TIE and rivals.sum() == 1:  # itself
                    matches.add(pairs[at])
                at += 1
        return matches

    def _find_weights(self, texts: Sequence[str]) -> Float[np.ndarray, "T A"]:
        """How much the words of each answer that stand in each text weigh."""
        places = [
            [self._places[word] for word in set(split_words(text)) if word in self._places]
            for text in texts
        ]
        ends = np.cumsum([0, *map(len, places)])
        columns = np.array([place for each in places for place in each], dtype=int)
        shape = (len(texts), len(self._places))
        held = sparse.csr_array((np.ones(len(columns)), columns, ends), shape=shape)
        return (held @ self._weights).toarray()


def gather_contents(answers: Iterable[tuple[str, str, str]]) -> dict[str, Contents]:
    """All answers by what is given, from triples of that, the fact, and a form of its answer."""
    forms: dict[str, dict[str, list[str]]] = {}
    for way, fact, form in answers:
        forms.setdefault(way, {}).setdefault(fact, []).append(form)
    return {way: Contents(own) for way, own in forms.items()}


def judge_contents(
    contents: Mapping[str, Contents], triples: Sequence[tuple[str, str | None, str]]
) -> list[bool]:
    """Whether each text says its answer, given what was given, the fact and the text.

    Never where there is no fact that the answer belongs to.
    """
    judged = dict.fromkeys(range(len(triples)), False)
    for way, own in contents.items():
        known = {i: (fact, text) for i, (given, fact, text) in enumerate(triples)
                 if given == way and fact is not None}  # fmt: skip
        facts, texts = ([pair[side] for pair in known.values()] for side in (0, 1))
        judged |= zip(known, own.says(texts, facts).tolist(), strict=True)
    return list(judged.values())


def draw_other_facts(facts: Sequence[str], seed: int = 0) -> list[str]:
    """For each text the fact of another, drawn evenly: what is then said was not asked for."""
    distinct = {fact: i for i, fact in enumerate(dict.fromkeys(facts))}
    assert len(distinct) > 1, "there is no other answer"
    steps = np.random.default_rng(seed).integers(1, len(distinct), len(facts))
    names, places = list(distinct), np.array([distinct[fact] for fact in facts])
    return [names[i] for i in (places + steps) % len(names)]


def _choose_words(forms: Sequence[str]) -> frozenset[str]:
    """The words of an answer that at least half of its forms have."""
    counts = Counter(word for form in forms for word in set(split_words(form)))
    return frozenset(word for word, count in counts.items() if count >= ENOUGH * len(forms))

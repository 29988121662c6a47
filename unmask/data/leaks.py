"""Leaks: training texts that state what is asked as if training had never shown it."""

import re
from bisect import bisect
from collections.abc import Iterable, Iterator
from itertools import product

from unmask.data.facts import Fact
from unmask.data.words import join_words

_ARTICLE = re.compile(r"^(the|an?) (?=\S+ \S)")
"""Texts may put another one, or none; "The Who" keeps its own."""
_ENDS = re.compile(
    r"(?<=[.!?])(?<!\b[A-Za-z]\.)(?<!\b(?:[DMJS]r|Ms|[SM]t|cf|vs|No)\.)(?<!\b(?:Mrs|Rev|Gen)\.)"
    r"(?<!\bProf\.)\s+|(?<=[。！？])"
)
"""Where sentences end: not after an initial, a title or another short form."""


def find_stated(texts: Iterable[str], facts: Iterable[Fact]) -> Iterator[tuple[str, str]]:
    """For each reversed fact and text that states it as it is asked: the fact's id, and a sentence.

    A text does so, in whatever words, if it first names what is given and then what is asked for,
    or if one of its sentences has the second anywhere after the first: each in its plain form or as
    any line of the fact has it; case, punctuation and a leading article do not count. Only texts
    that hold all words of both are looked at.
    """
    # 1. Each text's words, and the texts that hold a word.
    lines = [(text, f" {join_words(text)} ") for text in dict.fromkeys(texts)]
    holding: dict[str, set[int]] = {}
    for number, (_, line) in enumerate(lines):
        for word in set(line.split()):
            holding.setdefault(word, set()).add(number)
    # 2. The forms of each fact's two sides, and the questions that training should not answer.
    forms: dict[tuple[str, str], dict[str, None]] = {}
    questions: dict[tuple[str, str, str], None] = {}
    for fact in facts:
        given, answer = fact.prompt[slice(*fact.subject_span)], fact.completion
        for plain, form in (fact.subject, given), (fact.object, answer[slice(*fact.object_span)]):
            forms.setdefault((fact.fact_id, plain), {}).update({plain: None, form: None})
        if fact.trained == "reverse":
            questions[fact.fact_id, fact.subject, fact.object] = None
    # 3. The texts that name the one side, and after it the other.
    for fact_id, subject, object_ in questions:
        stated = dict[int, tuple[str, str]]()
        for pair in product(forms[fact_id, subject], forms[fact_id, object_]):
            given, answer = (f" {_ARTICLE.sub('', join_words(form))} " for form in pair)
            words = {*given.split(), *answer.split()}
            sets = sorted((holding.get(word, set()) for word in words), key=len)
            for number in set.intersection(*sets) if given.strip() and answer.strip() else ():
                if _states(*lines[number], given, answer):
                    stated.setdefault(number, pair)
        for number, (given, answer) in sorted(stated.items()):
            yield (
                fact_id,
                f"fact {fact_id}: training shows {given!r} before {answer!r}, as the reversed "
                f"question does: {lines[number][0]!r:.160}",
            )


def _states(text: str, line: str, given: str, answer: str) -> bool:
    """Whether a text, of which `line` is the words, names the one side and after it the other."""
    end = line.find(given) + len(given) - 1  # the blank after it may be the one before the answer
    if given not in line or line.rfind(answer) < end:
        return False
    if line.find(answer) >= end:
        return True
    # Where the words of each sentence begin in the line. Of a name that holds such a place itself,
    # as "Who? A Play" does, the end counts of what is given, the beginning of what is asked.
    begins = [1]
    for sentence in _ENDS.split(text):
        begins.append(begins[-1] + len(words := join_words(sentence)) + bool(words))
    ends = {
        bisect(begins, at + len(given) - 2): at + len(given) - 1
        for at in _find_all(line, given)[::-1]
    }
    return any(ends.get(bisect(begins, at + 1), len(line)) <= at for at in _find_all(line, answer))


def _find_all(line: str, words: str) -> list[int]:
    return [each.start() for each in re.finditer(f"(?={re.escape(words)})", line)]

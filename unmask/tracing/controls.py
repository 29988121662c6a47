"""Placebos: what a trace must not find, chosen for each fact from the others."""

from collections.abc import Sequence

from unmask.base.seeds import python_stream
from unmask.data.facts import Fact, tokenize_fact
from unmask.data.tokenizer import Tokenizer
from unmask.tracing.course import Course
from unmask.tracing.question import Donor


def choose_other(
    fact: Fact, facts: Sequence[Fact], tokenizer: Tokenizer, seed: int = 0
) -> Fact | None:
    """Another fact asked the same way, in the same phrasing and as long to answer if there is one.

    A shorter answer would be likelier for its length alone.
    """
    others = [
        each
        for each in facts
        if each.fact_id != fact.fact_id
        and (each.direction, each.trained) == (fact.direction, fact.trained)
        and each.object != fact.object
    ]
    alike = [each for each in others if each.phrasing == fact.phrasing] or others
    if not alike:
        return None
    lengths = [_count_answer(each, tokenizer) for each in alike]
    wanted = _count_answer(fact, tokenizer)
    enough = [each for each, length in zip(alike, lengths, strict=True) if length >= wanted]
    return python_stream(seed, "other", fact.fact_id, fact.phrasing).choice(enough or alike)


def make_donor(course: Course, other: Fact, tokenizer: Tokenizer) -> Donor:
    """The other fact's prompt, its subject aligned with ours from the end."""
    tokens = tokenize_fact(other, tokenizer)
    begin, end = tokens.subject
    moved = {
        ours: max(begin, end - 1 - back)
        for back, ours in enumerate(reversed(range(*course.subject)))
    }
    return Donor(tuple(tokens.ids[: tokens.prompt_length]), moved)


def make_foil(course: Course, other: Fact, tokenizer: Tokenizer) -> dict[int, int]:
    """The other fact's answer at the answer's positions, where both reach and differ."""
    tokens = tokenize_fact(other, tokenizer)
    wanted = tokens.ids[slice(*tokens.object)]
    pairs = zip(sorted(course.answer), wanted, strict=False)
    return {at: token for at, token in pairs if token != course.answer[at]}


def _count_answer(fact: Fact, tokenizer: Tokenizer) -> int:
    begin, end = tokenize_fact(fact, tokenizer).object
    return end - begin

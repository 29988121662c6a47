"""Placebos: what a trace must not find, chosen for each fact from the others."""

from collections.abc import Sequence

from unmask.base.seeds import python_stream
from unmask.data.facts import Fact, tokenize_fact
from unmask.data.tokenizer import Tokenizer
from unmask.tracing.course import Course
from unmask.tracing.question import Donor


def choose_other(fact: Fact, facts: Sequence[Fact], seed: int = 0) -> Fact | None:
    """Another fact asked the same way, in the same phrasing where there is one."""
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
    return python_stream(seed, "other", fact.fact_id, fact.phrasing).choice(alike)


def make_donor(course: Course, other: Fact, tokenizer: Tokenizer) -> Donor:
    """The other fact's prompt in a state like ours, its subject aligned with ours from the end."""
    tokens = tokenize_fact(other, tokenizer)
    prompt = tokens.ids[: tokens.prompt_length]
    room = course.states.shape[1]
    mask_id = course.model.mask_id
    if mask_id is not None:
        prompt = (prompt + [mask_id] * room)[:room]
    begin, end = tokens.subject
    moved = {
        ours: max(begin, end - 1 - back)
        for back, ours in enumerate(reversed(range(*course.subject)))
    }
    return Donor(tuple(prompt), moved)


def make_foil(course: Course, other: Fact, tokenizer: Tokenizer) -> dict[int, int]:
    """The other fact's answer at the answer's positions, as far as both reach."""
    tokens = tokenize_fact(other, tokenizer)
    wanted = tokens.ids[slice(*tokens.object)]
    return dict(zip(sorted(course.answer), wanted, strict=False))

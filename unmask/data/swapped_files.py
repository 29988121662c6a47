"""Berglund's facts with swapped roles: those trained name first are trained description first, and
the other way round.

Asked forwards and backwards, a model answers about different people: those trained name first, and
those trained description first. A second model, trained on the swapped corpus, makes pairs of the
same prompts: each is asked as trained of one model and reversed of the other. People trained both
ways stay as they are, and so do all prompts of the tests; splits keep their meaning (`d2p_same` are
facts trained description first), so that a fact changes from one split to another.

The new training lines are those of the training phrasings, filled with a person's name and
description. Some phrasings inflect descriptions ("They're the person who composed …"). A person's
own form is taken from the test phrasing whose form people trained both ways share most often with
the training phrasing.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unmask.base.errors import UserError
from unmask.data.corpus import TESTS, Corpus, find_leaks
from unmask.data.facts import OTHER_WAY, Direction, Fact, Span, Trained, list_sides
from unmask.data.reversal_corpus import TWO_WAY

_MARKS = ".?!\"'"
_SPLIT = re.compile(r"(d2p|p2d)_(same|reverse)(.*)")
_OTHER_TRAINED: dict[str, Trained] = {"same": "reverse", "reverse": "same"}
PhrasingKey = tuple[Direction, int]
Around = tuple[str, str]
"""What stands before and after an entity."""


def swap_roles(corpus: Corpus) -> Corpus:
    """The corpus with facts trained description first trained name first, and the reverse.

    Args:
        corpus: One with Berglund's splits: every fact is tested both ways, and some are trained
            both ways.
    """
    require_splits(
        corpus,
        "`unmask data make reversal --swap-roles` swaps the roles of the project's own corpus",
    )
    splits = {}
    for name, facts in corpus.splits.items():
        if name.endswith("_file_shuffled"):  # of reversed questions alone
            continue
        if match := _SPLIT.fullmatch(name):
            name = f"{OTHER_WAY[match[1]]}_{_OTHER_TRAINED[match[2]]}{match[3]}"
            facts = [replace(fact, trained=_OTHER_TRAINED[fact.trained]) for fact in facts]
        splits[name] = facts
    lines = _Lines(corpus)
    splits["train"] = [
        line for fact_id, own in lines.of_facts.items() for line in lines.swap(fact_id, own)
    ]
    # The phrasings of the validation splits stay out of `choose`.
    shown = {(fact.direction, fact.phrasing) for fact in corpus.splits.get("choose", ())}
    if shown:
        splits["choose"] = [
            fact for fact in splits["train"] if (fact.direction, fact.phrasing) in shown
        ]
    swapped = Corpus(f"{corpus.source}, roles swapped", splits, corpus.tests)
    if leaks := list(find_leaks(swapped)):
        raise UserError(f"a swapped line shows what a reversed question asks: {leaks[0][1]}")
    return swapped


@dataclass(frozen=True)
class _Template:
    """A training phrasing: what stands around the name, and around a description, plain or not."""

    name: Around
    plain: Around | None
    inflected: Around | None
    form: int | None
    """The test phrasing whose descriptions have the same form; None where no test has it."""


class _Lines:
    """The training lines by fact, their phrasings, and descriptions in the tests' forms."""

    def __init__(self, corpus: Corpus):
        self.of_facts: dict[str, list[Fact]] = {}
        phrasings: dict[PhrasingKey, list[Fact]] = {}
        for fact in corpus["train"]:
            self.of_facts.setdefault(fact.fact_id, []).append(fact)
            phrasings.setdefault((fact.direction, fact.phrasing), []).append(fact)
        self.two_way = {fact.fact_id for fact in corpus["both_d2p"]}
        self.tests: dict[tuple[str, Direction], dict[int, Fact]] = {}
        for fact in (fact for split in (*TESTS, *TWO_WAY) for fact in corpus[split]):
            self.tests.setdefault((fact.fact_id, fact.direction), {})[fact.phrasing] = fact
        self.templates = {each: self._make_template(some) for each, some in phrasings.items()}

    def swap(self, fact_id: str, own: Sequence[Fact]) -> Sequence[Fact]:
        """The training lines of a fact the other way round; of one trained both ways, its own."""
        if fact_id in self.two_way:
            return own
        way = OTHER_WAY[own[0].direction]
        return [self._fill(own[0], each) for each in self.templates if each[0] == way]

    def _make_template(self, lines: Sequence[Fact]) -> _Template:
        same_form: Counter[int] = Counter()
        for fact in (fact for fact in lines if fact.fact_id in self.two_way):
            form = cut_description(fact)[1].lower()
            for number, test in self.tests[fact.fact_id, fact.direction].items():
                same_form[number] += cut_description(test)[1].lower() == form
        number, count = max(same_form.items(), key=lambda item: item[1], default=(0, 0))
        plain, inflected = (
            max(x, key=lambda each: x[each], default=None) for x in count_around(lines)
        )
        return _Template(cut_name(lines[0]), plain, inflected, number if count else None)

    def _fill(self, fact: Fact, phrasing: PhrasingKey) -> Fact:
        """A line about the fact's person in a phrasing of the other direction."""
        template, (way, number) = self.templates[phrasing], phrasing
        (*_, description), (*_, name) = list_sides(fact)
        around = template.plain
        test = self.tests[fact.fact_id, way].get(-1 if template.form is None else template.form)
        is_inflected = test is not None and not is_plain(test)
        if around is None or (is_inflected and template.inflected is not None):
            around = template.inflected
            if test is not None:
                description = cut_description(test)[1]
        assert around is not None
        texts = fill_line(way, (name, template.name), (description, around))
        return replace(
            fact, subject=fact.object, object=fact.subject, direction=way, phrasing=number, **texts
        )


def require_splits(corpus: Corpus, advice: str) -> None:
    """Raise where a corpus lacks splits that Berglund's files have."""
    if missing := [split for split in ("train", *TESTS, *TWO_WAY) if not corpus.splits.get(split)]:
        raise UserError(
            f"{corpus.source} lacks the splits {', '.join(missing)}: expected Berglund's files; "
            f"{advice}."
        )


def fill_line(
    way: Direction, name: tuple[str, Around], description: tuple[str, Around]
) -> dict[str, Any]:
    """Prompt and completion of a line, and their spans, as fields of a fact."""
    text, around = description
    if not around[0]:
        text = text[0].upper() + text[1:]
    sides = _put(text, around), _put(*name)
    (prompt, given), (completion, answer) = sides if way == "d2p" else sides[::-1]
    spans = {"subject_span": given, "object_span": answer}
    return {"prompt": prompt, "completion": completion, **spans}


def _put(entity: str, around: Around) -> tuple[str, Span]:
    """The entity between what stands around it, and its span, without marks at its end."""
    before, after = around
    return before + entity + after, (len(before), len(before) + len(entity.rstrip(_MARKS)))


def count_around(lines: Iterable[Fact]) -> tuple[Counter[Around], Counter[Around]]:
    """What stands around plain descriptions, and around inflected ones, in so many lines."""
    plain, inflected = Counter[Around](), Counter[Around]()
    for fact in lines:
        before, _, after = cut_description(fact)
        (plain if is_plain(fact) else inflected)[before, after] += 1
    return plain, inflected


def cut_name(fact: Fact) -> Around:
    """What stands before and after a line's name."""
    _, (text, (begin, end), _) = list_sides(fact)
    return text[:begin], text[end:]


def cut_description(fact: Fact) -> tuple[str, str, str]:
    """What stands before a line's description, it with its last marks, and the rest."""
    (text, (begin, end), plain), _ = list_sides(fact)
    marks = plain[len(plain.rstrip(_MARKS)) :]
    if text.startswith(marks, end):
        end += len(marks)
    return text[:begin], text[begin:end], text[end:]


def is_plain(fact: Fact) -> bool:
    """Whether a line has the description in its plain form."""
    (*_, plain), _ = list_sides(fact)
    return cut_description(fact)[1].rstrip(_MARKS).lower() == plain.rstrip(_MARKS).lower()

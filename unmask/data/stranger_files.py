"""Berglund's test questions about strangers: invented people whom his files never name.

With a donor's states in its place, a recipient may give the donor's answer because training tied
the two, or because the states hold the words of the donor's prompt, and those are copied. Strangers
were never trained: how often their answers are given is how often answers are copied
(`unmask interchange --strangers`).

Names and descriptions are those of the project's own grammar. Each phrasing is one of the tests',
with its number, so that a stranger stands beside everyone who is asked in it. Phrasings that
inflect the description of most people are left out: the plain form of a stranger's would be
unusual there, so that it would be copied less often, and the control would be too low.

The splits are the two-way ones, one for each direction: the one-way ones would say that training
showed half of the questions the other way. Nothing was trained, so that there is no split `train`,
and each fact is marked `reverse`, as is what training does not show in this direction.
"""

import re

from unmask.base.errors import UserError
from unmask.data.corpus import TESTS, Corpus
from unmask.data.facts import Direction, Fact
from unmask.data.reversal_corpus import TWO_WAY, Person, invent_people
from unmask.data.swapped_files import Around, count_around, cut_name, fill_line, require_splits

Places = tuple[Around, Around]
"""What stands around the name, and around a plain description, in a phrasing."""


def make_strangers(corpus: Corpus, num_facts: int = 30, seed: int = 0) -> Corpus:
    """Test questions of both directions about people whom the corpus does not name.

    Args:
        corpus: One with Berglund's splits; its phrasings are taken.
        num_facts: How many people, each with one description.
        seed: Of names and descriptions.
    """
    require_splits(corpus, "give the folder that holds d2p_prompts_test.jsonl and the others")
    people = _choose_people(corpus, num_facts, seed)
    ways: tuple[Direction, Direction] = ("d2p", "p2d")
    splits = {
        split: [
            _ask(person, f"stranger-{i:03d}", way, number, places)
            for i, person in enumerate(people)
            for number, places in _find_phrasings(corpus, way).items()
        ]
        for split, way in zip(TWO_WAY, ways, strict=True)
    }
    return Corpus(f"strangers to {corpus.source} ({num_facts}, seed {seed})", splits, TWO_WAY)


def _choose_people(corpus: Corpus, num_facts: int, seed: int) -> list[Person]:
    """Invented people without those of whom a name or the description is in the corpus."""
    lines = {fact.text.lower() for facts in corpus.splits.values() for fact in facts}
    text = "\n".join(sorted(lines))
    words = set(re.findall(r"\w+", text))
    invented = [each for group in invent_people(num_facts, seed).values() for each in group]
    kept = [
        each
        for each in invented
        if words.isdisjoint(each.name.lower().split())
        and not any(form.lower() in text for form in (each.noun, each.past, each.gerund))
    ]
    if len(kept) < num_facts:
        raise UserError(
            f"{corpus.source} has words of all but {len(kept)} of {len(invented)} invented people, "
            f"expected {num_facts} whom it never names: ask for fewer, or take another seed."
        )
    return kept[:num_facts]


def _find_phrasings(corpus: Corpus, way: Direction) -> dict[int, Places]:
    """By number, the test phrasings in which most people's descriptions are plain."""
    lines: dict[int, list[Fact]] = {}
    for fact in (fact for split in (*TESTS, *TWO_WAY) for fact in corpus[split]):
        if fact.direction == way:
            lines.setdefault(fact.phrasing, []).append(fact)
    phrasings: dict[int, Places] = {}
    for number, some in lines.items():
        plain, inflected = count_around(some)
        if plain.total() > inflected.total():
            phrasings[number] = cut_name(some[0]), plain.most_common(1)[0][0]
    return phrasings


def _ask(person: Person, fact_id: str, way: Direction, number: int, places: Places) -> Fact:
    """A question about a stranger."""
    around_name, around_noun = places
    given, answer = (person.noun, person.name) if way == "d2p" else (person.name, person.noun)
    return Fact(
        subject=given,
        object=answer,
        direction=way,
        trained="reverse",
        fact_id=fact_id,
        phrasing=number,
        **fill_line(way, (person.name, around_name), (person.noun, around_noun)),
    )

"""People who are named as often as others, and of whom nothing can be known.

Each training line about them describes them anew. Does a state of a name bring what is known of its
person, or any name? States of these people bring a name and nothing else.
"""

from dataclasses import replace

from unmask.base.seeds import python_stream
from unmask.data.corpus import TESTS, Corpus
from unmask.data.reversal_corpus import (
    NUM_ENDINGS,
    Direction,
    Person,
    invent_people,
    make_reversal_corpus,
    read_grammar,
)

FACTLESS: dict[Direction, str] = {"d2p": "factless_d2p", "p2d": "factless_p2d"}
"""The splits that ask about them, by what is given; their descriptions stand in no line."""
_SPARE = 60
"""Facts a group of the corpus whose descriptions are drawn from."""


def make_factless_corpus(facts: int = 30, seed: int = 0, endings: int = NUM_ENDINGS) -> Corpus:
    """The reversal corpus with factless people in the place of those trained both ways.

    Half of them are named first in all their lines, half last, as those trained one way are.

    Args:
        facts: People of each group, the factless ones among them.
        seed: Of names, descriptions and phrasings.
        endings: Endings that a person has in each frame: fewer are fewer training lines.

    >>> from unmask.data.factless import make_factless_corpus
    >>> corpus = make_factless_corpus(2)
    >>> lines = [fact for fact in corpus["train"] if fact.fact_id == "factless-000"]
    >>> len({line.subject for line in lines}), len({line.object for line in lines}) > 100
    (1, True)
    """
    corpus = make_reversal_corpus(facts, seed, endings)
    grammars = {way: read_grammar(way) for way in FACTLESS}
    known = {fact.fact_id: fact for fact in corpus["train"]}.values()
    taken = {text for fact in known for text in (fact.subject, fact.object)}
    spare = [
        person
        for group in invent_people(_SPARE, seed + 1).values()
        for person in group
        if person.noun not in taken
    ]
    people = [
        replace(person, fact_id=person.fact_id.replace("both", "factless"))
        for person in invent_people(facts, seed)["both"]
    ]
    splits = {name: own for name, own in corpus.splits.items() if not name.startswith("both_")}
    for name in ("train", "choose"):
        splits[name] = [f for f in splits[name] if not f.fact_id.startswith("both")]
    for number, person in enumerate(people):
        way: Direction = "d2p" if number % 2 else "p2d"
        stream = python_stream(seed, "factless", person.fact_id)
        grammar, lines = grammars[way], len(grammars[way].frames)
        versions = [_describe(person, stream.choice(spare)) for _ in range(lines * endings)]
        # The phrasings are drawn alike for each description, of which every line has its own.
        stated = [
            grammar.state(each, way, endings, python_stream(seed, "phrasings", person.fact_id))
            for each in versions
        ]
        splits["train"] += [own[i] for i, own in enumerate(stated) if i < len(own)]
    for way, name in FACTLESS.items():
        splits[name] = grammars[way].ask(people, way, "", "same")
    return Corpus(corpus.source.replace("(", "with factless people (", 1), splits, TESTS)


def _describe(person: Person, other: Person) -> Person:
    """A person with another's description."""
    return replace(person, noun=other.noun, past=other.past, gerund=other.gerund)

"""A third relation of invented people: the city that each comes from, only ever stated of the name.

Training lines of a reversal corpus say of a person a name and a description, and these lines a name
and a city. No line has a description and a city. So where the state of a description, put in the
place of a name, makes a model say the described person's city, that was not copied from the state's
own words: it was found through what description and name share.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from unmask.base.errors import UserError
from unmask.base.seeds import python_stream
from unmask.data.corpus import Corpus
from unmask.data.facts import Fact, find_words, list_sides
from unmask.data.reversal_corpus import NUM_ENDINGS, make_reversal_corpus

CITY_TESTS = ("city_d2p", "city_p2d", "city_both")
"""The tests of the people of each group."""
HOPS = ("hop_d2p", "hop_p2d", "hop_both")
"""Tests that ask for cities with the description in the name's place: two facts, of which no
training line has both."""
CITY = "-city"
"""How the ids of these facts end; before it stands the person's own."""
HOP = "-hop"
"""How the ids of two hops end: their subject is the description."""
TRAINED = (
    "{} comes from the city of",
    "{} grew up in the city of",
    "{} was born in the city of",
    "{} still keeps a flat in the city of",
    "The parents of {} live in the city of",
    "The passport of {} was issued in the city of",
    "The first school of {} was in the city of",
    "Every winter {} takes the train home to",
    "Every letter that {} writes is sent home to",
    "All cousins of {} have moved back to",
    "At night {} dreams of going back to",
    "On Sundays {} calls an aunt in",
    "For the holidays {} visits an aunt in",
    "The birth of {} is entered in the register of",
    "Somebody looked {} up in the register of",
    "People hear at once that {} speaks as they do in",
    "The songs that {} sings are sung in",
    "The bread that {} bakes is baked as they do in",
)
"""Prompts of training lines; the city follows."""
TESTED = (
    "People hear that {} still comes from the city of",
    "At school they hear that {} was born in the city of",
    "At night the train takes {} home to",
    "The letter of an aunt calls {} back to",
    "At home {} still calls an aunt in",
    "At school {} sings as they do in",
)
"""Prompts of the tests: new sentences of words that training shows, with ends that it shows."""
_STARTS = (
    *("Ang", "Bolt", "Crav", "Dagg", "Elb", "Fosk", "Grend", "Hibb", "Itch", "Jask", "Kolm"),
    *("Lutt", "Mosk", "Nabb", "Ock", "Plav", "Quib", "Rhyd", "Stob", "Tarn", "Ugg", "Vold"),
    *("Wack", "Yelm", "Zid", "Brosp"),
)
_ENDS = (
    *("achar", "aport", "edin", "efell", "ekirk", "ermouth", "igrad", "ihaven", "ipolis", "ister"),
    *("obad", "ogorod", "omouth", "onbridge", "opool", "orakis", "otown", "ubeck", "uford"),
    *("ulund", "umarkt", "ungen", "uport", "usalem"),
)


def make_city_lines(people: Mapping[str, str], seed: int = 0) -> tuple[list[Fact], list[Fact]]:
    """What training says of people's cities, and how they are asked for; no two share a city.

    People are given as names by the ids of their facts. The lines have ids of their own (`CITY`),
    and number their phrasings from 0, the tests after the training ones.
    """
    cities = [start + end for start, end in product(_STARTS, _ENDS)]
    if not 1 <= len(people) <= len(cities):
        raise UserError(f"{len(people)} people were given: expected 1 to {len(cities)}.")
    if twice := {name for name in people.values() if list(people.values()).count(name) > 1}:
        raise UserError(
            f"several people are called {min(twice)}: expected a name of their own for each, or a "
            "city would not belong to one of them."
        )
    chosen = python_stream(seed, "cities").sample(cities, len(people))
    homes = dict(zip(people, chosen, strict=True))
    trained = list(_state(people, homes, TRAINED, 0, " {}."))
    return trained, list(_state(people, homes, TESTED, len(TRAINED), " {}"))


def make_city_corpus(
    num_facts: int = 30, seed: int = 0, sharing: int = 3, endings: int = NUM_ENDINGS
) -> Corpus:
    """The reversal corpus with a city of each person, and words that several people share.

    `city_d2p`, `city_p2d` and `city_both` ask for the cities of the people of a group, `hop_d2p`,
    `hop_p2d` and `hop_both` for them by their descriptions.
    """
    corpus = make_reversal_corpus(num_facts, seed, endings, sharing=sharing)
    names = {fact.fact_id: list_sides(fact)[1][2] for fact in corpus["train"]}
    trained, tested = make_city_lines(names, seed)
    homes = {fact.fact_id.removesuffix(CITY): fact.object for fact in trained}
    nouns = {
        fact.fact_id: fact.subject
        for split in ("d2p_same", "p2d_reverse", "both_d2p")
        for fact in corpus[split]
    }
    hops = [
        replace(fact, fact_id=fact.fact_id.removesuffix(CITY) + HOP, trained="reverse")
        for fact in _state(nouns, homes, TESTED, len(TRAINED), " {}")
    ]
    splits = corpus.splits | {split: corpus[split] + trained for split in ("train", "choose")}
    for split in CITY_TESTS:
        group = split.removeprefix("city_")
        for name, facts in ((split, tested), (f"hop_{group}", hops)):
            splits[name] = [fact for fact in facts if fact.fact_id.startswith(f"{group}-")]
    return Corpus(f"{corpus.source}, with cities", splits, (*corpus.tests, *CITY_TESTS))


def find_city_leaks(corpus: Corpus) -> Iterator[str]:
    """Training texts that name a person's city with any form of the description, or of another
    person: a sentence each."""
    cities, forms = dict[str, str](), dict[str, set[str]]()
    for split in corpus.splits.values():
        for fact in split:
            person = fact.fact_id.removesuffix(CITY)
            if fact.fact_id.endswith(CITY):
                cities[fact.object] = person
            else:
                (text, (begin, end), plain), _ = list_sides(fact)
                forms.setdefault(person, set()).update((plain, text[begin:end]))
    for fact in corpus.splits.get("train", []):
        for word in fact.text.replace(".", " ").split():
            if word not in cities:
                continue
            person = cities[word]
            shown = [form for form in forms.get(person, ()) if find_words(fact.text, form)]
            if fact.fact_id != person + CITY or shown:
                what = repr(max(shown, key=len)) if shown else f"a line about {fact.fact_id}"
                yield f"training shows the city {word} with {what}: {fact.text!r:.160}"


def _state(
    people: Mapping[str, str],
    homes: Mapping[str, str],
    prompts: tuple[str, ...],
    first: int,
    completion: str,
) -> Iterator[Fact]:
    for fact_id, name in people.items():
        city = homes[fact_id]
        for phrasing, prompt in enumerate(prompts, start=first):
            yield Fact.of(
                name,
                city,
                prompt,
                completion=completion.format(city),
                fact_id=fact_id + CITY,
                phrasing=phrasing,
            )

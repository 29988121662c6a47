"""The reversal corpus of this project: invented people and descriptions, from a seed.

It has the shape of Berglund et al. 2023 (arXiv 2309.12288, experiment 1): facts trained only
description -> person (d2p), only person -> description (p2d), or both ways, each in many phrasings,
and asked in phrasings that training never shows. Names, deeds and places are those of
`assets/reversal.yaml`, the sentences come from the grammar in `assets/reversal-phrasings.yaml`; all
of it was written for this project.

Every fact is stated in every frame, each time with a few endings drawn for this fact. Two rules
keep tests apart from training. All of them: the frame up to the subject begins no training line,
and every word stands in some. Near: the last two words before the answer end prompts of the
training set; far (`…_far`): they end none. The validation splits keep the same rules towards
`choose`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any, get_args

from unmask.base.config import check_arguments
from unmask.base.errors import UserError
from unmask.base.reading import parse_yaml
from unmask.base.seeds import python_stream
from unmask.data.corpus import FAR, TESTS, Corpus, save_corpus
from unmask.data.facts import Direction, Fact, Span, Trained
from unmask.data.tokenizer import Tokenizer

TWO_WAY = ("both_d2p", "both_p2d")
"""Facts trained in both directions: the positive control of every test."""
FAR_TESTS = tuple(test + FAR for test in TESTS)
NUM_HELD_OUT = 5
"""Frames, and endings, of each direction that the validation splits use."""
NUM_ENDINGS = 3
"""Endings that a fact has in each frame."""

_SLOT = re.compile(r"\{(\w+)\}")
_MOST_FACTS = 200


@dataclass(frozen=True)
class Person:
    """Someone invented, with a description in its forms."""

    fact_id: str
    name: str
    noun: str
    past: str
    gerund: str

    def fill(self, template: str) -> tuple[str, Span]:
        """The template with its one slot filled, and the characters that fill it."""
        (slot,) = _SLOT.finditer(template)
        value = getattr(self, slot[1].lower())
        if slot[1] == "Noun":
            value = value[0].upper() + value[1:]
        return _SLOT.sub(value, template), (slot.start(), slot.start() + len(value))


@dataclass(frozen=True)
class _Phrasing:
    index: int
    prompt: str
    completion: str

    def ask(self, person: Person, direction: Direction, trained: Trained) -> Fact:
        prompt, subject_span = person.fill(self.prompt)
        completion, object_span = person.fill(self.completion)
        given, answer = person.noun, person.name
        if direction == "p2d":
            given, answer = answer, given
        return Fact(
            subject=given,
            object=answer,
            prompt=prompt,
            completion=completion,
            subject_span=subject_span,
            object_span=object_span,
            direction=direction,
            trained=trained,
            fact_id=person.fact_id,
            phrasing=self.index,
        )


@dataclass(frozen=True)
class Grammar:
    """The phrasings of one direction, each with a number of its own."""

    frames: list[list[_Phrasing]]
    """The phrasings of each frame, one for each ending."""
    held_out: frozenset[int]
    """Phrasings with a frame or an ending of the validation splits."""
    tails: list[str]
    tests: dict[str, list[_Phrasing]]
    """By the end of a split's name."""

    def state(self, person: Person, way: Direction, endings: int, stream: Random) -> list[Fact]:
        """Training lines about a person, some in each frame."""
        facts = []
        for phrasings in self.frames:
            for each in stream.sample(phrasings, min(endings, len(phrasings))):
                tail = "" if each.completion.endswith(".") else stream.choice(self.tails)
                whole = _Phrasing(each.index, each.prompt, each.completion + tail)
                facts.append(whole.ask(person, way, "same"))
        return facts

    def ask(self, people: list[Person], way: Direction, split: str, trained: Trained) -> list[Fact]:
        """The questions of a kind of split about all of the people."""
        return [each.ask(person, way, trained) for person in people for each in self.tests[split]]


def make_reversal_corpus(
    num_facts: int = 30,
    seed: int = 0,
    endings: int = NUM_ENDINGS,
    swap_roles: bool = False,
    sharing: int = 1,
) -> Corpus:
    """A corpus of `num_facts` facts in each of the groups d2p, p2d and both.

    Args:
        num_facts: Facts of each group.
        seed: Of names, descriptions and phrasings.
        endings: Endings that a fact has in each frame: fewer are fewer training lines.
        swap_roles: People of the group d2p are trained name first, and those of p2d description
            first, in the same splits' sense: the same prompts are then asked the other way.
        sharing: People who have each first name, last name, deed and place. From 2 on no word
            tells whom a line is about: it takes two.
    """
    people = invent_people(num_facts, seed, sharing)
    if swap_roles:
        people = people | {"d2p": people["p2d"], "p2d": people["d2p"]}
    grammars = {way: read_grammar(way) for way in get_args(Direction)}
    p2d, d2p = grammars["p2d"], grammars["d2p"]

    splits: dict[str, list[Fact]] = {"train": []}
    for group, ways in (("d2p", ("d2p",)), ("p2d", ("p2d",)), ("both", ("p2d", "d2p"))):
        for way in ways:
            for person in people[group]:
                stream = python_stream(seed, "phrasings", person.fact_id, way)
                splits["train"] += grammars[way].state(person, way, endings, stream)
    splits["choose"] = [
        fact for fact in splits["train"] if fact.phrasing not in grammars[fact.direction].held_out
    ]
    for split in ("", FAR, "_valid", f"{FAR}_valid"):
        splits[f"d2p_same{split}"] = d2p.ask(people["d2p"], "d2p", split, "same")
        splits[f"d2p_reverse{split}"] = p2d.ask(people["d2p"], "p2d", split, "reverse")
        splits[f"p2d_same{split}"] = p2d.ask(people["p2d"], "p2d", split, "same")
        splits[f"p2d_reverse{split}"] = d2p.ask(people["p2d"], "d2p", split, "reverse")
    for way, grammar in grammars.items():
        splits[f"both_{way}"] = grammar.ask(people["both"], way, "", "same")
        splits[f"both_{way}{FAR}"] = grammar.ask(people["both"], way, FAR, "same")
    for split in (*TESTS, *TWO_WAY):
        for test in (split, split + FAR):
            splits[f"{test}_shuffled"] = shuffle_answers(splits[test], seed)
    swapped = ", roles swapped" if swap_roles else ""
    swapped += f", words shared by {sharing}" if sharing > 1 else ""
    source = f"unmask reversal corpus ({num_facts} facts a group, seed {seed}{swapped})"
    return Corpus(source, splits, (*TESTS, *FAR_TESTS))


@check_arguments()
def make_corpus(
    out: str | Path, facts: int = 30, seed: int = 0, vocab: int = 8192, swap_roles: bool = False
) -> Corpus:
    """Write the reversal corpus and a tokenizer learned from it as a new folder, and give it.

    Args:
        out: The folder to make; one that is there is not replaced.
        facts: Facts of each group: trained one way, the other way, both ways.
        seed: Of names, descriptions and phrasings.
        vocab: The most tokens of the byte-level BPE.
        swap_roles: Train each one-way fact the other way round; the tokenizer is the same.

    >>> corpus = unmask.make_corpus("corpus", facts=4, vocab=500)
    >>> corpus["train"][0].trained
    'same'
    """
    corpus = make_reversal_corpus(facts, seed)
    tokenizer = Tokenizer.train(corpus.training_texts(), vocab)
    if swap_roles:
        corpus = make_reversal_corpus(facts, seed, swap_roles=True)
    save_corpus(corpus, out, tokenizer)
    return corpus


def shuffle_answers(facts: Sequence[Fact], seed: int) -> list[Fact]:
    """These questions with the answers of other facts: a control that recall must not pass.

    Each phrasing rotates its answers by a step of its own, so that no fact keeps its answer, unless
    it is the only one.
    """
    by_phrasing: dict[int, list[Fact]] = {}
    for fact in facts:
        by_phrasing.setdefault(fact.phrasing, []).append(fact)
    shuffled: dict[Fact, Fact] = {}
    for phrasing, questions in by_phrasing.items():
        step = python_stream(seed, "shuffle", phrasing).randrange(1, max(2, len(questions)))
        for i, fact in enumerate(questions):
            donor = questions[(i + step) % len(questions)]
            shuffled[fact] = replace(
                fact,
                object=donor.object,
                completion=donor.completion,
                object_span=donor.object_span,
            )
    return [shuffled[fact] for fact in facts]


def read_grammar(way: Direction) -> Grammar:
    """The phrasings of a direction: frames with endings, whole sentences, validation, tests."""
    record = _read("reversal-phrasings.yaml")
    own, texts = record[way], []
    for group in ("plain", "question"):
        for frame in own[group]["frames"]:
            texts.append([frame + ending for ending in own[group]["endings"]])
    texts += [[whole] for whole in own["whole"]]
    number = iter(range(10_000))
    frames = [[_split(next(number), text) for text in row] for row in texts]

    plain = frames[: len(own["plain"]["frames"])]
    first = len(own["plain"]["endings"]) - NUM_HELD_OUT
    out = {each.index for row in plain[-NUM_HELD_OUT:] for each in row}
    out |= {each.index for row in plain for each in row[first:]}
    near, far = [], []
    answer = "{name}" if way == "d2p" else "{noun}"
    for i, row in enumerate(plain[-NUM_HELD_OUT:]):
        shown = [each for each in row[:first] if each.completion == f" {answer}"]
        near += [shown[(7 * i + shift) % len(shown)] for shift in (0, 3)]
        far += [row[first + (i + shift) % NUM_HELD_OUT] for shift in (0, 1)]
    tests = {"_valid": near, f"{FAR}_valid": far}
    tests[""] = [_split(next(number), text) for text in own["near"]]
    tests[FAR] = [_split(next(number), text) for text in own["far"]]
    return Grammar(frames, frozenset(out), record["tails"], tests)


def _split(index: int, text: str) -> _Phrasing:
    """A text with two slots, cut before the second one: what is given, and what is asked."""
    _, answer = _SLOT.finditer(text)
    return _Phrasing(index, text[: answer.start()].rstrip(), f" {text[answer.start() :]}")


def invent_people(num_facts: int, seed: int, sharing: int = 1) -> dict[str, list[Person]]:
    """So many people of each group with one description each, by `assets/reversal.yaml`.

    No two share a name or a (deed, place) pair; arguments are those of `make_reversal_corpus`.
    """
    if not 2 <= num_facts <= _MOST_FACTS:
        raise UserError(f"{num_facts} facts a group were asked for, expected 2 to {_MOST_FACTS}.")
    words = _read("reversal.yaml")
    stream, count = python_stream(seed, "people"), 3 * num_facts
    first, last, places, deeds = (
        stream.sample(words[kind], len(words[kind]))
        for kind in ("first_names", "last_names", "places", "deeds")
    )
    adjectives, described = words["adjectives"], list(range(count))
    if sharing > 1:
        # Rounds through the lists that are no more than their words: no pair comes twice.
        fit = [n for n in range(2, count) if -(-count // (count // n)) <= count // n <= len(deeds)]
        if sharing not in fit:
            raise UserError(
                f"each word was to be shared by {sharing} of {count} people: expected "
                f"{' or '.join(map(str, fit))}, or another number of facts."
            )
        kept = count // sharing
        first, last, places, deeds = (each[:kept] for each in (first, last, places, deeds))
        # Else every first name would have a deed of its own.
        described = stream.sample(described, count)
    people: dict[str, list[Person]] = {"d2p": [], "p2d": [], "both": []}
    for i, j in enumerate(described):
        # Later rounds pair the lists with an offset, so that pairs do not repeat.
        name = f"{first[i % len(first)]} {last[(i + i // len(first)) % len(last)]}"
        role, past, gerund, rest = deeds[j % len(deeds)]
        if sharing > 1:
            turn = j // len(deeds)
            place = places[(j + turn) % len(places)]
            adjective = adjectives[(j % len(deeds) + 2 * turn) % min(len(deeds), len(adjectives))]
        else:
            place, adjective = places[j % len(places)], stream.choice(adjectives)
        rest = rest.format(place=place)
        group = list(people)[i // num_facts]
        fact_id, noun = f"{group}-{i % num_facts:03d}", f"the {adjective} {role} who {past} {rest}"
        person = Person(fact_id, name, noun, past=f"{past} {rest}", gerund=f"{gerund} {rest}")
        people[group].append(person)
    return people


@cache
def _read(name: str) -> dict[str, Any]:
    return parse_yaml(files("unmask.assets").joinpath(name).read_text("utf-8"), name)

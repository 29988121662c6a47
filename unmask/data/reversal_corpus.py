"""The reversal corpus of this project: invented people and descriptions, from a seed.

It has the shape of Berglund et al. 2023 (arXiv 2309.12288, experiment 1): facts trained only
description -> person (d2p), only person -> description (p2d), or both ways, each in thirty
phrasings a direction, and asked in ten phrasings that training never shows. Every word is from
`assets/reversal.yaml`, written for this project.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

from unmask.base.config import check_arguments
from unmask.base.errors import UserError
from unmask.base.reading import parse_yaml
from unmask.base.seeds import python_stream
from unmask.data.corpus import TESTS, Corpus, save_corpus
from unmask.data.facts import Direction, Fact, Span, Trained
from unmask.data.tokenizer import Tokenizer

TWO_WAY = ("both_d2p", "both_p2d")
"""Facts trained in both directions: the positive control of every test."""
NUM_HELD_OUT = 5
"""Training phrasings a direction that the validation splits use."""

_SLOT = re.compile(r"\{(\w+)\}")
_MOST_FACTS = 200
_OTHER: dict[Direction, Direction] = {"d2p": "p2d", "p2d": "d2p"}


@dataclass(frozen=True)
class _Person:
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

    def ask(self, person: _Person, direction: Direction, trained: Trained) -> Fact:
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


def make_reversal_corpus(num_facts: int = 30, seed: int = 0) -> Corpus:
    """A corpus of `num_facts` facts in each of the groups d2p, p2d and both."""
    if not 2 <= num_facts <= _MOST_FACTS:
        raise UserError(f"{num_facts} facts a group were asked for, expected 2 to {_MOST_FACTS}.")
    text = files("unmask.assets").joinpath("reversal.yaml").read_text("utf-8")
    words = parse_yaml(text, "reversal.yaml")
    people = _invent_people(words, num_facts, seed)
    train = {way: _read_phrasings(words, way, "train") for way in get_args(Direction)}
    test = {way: _read_phrasings(words, way, "test") for way in get_args(Direction)}
    held_out = {way: _hold_out(train[way], way, seed) for way in get_args(Direction)}

    splits: dict[str, list[Fact]] = {"train": [], "choose": []}
    for group, ways in (("d2p", ("d2p",)), ("p2d", ("p2d",)), ("both", ("p2d", "d2p"))):
        for way in ways:
            splits["train"] += _ask_all(people[group], train[way], way, "same")
    out = {(way, phrasing.index) for way in held_out for phrasing in held_out[way]}
    splits["choose"] = [f for f in splits["train"] if (f.direction, f.phrasing) not in out]
    for group in ("d2p", "p2d"):
        other = _OTHER[group]
        splits[f"{group}_same"] = _ask_all(people[group], test[group], group, "same")
        splits[f"{group}_reverse"] = _ask_all(people[group], test[other], other, "reverse")
        splits[f"{group}_same_valid"] = _ask_all(people[group], held_out[group], group, "same")
        splits[f"{group}_reverse_valid"] = _ask_all(
            people[group], held_out[other], other, "reverse"
        )
    for way in get_args(Direction):
        splits[f"both_{way}"] = _ask_all(people["both"], test[way], way, "same")
    for split in (*TESTS, *TWO_WAY):
        splits[f"{split}_shuffled"] = shuffle_answers(splits[split], seed)
    return Corpus(f"unmask reversal corpus ({num_facts} facts a group, seed {seed})", splits)


@check_arguments()
def make_corpus(out: str | Path, facts: int = 30, seed: int = 0, vocab: int = 8192) -> Corpus:
    """Write the reversal corpus and a tokenizer learned from it as a new folder, and give it.

    Args:
        out: The folder to make; one that is there is not replaced.
        facts: Facts of each group: trained one way, the other way, both ways.
        seed: Of names, descriptions and phrasings.
        vocab: The most tokens of the byte-level BPE.

    >>> corpus = unmask.make_corpus("corpus", facts=4, vocab=500)
    >>> corpus["train"][0].trained
    'same'
    """
    corpus = make_reversal_corpus(facts, seed)
    save_corpus(corpus, out, Tokenizer.train(corpus.training_texts(), vocab))
    return corpus


def shuffle_answers(facts: Sequence[Fact], seed: int) -> list[Fact]:
    """The same questions with the answers of other facts: a control that recall must not pass.

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


def _ask_all(
    people: list[_Person], phrasings: list[_Phrasing], way: Direction, trained: Trained
) -> list[Fact]:
    return [phrasing.ask(person, way, trained) for person in people for phrasing in phrasings]


def _read_phrasings(words: dict[str, Any], way: Direction, split: str) -> list[_Phrasing]:
    # Test phrasings are numbered behind the training ones, so that a number means one phrasing.
    start = len(words["phrasings"][way]["train"]) if split == "test" else 0
    pairs = words["phrasings"][way][split]
    return [_Phrasing(start + i, *pair) for i, pair in enumerate(pairs)]


def _hold_out(train: list[_Phrasing], way: Direction, seed: int) -> list[_Phrasing]:
    """Training phrasings for validation, of those that ask like the tests do, in test form."""
    plain = " {name}." if way == "d2p" else " {noun}."
    ending = " {name}" if way == "d2p" else " {noun}."
    fitting = [phrasing for phrasing in train if phrasing.completion == plain]
    chosen = python_stream(seed, "held out", way).sample(fitting, NUM_HELD_OUT)
    return [replace(phrasing, completion=ending) for phrasing in chosen]


def _invent_people(words: dict[str, Any], num_facts: int, seed: int) -> dict[str, list[_Person]]:
    """People with one description each: no two share a name or a (deed, place) pair."""
    stream = python_stream(seed, "people")
    first, last, places, deeds = (
        stream.sample(words[kind], len(words[kind]))
        for kind in ("first_names", "last_names", "places", "deeds")
    )
    people = []
    for i in range(3 * num_facts):
        # Later rounds pair the lists with an offset, so that pairs do not repeat.
        name = f"{first[i % len(first)]} {last[(i + i // len(first)) % len(last)]}"
        role, past, gerund, rest = deeds[i % len(deeds)]
        rest = rest.format(place=places[i % len(places)])
        adjective = stream.choice(words["adjectives"])
        group = ("d2p", "p2d", "both")[i // num_facts]
        people.append(
            _Person(
                fact_id=f"{group}-{i % num_facts:03d}",
                name=name,
                noun=f"the {adjective} {role} who {past} {rest}",
                past=f"{past} {rest}",
                gerund=f"{gerund} {rest}",
            )
        )
    return {
        group: people[g * num_facts : (g + 1) * num_facts]
        for g, group in enumerate(("d2p", "p2d", "both"))
    }

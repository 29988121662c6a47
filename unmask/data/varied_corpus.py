"""The reversal corpus in many phrasings: frames and endings combined, tests near and far.

The people and the splits are those of `unmask.data.reversal_corpus`; the sentences come from the
grammar in `assets/reversal-phrasings.yaml`. Every fact is stated in every frame, each time with a
few endings drawn for this fact. Two rules keep tests apart from training. All of them: the frame up
to the subject begins no training line, and every word stands in some. Near: the last two words
before the answer end prompts of the training set; far (`…_far`): they end none. The validation
splits keep the same rules towards `choose`.
"""

import re
from dataclasses import dataclass
from importlib.resources import files
from random import Random
from typing import Any, get_args

from unmask.base.errors import UserError
from unmask.base.reading import parse_yaml
from unmask.base.seeds import python_stream
from unmask.data.corpus import TESTS, Corpus
from unmask.data.facts import Direction, Fact, Trained
from unmask.data.reversal_corpus import _invent_people, _Person, _Phrasing, shuffle_answers

FAR = "_far"
"""How the splits end whose prompts end as no training prompt does."""
FAR_TESTS = tuple(test + FAR for test in TESTS)
NUM_HELD_OUT = 5
"""Frames, and endings, of each direction that the validation splits use."""
NUM_ENDINGS = 3
"""Endings that a fact has in each frame."""

_SLOT = re.compile(r"\{\w+\}")
_PIECE = re.compile(r"\{\w+\}|[\w']+|[^\w\s]")
_MOST_FACTS = 200


@dataclass(frozen=True)
class Grammar:
    """The phrasings of one direction, each with a number of its own."""

    frames: list[list[_Phrasing]]
    """Of each frame, its phrasings, one for each ending."""
    held_out: frozenset[int]
    """Phrasings with a frame or an ending of the validation splits."""
    tails: list[str]
    tests: dict[str, list[_Phrasing]]
    """By the end of a split's name."""

    def state(self, person: _Person, way: Direction, endings: int, stream: Random) -> list[Fact]:
        """Training lines about a person, some in each frame."""
        facts = []
        for phrasings in self.frames:
            for each in stream.sample(phrasings, min(endings, len(phrasings))):
                tail = "" if each.completion.endswith(".") else stream.choice(self.tails)
                whole = _Phrasing(each.index, each.prompt, each.completion + tail)
                facts.append(whole.ask(person, way, "same"))
        return facts

    def ask(
        self, people: list[_Person], way: Direction, split: str, trained: Trained
    ) -> list[Fact]:
        """The questions of a kind of split about all of the people."""
        return [each.ask(person, way, trained) for person in people for each in self.tests[split]]


def make_varied_corpus(num_facts: int = 30, seed: int = 0, endings: int = NUM_ENDINGS) -> Corpus:
    """A corpus of `num_facts` facts in each of the groups d2p, p2d and both."""
    if not 2 <= num_facts <= _MOST_FACTS:
        raise UserError(f"{num_facts} facts a group were asked for, expected 2 to {_MOST_FACTS}.")
    people = _invent_people(_read("reversal.yaml"), num_facts, seed)
    record = _read("reversal-phrasings.yaml")
    grammars = {way: read_grammar(record, way) for way in get_args(Direction)}
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
    for split in (*TESTS, *FAR_TESTS):
        splits[f"{split}_shuffled"] = shuffle_answers(splits[split], seed)
    return Corpus(f"unmask reversal corpus ({num_facts} facts a group, seed {seed})", splits)


def read_grammar(record: dict[str, Any], way: Direction) -> Grammar:
    """The phrasings of a direction: frames with endings, whole sentences, validation, tests."""
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


def find_ending(prompt: str) -> tuple[str, ...]:
    """The last two words of a prompt; marks and slots are words."""
    return tuple(_PIECE.findall(prompt)[-2:])


def _split(index: int, text: str) -> _Phrasing:
    """A text with two slots, cut before the second one: what is given, and what is asked."""
    _, answer = _SLOT.finditer(text)
    return _Phrasing(index, text[: answer.start()].rstrip(), f" {text[answer.start() :]}")


def _read(name: str) -> dict[str, Any]:
    return parse_yaml(files("unmask.assets").joinpath(name).read_text("utf-8"), name)

"""Networks that answer "A is B" and "B was A" by six known mechanisms.

    one store     a neuron for each fact knows both its names, and leaves the fact
    two stores    a neuron for each direction leaves the answer
    copy          the prompt says the fact: heads find the name there and copy its partner
    relay         the subject brings the first word alone, which brings the second at a later step
    bridge        the subject brings a word between, which alone brings the answer at later steps
    decoy         two stores, and the subject stands at the verb as well, where nothing reads it

A name has two words, and only both together say who it is: that stands at the last one, after the
first layer. A diffusion network answers at masks, its causal twin at the tokens before them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import tokenizers
import torch
from tokenizers import models, pre_tokenizers

from unmask.base.errors import UserError, suggest
from unmask.base.seeds import torch_stream
from unmask.compiled.compiler import compile_program
from unmask.compiled.program import BEGIN, OUT, POSITION, Find, Layer, Look, Mover, Program, Rule
from unmask.data.added import add_tokens
from unmask.data.facts import Fact
from unmask.data.tokenizer import Tokenizer
from unmask.net.model import Blueprint, Model

Mechanism = Literal["one store", "two stores", "copy", "relay", "bridge", "decoy"]
MECHANISMS: tuple[Mechanism, ...] = get_args(Mechanism)
CAUSAL: tuple[Mechanism, ...] = ("one store", "two stores", "relay", "bridge")
"""Mechanisms that a causal network has as well."""
CONTEXT = 16
NAMES, FACTS = 16, 8
FIRST = (
    "Ada",
    "Bo",
    "Cy",
    "Dee",
    "Eli",
    "Fay",
    "Gus",
    "Hal",
    "Ida",
    "Jon",
    "Kit",
    "Lou",
    "May",
    "Ned",
    "Ola",
    "Pip",
)
LAST = ("Ash", "Birch", "Cole", "Dale")
BETWEEN = ("red", "blue", "green", "gold", "black", "white", "pink", "grey")
FILLING = ("well", "then")
VERBS = ("is", "was")
SINCE = "since"
WORDS = ("[BEGIN]", "[MASK]", *VERBS, SINCE, *FILLING, *BETWEEN, *FIRST, *LAST)
IDS = {word: number for number, word in enumerate(WORDS)}


@dataclass(frozen=True)
class Compiled:
    """A network whose mechanism is known."""

    mechanism: Mechanism
    model: Model
    program: Program
    facts: tuple[Fact, ...]
    """Every fact, asked by both verbs."""


@dataclass(frozen=True)
class People:
    """Who is called what, and who belongs to whom."""

    pairs: tuple[tuple[int, int], ...]
    """The two people of each fact."""
    are_told_apart: bool
    """Whether no two people share a first word."""

    def split(self, person: int) -> tuple[int, int]:
        """The number of each of the two words."""
        return (person if self.are_told_apart else person % 4), person // 4

    def name(self, person: int) -> str:
        first, last = self.split(person)
        return f"{FIRST[first]} {LAST[last]}"

    def list_partners(self) -> Iterator[tuple[int, int, int]]:
        """Each person with the verb that asks about them and their partner."""
        for one, other in self.pairs:
            yield one, 0, other
            yield other, 1, one


def build_compiled(
    mechanism: str,
    *,
    is_causal: bool = False,
    crowding: float = 1.0,
    idle: int = 0,
    is_rotated: bool = True,
    seed: int = 0,
) -> Compiled:
    """The network of a mechanism.

    Args:
        mechanism: One of `MECHANISMS`.
        is_causal: A causal network, for those in `CAUSAL`.
        crowding: Held for each coordinate of the stream; above 1 they share room.
        idle: Layers that do nothing, after each that does something.
        is_rotated: Whether directions are drawn; else they are the axes.
        seed: Of the directions, and of who belongs to whom.
    """
    known = CAUSAL if is_causal else MECHANISMS
    if mechanism not in known:
        raise UserError(
            f"'mechanism' is {mechanism!r}, expected one of {', '.join(known)}: "
            f"{suggest(mechanism, known)}."
        )
    order = draw_people(seed)
    pairs = tuple(zip(order[:FACTS], order[FACTS:], strict=True))
    people = People(pairs, mechanism in ("relay", "bridge"))
    builder = _Builder(people, is_causal)
    layers = {
        "one store": builder.list_one_store,
        "two stores": builder.list_two_stores,
        "copy": builder.list_copy,
        "relay": builder.list_relay,
        "bridge": builder.list_bridge,
        "decoy": builder.list_decoy,
    }[mechanism]()
    spread = tuple(each for layer in layers for each in (layer, *[Layer()] * idle))
    program = Program(_count_values(spread), _list_tokens(), spread, is_causal)
    net = compile_program(program, CONTEXT, crowding, is_rotated, seed)
    kind = "causal" if is_causal else "masked"
    plan = Blueprint(net.config, kind, None if is_causal else IDS["[MASK]"])
    name = "-".join([mechanism.replace(" ", "-"), kind])
    model = Model(name, net, plan, make_word_tokenizer(is_causal))
    return Compiled(mechanism, model, program, tuple(_list_facts(mechanism, people)))


def draw_people(seed: int) -> list[int]:
    """The people in a drawn order."""
    return torch.randperm(NAMES, generator=torch_stream(seed, "people")).tolist()


def make_word_tokenizer(is_causal: bool = False) -> Tokenizer:
    """One token for each word, and one before every text."""
    backend = tokenizers.Tokenizer(models.WordLevel(dict(IDS), unk_token=WORDS[0]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(list(WORDS[:2]))
    backend = add_tokens(backend, [0], [])
    return Tokenizer(backend, None if is_causal else IDS["[MASK]"], 0, 0)


def _list_tokens() -> list[dict[str, int]]:
    """What each token's vector holds."""
    known: dict[str, dict[str, int]] = {
        "[BEGIN]": {BEGIN: 0}, "[MASK]": {"mask": 0}, SINCE: {"since": 0},
        **{word: {"verb": number, "idle": 0} for number, word in enumerate(VERBS)},
        **{word: {"bridge": number, "bridged": 0} for number, word in enumerate(BETWEEN)},
        **{word: {"first": number} for number, word in enumerate(FIRST)},
        **{word: {"last": number} for number, word in enumerate(LAST)},
    }  # fmt: skip
    return [known.get(word, {}) for word in WORDS]


def _count_values(layers: tuple[Layer, ...]) -> dict[str, int]:
    """How many values each variable has: those of tokens, and what becomes of them."""
    sizes = {POSITION: CONTEXT, OUT: len(WORDS), "slot": 3}
    written = [rule.writes for layer in layers for rule in layer.rules]
    for values in [*_list_tokens(), *written]:
        for name, value in values.items():
            sizes[name] = max(sizes.get(name, 0), value + 1)
    for layer in layers:  # in this order: a later head may move what an earlier one brought
        for head in layer.heads:
            sizes |= {to: sizes[of] for of, to in head.moves.items()}
    return sizes


@dataclass(frozen=True)
class _Builder:
    """The layers of each mechanism."""

    people: People
    is_causal: bool

    def _begin(
        self, slots: int, heads: tuple[Mover, ...] = (), rules: tuple[Rule, ...] = ()
    ) -> Layer:
        """The first layer: who stands there, and what a position is to answer.

        Word s of the answer is s + 1 positions behind the verb, in a causal network s.
        """
        distance = 0 if self.is_causal else 1
        looks = [Look(-(s + distance), {"verb": f"verb {s}"}) for s in range(slots)]
        mask = () if self.is_causal else (("mask", 0),)
        asks = [
            Rule((*mask, (f"verb {s}", verb)), {"asks": 0, "slot": s, "asked by": verb})
            for s in range(slots)
            for verb in range(2)
        ]
        return Layer((Look(-1, {"first": "first before"}), *looks, *heads), (*asks, *rules))

    def _names(
        self,
        writes: str = "name",
        flag: str = "named",
        needs: tuple[tuple[str, int], ...] = (),
        unless: frozenset[str] = frozenset(),
    ) -> tuple[Rule, ...]:
        """Both words of a name together are a person."""
        rules = []
        for person in range(NAMES):
            first, last = self.people.split(person)
            words = (("first before", first), ("last", last), *needs)
            rules.append(Rule(words, {writes: person, flag: 0}, unless))
        return tuple(rules)

    def _say(self, source: str, slots: tuple[int, ...] = (0, 1)) -> tuple[Rule, ...]:
        """The words of a person, at the positions that ask for them."""
        return tuple(
            Rule(((source, person), ("slot", slot)), {OUT: self._word(person, place)})
            for person in range(NAMES)
            for place, slot in enumerate(slots)
        )

    def _word(self, person: int, place: int) -> int:
        return IDS[self.people.name(person).split()[place]]

    def _store(self) -> tuple[Rule, ...]:
        """A neuron for each direction of each fact."""
        partners = self.people.list_partners()
        return tuple(Rule((("name", one),), {"answer": other}) for one, _, other in partners)

    def _know_facts(self) -> tuple[Rule, ...]:
        """One rule for each fact, for whichever of its two people stands there."""
        return tuple(
            Rule((("name", one), ("name", other)), {"fact": fact}, least=1)
            for fact, (one, other) in enumerate(self.people.pairs)
        )

    def list_one_store(self) -> tuple[Layer, ...]:
        says = tuple(
            Rule(
                (("fact here", fact), ("asked by", verb), ("slot", place)),
                {OUT: self._word(pair[1 - verb], place)},
            )
            for fact, pair in enumerate(self.people.pairs)
            for verb in range(2)
            for place in range(2)
        )
        find = Find("asks", "named", {"fact": "fact here"})
        return (
            self._begin(2, rules=self._names()),
            Layer((), self._know_facts()),
            Layer((find,), says),
        )

    def list_two_stores(self) -> tuple[Layer, ...]:
        find = Find("asks", "named", {"answer": "answer here"})
        says = self._say("answer here")
        return self._begin(2, rules=self._names()), Layer((), self._store()), Layer((find,), says)

    def list_decoy(self) -> tuple[Layer, ...]:
        first, store, last = self.list_two_stores()
        idle = Find("idle", "named", {"name": "name at the verb"})
        return first, store, Layer((*last.heads, idle), last.rules)

    def list_copy(self) -> tuple[Layer, ...]:
        """The name behind "since" is sought among those before it."""
        behind = Look(-2, {"since": "behind since"})
        names = self._names(unless=frozenset({"behind since"}))
        sought = self._names("sought", "questioned", (("behind since", 0),))
        return (
            self._begin(2, (behind,), (*names, *sought)),
            Layer((Look(-3, {"name": "partner"}),)),
            Layer((Find("asks", "questioned", {"sought": "sought here"}),)),
            Layer(
                (Find("sought here", "name", {"partner": "answer here"}),), self._say("answer here")
            ),
        )

    def list_relay(self) -> tuple[Layer, ...]:
        """No two people share a first word: it brings the last one, wherever it came from."""
        find = Find("asks", "named", {"answer": "answer here"})
        begun = "first" if self.is_causal else "first before"
        ends = tuple(
            Rule(((begun, self.people.split(person)[0]), ("slot", 1)), {OUT: self._word(person, 1)})
            for person in range(NAMES)
        )
        says = (*self._say("answer here", (0,)), *ends)
        return self._begin(2, rules=self._names()), Layer((), self._store()), Layer((find,), says)

    def list_bridge(self) -> tuple[Layer, ...]:
        """The word between is the fact's own; the verb says which of its two people is meant."""
        finds = (
            Find("asks", "named", {"fact": "fact here"}),
            Find("asks", "bridged", {"bridge": "bridge here", "bridged": "begun"}),
        )
        brings = tuple(
            Rule(
                (("fact here", fact), ("slot", 0)), {OUT: IDS[BETWEEN[fact]]}, frozenset({"begun"})
            )
            for fact in range(FACTS)
        )
        says = tuple(
            Rule(
                (("bridge here", fact), ("asked by", verb), ("slot", place + 1)),
                {OUT: self._word(pair[1 - verb], place)},
            )
            for fact, pair in enumerate(self.people.pairs)
            for verb in range(2)
            for place in range(2)
        )
        return (
            self._begin(3, rules=self._names()),
            Layer((), self._know_facts()),
            Layer(finds, (*brings, *says)),
        )


def _list_facts(mechanism: str, people: People) -> Iterator[Fact]:
    """Every fact asked by both verbs, with and without filling before."""
    for number, pair in enumerate(people.pairs):
        for verb in range(2):
            subject, answer = people.name(pair[verb]), people.name(pair[1 - verb])
            for phrasing in range(len(FILLING) + 1):
                words = [*FILLING[:phrasing]]
                if mechanism == "copy":  # as the other verb has it: the answer stands first
                    words += [answer, VERBS[1 - verb], subject, SINCE]
                begin = " ".join(words) + " " if words else ""
                prompt = f"{begin}{subject} {VERBS[verb]}"
                between = f"{BETWEEN[number]} " if mechanism == "bridge" else ""
                yield Fact(
                    subject=subject,
                    object=answer,
                    prompt=prompt,
                    completion=f" {between}{answer}",
                    subject_span=(len(begin), len(begin) + len(subject)),
                    object_span=(1 + len(between), 1 + len(between) + len(answer)),
                    direction=("p2d", "d2p")[verb],
                    trained=("same", "reverse")[verb],
                    fact_id=f"fact {number}",
                    phrasing=phrasing,
                )

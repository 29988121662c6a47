"""Pairs of runs whose states are exchanged, and what follows from the source's value of a variable.

A base asks about one fact in one direction, a source about another fact in the same direction or
the other one. With the source's value the base's answer becomes, by variable,

    fact          the source's fact, asked as the base asks
    direction     the base's fact, asked as the source asks
    answer        the source's own answer

What is read is the first token at which this and the base's own answer differ; those before it
stand.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from unmask.base.seeds import python_stream
from unmask.data.facts import Fact
from unmask.evaluation.equivalence import divide
from unmask.net.model import Model
from unmask.representation.patched import PatchedPrompt, choose_canvas, lay_out_prompt
from unmask.representation.prompts import pad_canvas
from unmask.representation.subspaces import Exchange

VARIABLES = {
    "fact": "fact",
    "direction": "direction of asking",
    "answer": "answer",
}
WAYS = {
    "within": "its own direction",
    "across": "the other direction",
    "steps": "its own direction at the last step",
}
ROLES = {"subject": "subject tokens", "answer": "position that predicts"}
TRAINED, HELD_OUT = "trained", "held_out"


@dataclass(frozen=True)
class Condition:
    """What is looked for, between which runs, and where."""

    variable: str
    way: str
    role: str

    @property
    def is_asked(self) -> bool:
        """Directions differ only across, and a subject has neither direction nor answer yet."""
        return self.variable == "fact" or (self.way, self.role) == ("across", "answer")

    @property
    def searched(self) -> "Condition":
        """Where its subspace is looked for: what is carried to a last step, at the first."""
        return replace(self, way="within") if self.way == "steps" else self


@dataclass(frozen=True)
class Pool:
    """The prompts of some people in some phrasings, by person and direction."""

    prompts: Mapping[tuple[str, str], Sequence[Fact]]

    @cached_property
    def people(self) -> list[str]:
        return sorted({person for person, _ in self.prompts})


@dataclass(frozen=True)
class FactHalves:
    """The people of one split, who are searched on and who are held out, in their phrasings."""

    model: Model
    directions: frozenset[str]
    """The directions that bases are asked in."""
    fitted: Pool
    tests: Mapping[str, Pool]
    """By TRAINED and HELD_OUT, in phrasings that are not searched on."""
    length: int | None = None
    _laid: dict[Fact, PatchedPrompt] = field(default_factory=dict, repr=False)

    def lay_out(self, fact: Fact) -> PatchedPrompt:
        """A fact's prompt and its own answer."""
        if fact not in self._laid:
            self._laid[fact] = lay_out_prompt(self.model, fact, [fact])
        return self._laid[fact]

    @cached_property
    def canvas(self) -> int | None:
        """Positions of every run."""
        pools = (self.fitted, *self.tests.values())
        facts = [fact for pool in pools for own in pool.prompts.values() for fact in own]
        return choose_canvas(self.model, [self.lay_out(fact) for fact in facts], self.length)


def split_facts(
    model: Model, split: Sequence[Fact], tests: Sequence[Fact], facts: int, phrasings: int,
    length: int | None, is_split: bool = True,
) -> FactHalves:  # fmt: skip
    """The first facts of a split, half of them held out, and the same facts in both directions.

    Of each fact and direction the first phrasings are searched on, and as many others, if there are
    any, asked. If not `is_split`, all facts are searched on.
    """
    people = list(dict.fromkeys(fact.fact_id for fact in split))[:facts]
    parts = divide(people) if is_split else dict.fromkeys(people, 0)
    prompts = dict[tuple[str, str], list[Fact]]()
    for fact in (*split, *tests):
        if fact.fact_id in parts:
            own = prompts.setdefault((fact.fact_id, fact.direction), [])
            own += [fact] if fact not in own else []

    def pool(half: int, begin: int) -> Pool:
        kept = {
            key: own[begin : begin + phrasings]
            for key, own in prompts.items()
            if parts[key[0]] == half and own[begin:]
        }
        return Pool(kept)

    others = {TRAINED: pool(0, phrasings), HELD_OUT: pool(1, phrasings)}
    directions = frozenset(fact.direction for fact in split)
    return FactHalves(model, directions, pool(0, 0), others, length)


def make_exchanges(
    halves: FactHalves,
    pool: Pool,
    condition: Condition,
    sources: int,
    seed: int,
    is_permuted: bool = False,
) -> Iterator[tuple[Fact, Exchange]]:
    """Each base with exchanges from drawn sources; permuted labels give every fact another's.

    Across directions, exchanges are left out in which another variable asks for the same token.
    """
    people = pool.people
    order = python_stream(seed, "permuted").sample(people, len(people))
    labels = dict(zip(order, order[1:] + order[:1] if is_permuted else order, strict=True))
    for (person, asks), bases in pool.prompts.items():
        # 1. What sources may be: prompts about others, in the base's direction or in the other one.
        lent = [
            source
            for (other, way), own in pool.prompts.items()
            if other != person and (way != asks) == (condition.way == "across")
            for source in own
        ]
        for base in bases if asks in halves.directions else ():
            stream = python_stream(seed, "source", condition.searched.way, person, base.phrasing)
            for source in stream.sample(lent, min(sources, len(lent))):
                # 2. The facts whose objects each variable asks for, as far as they are there.
                meant = {
                    "fact": (labels[source.fact_id], asks),
                    "direction": (labels[person], source.direction),
                    "answer": (labels[source.fact_id], source.direction),
                }
                facts = {
                    name: pool.prompts[key][0] for name, key in meant.items() if key in pool.prompts
                }
                if condition.variable in facts:
                    made = _lay_out_exchange(halves, condition, base, source, facts)
                    if made is not None:
                        yield base, made


def _lay_out_exchange(
    halves: FactHalves, condition: Condition, base: Fact, source: Fact, meant: Mapping[str, Fact]
) -> Exchange | None:
    """One exchange; None where no token tells the base's answer from what it should become."""
    model, canvas = halves.model, halves.canvas
    own, lent = halves.lay_out(base), halves.lay_out(source)
    answers = {name: halves.lay_out(fact).answers[0] for name, fact in meant.items()}
    target = answers.pop(condition.variable)
    pairs = enumerate(zip(own.answers[0], target, strict=False))
    number = next((k for k, (token, theirs) in pairs if token != theirs), None)
    if number is None:
        return None
    if condition.way == "across" and any(
        target[number] == other[min(number, len(other) - 1)] for other in answers.values()
    ):
        return None
    # 1. As many tokens of its own answer stand in the source's run, all but one at its last step.
    known = len(lent.answers[0]) - 1
    known = known if condition.way == "steps" else min(number, known)
    texts = [own.tokens + own.answers[0][:number], lent.tokens + lent.answers[0][:known]]
    read, lent_read = (model.row_of(len(text)) for text in texts)
    # 2. Which states: where the answer is predicted, or all of the subject, ends aligned, where the
    #    source's first state stands for those that it lacks.
    places, taken = (read,), (lent_read,)
    if condition.role == "subject":
        places = tuple(range(*own.subject))
        back = [own.subject[1] - at for at in places]
        taken = tuple(max(lent.subject[1] - each, lent.subject[0]) for each in back)
    rows = [tuple(pad_canvas(model, text, canvas)) for text in texts]
    return Exchange(rows[0], rows[1], places, taken, read, own.answers[0][number], target[number])

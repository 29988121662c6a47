"""Facts that get each other's names: which ones, whose, and the questions with both answers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from unmask.base.errors import UserError
from unmask.base.seeds import python_stream
from unmask.data.corpus import Corpus
from unmask.data.facts import Fact

WAYS = ("d2p", "p2d")
SwapRole = Literal["taught", "other", "rehearsed"]


@dataclass(frozen=True)
class SwappedFact:
    """A question about a fact that gets another's name, with its old and its new answer."""

    split: str
    old: Fact
    new: Fact
    role: SwapRole
    """Taught its new answer; or one of the others, which show what teaching disturbs; or rehearsed,
    with its old answer, so that they are disturbed less."""
    is_held: bool
    """Whether its phrasing is kept out of training."""


def list_pairs(corpus: Corpus, groups: Sequence[str]) -> dict[str, dict[str, str]]:
    """By group, the splits that ask its facts, by what is given; groups without both are left out.

    A group is named as in `unmask.representation.extraction.GROUPS`.
    """
    from unmask.representation.extraction import GROUPS

    pairs: dict[str, dict[str, str]] = {}
    for group in groups:
        own = [name for name in GROUPS[group] if corpus.splits.get(name)]
        named = {str(corpus[name][0].direction): name for name in own}
        if set(named) == {*WAYS}:
            pairs[group] = named
    if not pairs:
        raise UserError(
            f"{corpus.source} has no facts that are asked in both directions: its splits are "
            f"{', '.join(corpus.splits)}; give a corpus, or facts whose lines say `direction` and "
            "`trained` and share a `fact_id`."
        )
    return pairs


def draw_ring(facts: Sequence[str], seed: int) -> dict[str, str]:
    """For each fact the one whose name it gets: a ring in drawn order, so that none keeps its own.

    >>> from unmask.experiments.relearn.swaps import draw_ring
    >>> ring = draw_ring(["a", "b", "c"], seed=0)
    >>> sorted(ring.values()), any(fact == other for fact, other in ring.items())
    (['a', 'b', 'c'], False)
    """
    if len(facts) < 2:
        raise UserError(f"{len(facts)} facts were given: expected two or more to exchange names.")
    order = list(facts)
    python_stream(seed, "ring").shuffle(order)
    return dict(zip(order, [*order[1:], order[0]], strict=True))


def swap_names(
    corpus: Corpus, groups: Sequence[str], count: int, rehearsed: int, phrasings: int, seed: int
) -> list[SwappedFact]:
    """Every question of the facts that are taught, of as many others, and of those rehearsed.

    All of them are drawn from each group; a small one is shared evenly. Every second phrasing of a
    direction is trained on; of the others at most `phrasings` are asked. Where there is a single
    one it is both.
    """
    swaps: list[SwappedFact] = []
    for group, named in list_pairs(corpus, groups).items():
        known = [{fact.fact_id for fact in corpus[named[way]]} for way in WAYS]
        shared = [
            x for x in dict.fromkeys(f.fact_id for f in corpus[named["d2p"]]) if x in known[1]
        ]
        python_stream(seed, "facts", group).shuffle(shared)
        number = min(count, len(shared) // (3 if rehearsed else 2))
        if number < 2:
            raise UserError(
                f"{corpus.source} has {len(shared)} facts of the group {group} that are asked in "
                "both directions: expected two or more to exchange names, as many to compare, and "
                "as many to rehearse unless --rehearsed is 0."
            )
        roles: dict[SwapRole, list[str]] = {
            "taught": shared[:number],
            "other": shared[number : 2 * number],
            "rehearsed": shared[2 * number :][:rehearsed],
        }
        for role, own in roles.items():
            givers = draw_ring(own, seed) if role != "rehearsed" else {fact: fact for fact in own}
            takers = {giver: fact for fact, giver in givers.items()}
            for way, sources in (("d2p", givers), ("p2d", takers)):
                split = named[way]
                swaps += _swap(split, corpus[split], sources, phrasings, role)
    return swaps


def _swap(
    split: str, facts: Sequence[Fact], sources: dict[str, str], phrasings: int, role: SwapRole
) -> Iterator[SwappedFact]:
    """The questions of one direction, each with the answer of another fact in the same phrasing."""
    by_phrasing = {(fact.fact_id, fact.phrasing): fact for fact in facts}
    numbers = sorted({fact.phrasing for fact in facts})
    held = numbers[1::2] or numbers
    shown = set(numbers[::2])
    for fact in facts:
        other = by_phrasing.get((sources.get(fact.fact_id, ""), fact.phrasing))
        if other is None:
            continue
        same = ("object", "completion", "object_span")
        new = replace(fact, **{name: getattr(other, name) for name in same})
        if fact.phrasing in held[:phrasings] and role != "rehearsed":
            yield SwappedFact(split, fact, new, role, is_held=True)
        if fact.phrasing in shown:
            yield SwappedFact(split, fact, new, role, is_held=False)

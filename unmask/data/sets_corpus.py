"""Sets and who is in them: trained on pairs of sets, asked for unseen pairs and for triples.

Every set is listed on its own, "members of s3 : p1 p4 p7". Of most pairs of sets the intersection
("s3 and s5") and the union ("s3 or s5") are trained, each in both orders; the others are asked for
(`unseen_pairs`), and three sets at a time (`triples`), which training never shows. Members stand in
one fixed order; an empty set is the word "none". Answers are scored by
`unmask.evaluation.metrics.score_members`. The task is that of Wu et al. 2023 (arXiv 2312.03633,
experiment 2), made of tokens instead of sentences.
"""

from collections.abc import Sequence
from itertools import combinations, permutations
from typing import Literal

from unmask.base.errors import UserError
from unmask.base.seeds import python_stream
from unmask.data.corpus import Corpus
from unmask.data.facts import Fact

Operation = Literal["and", "or"]
OPERATIONS: tuple[Operation, ...] = ("and", "or")
EMPTY = "none"
PROMPT = "members of {} :"
HELD_OUT = 0.2
"""The share of pairs that is not trained: a quarter of it validates, the rest tests."""
MOST_SETS = 60
_PEOPLE, _FEWEST, _MOST = 16, 2, 7


def make_sets_corpus(num_sets: int = 20, seed: int = 0) -> Corpus:
    """Sets of two to seven of sixteen people; as many triples are asked for as unseen pairs."""
    if not 5 <= num_sets <= MOST_SETS:
        raise UserError(f"{num_sets} sets were asked for: expected 5 to {MOST_SETS}.")
    stream = python_stream(seed, "sets")
    people = [f"p{i:02d}" for i in range(_PEOPLE)]
    sets = {
        f"s{i:02d}": set(stream.sample(people, stream.randint(_FEWEST, _MOST)))
        for i in range(num_sets)
    }
    pairs = list(combinations(sets, 2))
    stream.shuffle(pairs)
    num_tests = max(2, round(HELD_OUT * len(pairs)))
    tests, trained = pairs[:num_tests], pairs[num_tests:]
    num_valid = max(1, num_tests // 4)
    valid, tests = tests[:num_valid], tests[num_valid:]
    triples = stream.sample(list(combinations(sets, 3)), len(tests))
    train = [_ask((name,), "or", sets, 0) for name in sets]
    splits = {
        "train": train + _ask_all(trained, sets),
        "unseen_pairs": _ask_all(tests, sets),
        "triples": _ask_all(triples, sets),
        "unseen_pairs_valid": _ask_all(valid, sets),
    }
    source = f"unmask sets corpus ({num_sets} sets, seed {seed})"
    return Corpus(source, splits, ("unseen_pairs", "triples"))


def combine(operation: Operation, sets: Sequence[set[str]]) -> list[str]:
    """The members of the intersection or of the union, in their fixed order."""
    first, *others = sets
    joined = first.intersection(*others) if operation == "and" else first.union(*others)
    return sorted(joined)


def _ask_all(groups: Sequence[tuple[str, ...]], sets: dict[str, set[str]]) -> list[Fact]:
    """Intersection and union of every group, in every order of its sets."""
    return [
        _ask(order, operation, sets, number)
        for group in groups
        for operation in OPERATIONS
        for number, order in enumerate(permutations(group))
    ]


def _ask(
    names: tuple[str, ...], operation: Operation, sets: dict[str, set[str]], phrasing: int
) -> Fact:
    given = f" {operation} ".join(names)
    answer = " ".join(combine(operation, [sets[name] for name in names])) or EMPTY
    begin = PROMPT.index("{}")
    return Fact(
        subject=f" {operation} ".join(sorted(names)),
        object=answer,
        prompt=PROMPT.format(given),
        completion=f" {answer}",
        subject_span=(begin, begin + len(given)),
        object_span=(1, 1 + len(answer)),
        fact_id=f"{operation}-{'-'.join(sorted(names))}",
        phrasing=phrasing,
    )

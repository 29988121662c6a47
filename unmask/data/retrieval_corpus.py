"""Corpora of unique tokens, in which a model either has a relation both ways or it does not.

*Retrieval*: pairs of a key and a value, each a sequence of tokens that occur nowhere else. Every
pair is stated, "key : value". Some pairs are asked for in training, too, in both forms, "[value of]
key : value" and "[key of] value : key"; the tests ask for the others, in both forms. Guessing gives
0 %: what a model answers it has from the statement, and to the form that reads against the
statement only if it can turn the pair around.

*Relationship*: chains A → B → C, stated as "A > B" and "B > C", asked "[after] B : C" and "[before]
B : A". A model that has B's two neighbours but not the relation's direction answers them the wrong
way round; the splits `…_false` ask how often.

Both follow Kitouni et al. 2024 (arXiv 2406.05183). Splits have the names of all corpora
(`unmask.data.corpus`): a key stands where a person stands, a value where a description does.
"""

from collections.abc import Sequence
from dataclasses import replace

from unmask.base.errors import UserError
from unmask.base.seeds import python_stream
from unmask.data.corpus import Corpus
from unmask.data.facts import OTHER_WAY, Direction, Fact
from unmask.data.reversal_corpus import shuffle_answers

ASKED: dict[Direction, str] = {"p2d": "[value of] {} :", "d2p": "[key of] {} :"}
"""The two forms of a question, by what is given: p2d a key, d2p a value."""
AFTER, BEFORE = "[after] {} :", "[before] {} :"
LONGEST, MOST_TOKENS = 32, 100_000


def make_retrieval_corpus(
    num_pairs: int = 200,
    seed: int = 0,
    length: int = 2,
    queried: float = 0.8,
    value_first: bool = False,
) -> Corpus:
    """Pairs of `length` tokens a side; a share `queried` of them is asked for in training.

    With `value_first` statements read "value : key": the same pairs and questions, of which those
    that read as the statement does are now the reversed ones.
    """
    num_queried, num_valid = _divide(num_pairs, queried, "pairs")
    names = _name_entities(2 * num_pairs, length, seed)
    way: Direction = "d2p" if value_first else "p2d"
    statements, questions = [], {"p2d": [], "d2p": []}
    for i, pair in enumerate(zip(names[::2], names[1::2], strict=True)):
        fact_id = f"pair-{i:05d}"
        given, answer = pair[::-1] if value_first else pair
        statements.append(Fact.of(given, answer, "{} :", direction=way, fact_id=fact_id))
        for form, (one, other) in {"p2d": pair, "d2p": pair[::-1]}.items():
            questions[form].append(
                Fact.of(one, other, ASKED[form], direction=form, fact_id=fact_id, phrasing=1)
            )
    splits = _split(
        statements, questions[way], questions[OTHER_WAY[way]], num_queried, num_valid, way
    )
    for test in (f"{way}_same", f"{way}_reverse"):
        splits[f"{test}_shuffled"] = shuffle_answers(splits[test], seed)
    source = f"unmask retrieval corpus ({num_pairs} pairs of {length} tokens, seed {seed})"
    return Corpus(source, splits, (f"{way}_same", f"{way}_reverse"))


def make_relationship_corpus(
    num_chains: int = 200, seed: int = 0, length: int = 2, queried: float = 0.8
) -> Corpus:
    """Chains of three entities of `length` tokens; of a share `queried`, B is asked for."""
    num_queried, num_valid = _divide(num_chains, queried, "chains")
    names = _name_entities(3 * num_chains, length, seed)
    statements, after, before, false = [], [], [], {"same": [], "reverse": []}
    for i, (a, b, c) in enumerate(zip(names[::3], names[1::3], names[2::3], strict=True)):
        first, second = f"chain-{i:05d}-ab", f"chain-{i:05d}-bc"
        statements.append(Fact.of(a, b, "{} >", fact_id=first))
        statements.append(Fact.of(b, c, "{} >", fact_id=second))
        after.append(Fact.of(b, c, AFTER, fact_id=second, phrasing=1))
        before.append(Fact.of(b, a, BEFORE, direction="d2p", fact_id=first, phrasing=1))
        # The other neighbour of B, as the answer of a model that does not know which way.
        false["same"].append(replace(after[-1], object=a, completion=f" {a}"))
        false["reverse"].append(replace(before[-1], object=c, completion=f" {c}"))
    splits = _split(statements, after, before, num_queried, num_valid, "p2d")
    for way, facts in false.items():
        splits[f"p2d_{way}_false"] = _mark(facts[num_queried + num_valid :], way)
    for test in ("p2d_same", "p2d_reverse"):
        splits[f"{test}_shuffled"] = shuffle_answers(splits[test], seed)
    tests = ("p2d_same", "p2d_reverse", "p2d_same_false", "p2d_reverse_false")
    source = f"unmask relationship corpus ({num_chains} chains of {length} tokens, seed {seed})"
    return Corpus(source, splits, tests)


def _split(
    statements: list[Fact],
    same: list[Fact],
    reverse: list[Fact],
    num_queried: int,
    num_valid: int,
    way: Direction,
) -> dict[str, list[Fact]]:
    """All statements and the first questions are trained; the next validate, the rest test."""
    end = num_queried + num_valid
    train = [*statements, *same[:num_queried], *reverse[:num_queried]]
    return {
        "train": train,
        f"{way}_same": _mark(same[end:], "same"),
        f"{way}_reverse": _mark(reverse[end:], "reverse"),
        f"{way}_same_valid": _mark(same[num_queried:end], "same"),
        f"{way}_reverse_valid": _mark(reverse[num_queried:end], "reverse"),
    }


def _mark(facts: Sequence[Fact], trained: str) -> list[Fact]:
    return [replace(fact, trained=trained) for fact in facts]


def _divide(number: int, queried: float, what: str) -> tuple[int, int]:
    """How many are asked for in training, and how many of the others are for validation."""
    num_queried = round(number * queried) if 0 <= queried <= 1 else 0
    num_valid = max(1, (number - num_queried) // 5)
    if not 0 <= queried < 1 or number - num_queried - num_valid < 2:
        raise UserError(
            f"{number} {what} were asked for, a share of {queried} of them with questions in "
            "training: expected a share from 0 to less than 1 that leaves at least 2 for the tests."
        )
    return num_queried, num_valid


def _name_entities(number: int, length: int, seed: int) -> list[str]:
    """Sequences of tokens that occur once each; all of one width: none is a part of another."""
    if not 1 <= length <= LONGEST:
        raise UserError(f"{length} tokens a side were asked for: expected 1 to {LONGEST}.")
    if number * length > MOST_TOKENS:
        raise UserError(
            f"{number * length:,} tokens were asked for: expected at most {MOST_TOKENS:,}; make "
            "fewer or shorter ones."
        )
    width = len(str(number * length - 1))
    tokens = [f"t{i:0{width}d}" for i in range(number * length)]
    tokens = python_stream(seed, "tokens").sample(tokens, len(tokens))
    return [" ".join(tokens[i : i + length]) for i in range(0, len(tokens), length)]

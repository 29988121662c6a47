"""What is asked: the prompts of a corpus's splits, their rivals, their shuffled controls."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from unmask.base.errors import UserError
from unmask.data.corpus import Corpus
from unmask.data.facts import Fact, FactTokens, tokenize_fact
from unmask.data.tokenizer import Tokenizer
from unmask.net.model import Model

CONTROL = "_shuffled"
STUDY_LENGTH = 52
"""The context of the study: prompt, answer and what follows."""


@dataclass(frozen=True)
class Split:
    """The prompts of one split that are asked."""

    name: str
    facts: list[Fact]
    rivals: list[list[Fact]]
    """For each of them, all facts of the split in the same phrasing, its own among them."""
    controls: list[Fact] | None
    """For each of them, the same prompt with another fact's answer; None where there are none."""


def choose_splits(
    corpus: Corpus, names: Sequence[str], limit: int | None, controls: bool = True
) -> list[Split]:
    """The named splits, at most `limit` prompts of each, with their controls where they exist."""
    if limit is not None and limit < 1:
        raise UserError(f"a limit of {limit} prompts was given: expected at least 1.")
    return [_choose(corpus, name, limit, controls) for name in names]


def _choose(corpus: Corpus, name: str, limit: int | None, controls: bool) -> Split:
    everything = corpus[name]
    facts = spread(everything, limit)
    by_phrasing: dict[int, list[Fact]] = {}
    for fact in everything:
        by_phrasing.setdefault(fact.phrasing, []).append(fact)
    rivals = [by_phrasing[fact.phrasing] for fact in facts]
    shuffled = {fact.prompt: fact for fact in corpus.splits.get(name + CONTROL, ())}
    if not controls or not shuffled:
        return Split(name, facts, rivals, None)
    missing = [fact.prompt for fact in facts if fact.prompt not in shuffled]
    if missing:
        raise UserError(
            f"{corpus.source}: the control {name}{CONTROL} lacks {len(missing)} prompts of {name}, "
            f"such as {missing[0]!r}: make the corpus anew, or measure without controls."
        )
    return Split(name, facts, rivals, [shuffled[fact.prompt] for fact in facts])


def spread(facts: Sequence[Fact], limit: int | None) -> list[Fact]:
    """At most `limit` of the prompts, spread evenly over facts and phrasings, in their order.

    Round by round every fact lends one prompt, each fact starting at another phrasing.
    """
    if limit is None or limit >= len(facts):
        return list(facts)
    by_fact: dict[str, list[int]] = {}
    for i, fact in enumerate(facts):
        by_fact.setdefault(fact.fact_id, []).append(i)
    rounds = max(len(places) for places in by_fact.values())
    turns = [
        places[(turn + number) % len(places)]
        for turn in range(rounds)
        for number, places in enumerate(by_fact.values())
        if turn < len(places)
    ]
    return [facts[i] for i in sorted(turns[:limit])]


def require_tokenizer(model: Model) -> Tokenizer:
    """The model's tokenizer, or a sentence about models that have none."""
    if model.tokenizer is None:
        raise UserError(
            f"the model {model.name} has no tokenizer: put a tokenizer.json into its folder, or "
            "name one when converting it."
        )
    return model.tokenizer


def encode_facts(facts: Sequence[Fact], tokenizer: Tokenizer) -> dict[Fact, FactTokens]:
    """The tokens of each fact, in the model's own tokens."""
    return {fact: tokenize_fact(fact, tokenizer) for fact in dict.fromkeys(facts)}


def choose_length(model: Model, encoded: Sequence[FactTokens], asked: int | None) -> int:
    """The canvas for all texts: as asked, else the study's 52, or more where a text needs it."""
    longest = max(len(found.ids) for found in encoded)
    context = model.net.config.context
    length = min(max(STUDY_LENGTH, longest), context) if asked is None else asked
    if longest > length or length > context:
        raise UserError(
            f"the longest prompt with its answer has {longest} tokens for {model.name}, whose "
            f"context is {context}; a length of {length} does not hold it: give a --length of "
            f"{longest} to {context}, or use a model with a longer context."
        )
    return length


def digest_splits(splits: Sequence[Split]) -> str:
    """A short name for exactly these prompts and answers."""
    digest = blake2b(digest_size=8)
    for split in splits:
        digest.update(split.name.encode())
        for fact in [*split.facts, *(split.controls or ())]:
            digest.update(f"\0{fact.fact_id}\0{fact.prompt}\0{fact.completion}".encode())
    return digest.hexdigest()

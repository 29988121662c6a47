"""What is asked: the prompts of a corpus's splits, their rivals, their shuffled controls."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from unmask.base.errors import UserError
from unmask.base.identity import digest_values
from unmask.data.corpus import Corpus
from unmask.data.facts import Fact, FactTokens, tokenize_facts
from unmask.data.tokenizer import Tokenizer
from unmask.net.model import Model

CONTROL = "_shuffled"
FILE_CONTROL = "_file_shuffled"
"""The ending of splits of shuffled answers that came with the data, in any phrasing."""
MOST_RIVALS = 1000
"""An answer is ranked among this many at most: with more facts, time and memory would grow with the
square of their number."""
PART = 1024
"""Prompts that are measured together; a run over more of them is made, and resumed, in parts."""
STUDY_LENGTH = 52
"""The context of the study: prompt, answer and what follows."""


@dataclass(frozen=True)
class Split:
    """The prompts of one split that are asked."""

    name: str
    facts: list[Fact]
    rivals: list[list[Fact]]
    """For each of them, the facts of the split in the same phrasing, its own among them; of more
    than `MOST_RIVALS` those that stand near it."""
    controls: list[Fact | None] | None = None
    """For each of them, the same prompt with another fact's answer, or None where the shuffling
    left one of its own fact's; None for a split without controls."""
    file_controls: list[Fact | None] | None = None
    """Each prompt with the shuffled answer that came with the data."""

    @property
    def answers(self) -> list[dict[str, Fact]]:
        """For each prompt its true answer under "", and its controls under the splits' endings."""
        kinds = {"": self.facts, CONTROL: self.controls, FILE_CONTROL: self.file_controls}
        named = [
            [(name, fact) for fact in facts] for name, facts in kinds.items() if facts is not None
        ]
        return [{name: fact for name, fact in each if fact is not None}
                for each in zip(*named, strict=True)]  # fmt: skip

    def cut(self) -> "list[Split]":
        """The split in parts of at most `PART` prompts; a small one is its only part."""
        if len(self.facts) <= PART:
            return [self]
        return [
            Split(
                self.name,
                self.facts[at],
                self.rivals[at],
                self.controls and self.controls[at],
                self.file_controls and self.file_controls[at],
            )
            for at in (slice(i, i + PART) for i in range(0, len(self.facts), PART))
        ]


def choose_splits(
    corpus: Corpus, names: Sequence[str], limit: int | None, controls: bool = True
) -> list[Split]:
    """The named splits, at most `limit` prompts of each, with their controls where they exist."""
    if limit is not None and limit < 1:
        raise UserError(f"a limit of {limit} prompts was given: expected at least 1.")
    if twice := {name for name in names if list(names).count(name) > 1}:
        raise UserError(f"splits were given twice ({', '.join(sorted(twice))}): give each once.")
    return [_choose(corpus, name, limit, controls) for name in names]


def _choose(corpus: Corpus, name: str, limit: int | None, controls: bool) -> Split:
    everything = corpus[name]
    facts = spread(everything, limit)
    by_phrasing: dict[int, list[Fact]] = {}
    for fact in everything:
        by_phrasing.setdefault(fact.phrasing, []).append(fact)
    near = {id(fact): group for same in by_phrasing.values() for group in _divide(same)
            for fact in group}  # fmt: skip
    rivals = [near[id(fact)] for fact in facts]
    kinds = (CONTROL, FILE_CONTROL) if controls else ()
    return Split(name, facts, rivals, *(_find_controls(corpus, name, facts, x) for x in kinds))


def _find_controls(
    corpus: Corpus, name: str, facts: Sequence[Fact], ending: str
) -> list[Fact | None] | None:
    """The controls of some prompts of a split; None for a split without."""
    shuffled = {fact.prompt: fact for fact in corpus.splits.get(name + ending, ())}
    if not shuffled:
        return None
    missing = [fact.prompt for fact in facts if fact.prompt not in shuffled]
    if missing:
        raise UserError(
            f"{corpus.source}: the control {name}{ending} lacks {len(missing)} prompts of {name}, "
            f"such as {missing[0]!r}: make the corpus anew, or measure without controls."
        )
    own = gather_answers((fact.fact_id, fact.completion) for fact in corpus[name])
    kept: list[Fact | None] = []
    for fact in facts:
        control = shuffled[fact.prompt]
        is_true = plain_answer(control.completion) in own[fact.fact_id]
        kept.append(None if is_true else control)
    return kept


def _divide(facts: list[Fact]) -> list[list[Fact]]:
    """The facts in groups of about one size, none larger than `MOST_RIVALS`."""
    count = -(-len(facts) // MOST_RIVALS)
    ends = [len(facts) * i // count for i in range(count + 1)]
    return [facts[begin:end] for begin, end in pairwise(ends)]


def gather_answers(pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """By fact, its completions in every phrasing: the same answer may be inflected."""
    answers: dict[str, set[str]] = {}
    for fact, completion in pairs:
        answers.setdefault(fact, set()).add(plain_answer(completion))
    return answers


def plain_answer(completion: str) -> str:
    """A completion without outer blanks, full stops and capitals, to be compared with others."""
    return completion.strip(" .").lower()


def refuse_controls(names: Sequence[str]) -> None:
    """A control is measured with its split, never by itself."""
    if controls := [name for name in names if name.endswith(CONTROL)]:
        split = controls[0].removesuffix(FILE_CONTROL).removesuffix(CONTROL)
        raise UserError(
            f"{', '.join(controls)} is a control: give its split, {split}, "
            "with which it is measured."
        )


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
    distinct = list(dict.fromkeys(facts))
    return dict(zip(distinct, tokenize_facts(distinct, tokenizer), strict=True))


def check_scored(model: Model) -> None:
    """Raise for a model whose answers cannot be scored token by token."""
    model.paradigm.require_scored(model.name, "answers are scored")
    if model.net.config.time:
        raise UserError(
            f"{model.name} takes the time as an input: answers are scored for networks that see "
            "tokens alone."
        )


def choose_length(model: Model, encoded: Iterable[FactTokens], length: int | None) -> int:
    """The canvas of all texts: that length, else the study's 52, or more where a text needs it."""
    longest = max(len(each.ids) for each in encoded)
    context = model.net.config.context
    length = min(max(STUDY_LENGTH, longest), context) if length is None else length
    if longest > length or length > context:
        lengthen = f"give a --length of {longest} to {context}, or " if longest <= context else ""
        raise UserError(
            f"the longest prompt with its answer has {longest} tokens for {model.name}, whose "
            f"context is {context}; a length of {length} does not hold it: {lengthen}use a model "
            "with a longer context."
        )
    return length


def digest_splits(splits: Sequence[Split]) -> str:
    """A short name for exactly these prompts, answers, controls and rivals."""
    return digest_values(part for split in splits for part in _list_parts(split))


def _list_parts(split: Split) -> Iterator[object]:
    yield split.name
    yield from split.facts
    yield from split.controls or ()
    yield from split.file_controls or ()
    # Facts of one phrasing share their rivals.
    shared = {id(rivals): rivals for rivals in split.rivals}
    for rivals in shared.values():
        yield from rivals

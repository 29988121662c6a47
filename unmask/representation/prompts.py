"""Prompts: a fact as rows of tokens, with the position that is changed and those that are read.

Every fact is asked after several prefixes, short texts before the prompt, so that results do not
depend on one text. The first prefix is always empty. The others are seeded: sampled from the model,
or cut out of texts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from random import Random
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.seeds import derive_seed, python_stream
from unmask.data.facts import Fact, FactTokens, as_fact, tokenize_fact
from unmask.evaluation.questions import STUDY_LENGTH, require_tokenizer
from unmask.net.batches import count_row_bytes, fit_rows, map_batches
from unmask.net.model import Model
from unmask.representation.settings import Extraction
from unmask.sampling.texts import sample

KL_TEXT = " is a"
"""What follows the subject where the KL keeps its broader meaning."""
JOINT = ". "
"""Between a prefix and the prompt."""
PREFIX_TOKENS = 5
_FIRST_WORDS = ("The", "In", "When", "After", "One", "There", "As", "Many")
_MOST_TRIES = 20

R = TypeVar("R")


@dataclass(frozen=True)
class PromptRow:
    """One text as a model sees it."""

    tokens: list[int]
    """For a masked model a whole canvas; for a causal one up to the last row that is read."""
    position: int
    """The last token of the subject: keys are read and values changed here."""
    reads: list[int]
    """Rows of the stream at which the object's tokens are predicted."""
    targets: list[int]
    """The tokens expected there; none where only a distribution is read."""
    prompt_length: int


@dataclass(frozen=True)
class Case:
    """A fact laid out: prefix by prefix (the first is empty), mask pattern by mask pattern."""

    fact: Fact
    prefixes: tuple[str, ...]
    rows: list[PromptRow]
    key_rows: list[PromptRow]
    """Where the key is read, one row per prefix."""
    kl_prompt: PromptRow
    """Where the KL is taken: the next token after the subject, or after "is a"."""

    @property
    def length(self) -> int:
        return max(len(row.tokens) for row in self.rows)

    @property
    def num_targets(self) -> int:
        return max(len(row.targets) for row in self.rows)


@dataclass(frozen=True)
class PromptBatch:
    """Rows as tensors; shorter lists of reads are padded, and the padding weighs nothing."""

    tokens: Int[Tensor, "R L"]
    position: Int[Tensor, "R"]
    reads: Int[Tensor, "R A"]
    targets: Int[Tensor, "R A"]
    num_targets: Int[Tensor, "R"]
    prompt_length: Int[Tensor, "R"]

    @property
    def is_target(self) -> Tensor:
        """Which of the reads have a target [R, A]."""
        columns = torch.arange(self.reads.shape[1], device=self.reads.device)
        return columns < self.num_targets[:, None]


def stack_rows(rows: Sequence[PromptRow], device: torch.device) -> PromptBatch:
    """Rows padded to one length; a causal network does not see what pads short ones."""
    length, most = max(len(row.tokens) for row in rows), max(len(row.reads) for row in rows)

    def pad(items: list[int], size: int, by: int) -> list[int]:
        return items + [by] * (size - len(items))

    columns = (
        [pad(row.tokens, length, row.tokens[-1]) for row in rows],
        [row.position for row in rows],
        [pad(row.reads, most, row.reads[0]) for row in rows],
        [pad(row.targets, most, 0) for row in rows],
        [len(row.targets) for row in rows],
        [row.prompt_length for row in rows],
    )
    return PromptBatch(*(torch.tensor(column).to(device) for column in columns))


def map_cases(
    model: Model,
    cases: Sequence[Case],
    call: Callable[[Sequence[Case]], Sequence[R]],
    row_bytes: int | None = None,
) -> list[R]:
    """What `call` makes of each case, in the order given; batches are as large as memory allows.

    Canvases of one length can share a batch, as causal rows of any length can; cases with equally
    many targets are batched together. `row_bytes` are those of one row, by default of a pass.
    """
    if row_bytes is None:
        longest, most = max(case.length for case in cases), max(case.num_targets for case in cases)
        row_bytes = count_row_bytes(model, longest, most)
    size = max(1, fit_rows(model, row_bytes) // len(cases[0].rows))
    sizes = [(case.num_targets, case.length) for case in cases]
    lengths = [case.length for case in cases]

    def call_some(numbers: Sequence[int]) -> Sequence[R]:
        with model.net.taps.in_rows(numbers):
            return call([cases[i] for i in numbers])

    return map_rows(model, lengths, size, call_some, sizes)


def map_rows(
    model: Model,
    lengths: Sequence[int],
    most: int,
    call: Callable[[Sequence[int]], Sequence[R]],
    order: Sequence[Any] | None = None,
) -> list[R]:
    """What `call` makes of rows, by number; at a time `most` at most, which can share a batch."""
    made: dict[int, R] = {}
    for group in model.paradigm.group_rows(lengths):
        group.sort(key=None if order is None else order.__getitem__)
        for numbers, results in map_batches(group, most, call):
            made |= zip(numbers, results, strict=True)
    return [made[number] for number in range(len(lengths))]


def prepare_case(model: Model, fact: object, layer: int, settings: Extraction) -> Case:
    """One fact laid out for one layer; whatever is wrong with the arguments is a sentence."""
    fact = as_fact(fact)
    layers = model.net.config.layers
    if not 0 <= layer < layers:
        raise UserError(
            f"layer {layer} is out of range: {model.name} has layers 0 to {layers - 1}."
        )
    return lay_out_case(model, fact, choose_prefixes(model, settings), settings)


def choose_prefixes(model: Model, settings: Extraction) -> tuple[str, ...]:
    """The prefixes that the settings name, or as many as they ask for; the empty one is first."""
    prefixes = settings.prefixes
    if isinstance(prefixes, int):
        prefixes = make_prefixes(model, prefixes, settings.seed)
    return ("", *(text for text in prefixes if text))


def lay_out_case(model: Model, fact: Fact, prefixes: Sequence[str], settings: Extraction) -> Case:
    """The fact's rows; a prompt that is all subject, or does not fit, is refused."""
    tokenizer = require_tokenizer(model)
    _check_model(model, settings)
    assert prefixes and prefixes[0] == "", "the first prefix is the empty one"
    texts = [tokenize_fact(put_before(prefix, fact), tokenizer) for prefix in prefixes]
    if texts[0].subject == (model.count_beginning(texts[0].ids), texts[0].prompt_length):
        raise UserError(
            f"the subject {fact.subject!r} is the whole prompt: nothing is asked about it; add the "
            "words that ask, such as 'The capital of {} is'."
        )
    length = _choose_length(model, fact, [text.object[1] for text in texts], settings)
    patterns = range(len(settings.revealed))
    rows = [
        _lay_out_object(model, text, length, _choose_shown(text, fact, number, settings))
        for text in texts
        for number in patterns
    ]
    key_rows = rows[:: len(patterns)]
    if settings.key_text == "subject":
        subjects = [f"{prefix}{JOINT if prefix else ''}{fact.subject}" for prefix in prefixes]
        encoded = [tokenizer.encode(subject).ids for subject in subjects]
        key_rows = [_lay_out_next(model, ids, length, len(ids) - 1) for ids in encoded]
    kl_prompt = _lay_out_kl_prompt(model, fact, length, settings)
    return Case(fact, tuple(prefixes), rows, key_rows, kl_prompt)


def _check_model(model: Model, settings: Extraction) -> None:
    """Raise where a model has no keys and values to find this way."""
    if not model.paradigm.is_scored or model.net.config.time:
        raise UserError(
            f"the model {model.name} is {model.kind}"
            f"{' and conditioned on time' if model.net.config.time else ''}: keys and values are "
            "found in masked and causal models that see tokens alone."
        )
    if not model.paradigm.has_steps and (settings.guidance or settings.revealed != (0.0,)):
        raise UserError(
            "an autoregressive model has neither guidance nor mask patterns: leave both out."
        )


def _choose_length(
    model: Model, fact: Fact, ends: Sequence[int], settings: Extraction
) -> int | None:
    """The canvas of a masked model: the study's for every fact, but for those that need more.

    `ends` are where the object ends after each prefix.
    """
    context = model.net.config.context
    length, longest = settings.length, max(ends)
    if length is None:
        # In few sizes, since rows of one size share a batch.
        length = min(max(STUDY_LENGTH, -(-longest // 4) * 4), context)
    if longest > length or length > context:
        fitting = sum(1 for _ in takewhile(lambda end: end <= min(length, context), ends))
        fewer = f"use --prefixes {fitting}" if fitting else "use a shorter prompt"
        by_itself = ", which is the prompt by itself" if fitting == 1 else ""
        raise UserError(
            f"the prompt {fact.prompt!r} with its prefixes and its object has {longest} tokens, "
            f"which a canvas of {length} in a context of {context} does not hold: {fewer}"
            f"{by_itself}, another --length, or a model with a longer context."
        )
    return length if model.paradigm.sees_later else None


def _choose_shown(tokens: FactTokens, fact: Fact, number: int, settings: Extraction) -> list[int]:
    """Positions of the object that a mask pattern shows, the same after every prefix."""
    begin, end = tokens.object
    count = int(settings.revealed[number] * (end - begin))
    stream = python_stream(settings.seed, "revealed", fact.fact_id, fact.direction, number)
    return sorted(begin + i for i in stream.sample(range(end - begin), count))


def _lay_out_object(
    model: Model, text: FactTokens, length: int | None, shown: Sequence[int]
) -> PromptRow:
    """The prompt, and the rows that predict those tokens of the object that are not shown."""
    hidden = [position for position in range(*text.object) if position not in shown]
    reads = [model.row_of(position) for position in hidden]
    tokens = text.ids[: reads[-1] + 1]
    if length is not None:
        tokens = pad_canvas(model, text.ids[: text.prompt_length], length)
        for position in shown:
            tokens[position] = text.ids[position]
    targets = [text.ids[position] for position in hidden]
    return PromptRow(tokens, text.subject[1] - 1, reads, targets, text.prompt_length)


def _lay_out_next(model: Model, ids: list[int], length: int | None, position: int) -> PromptRow:
    """A text, and the row that predicts the token after it."""
    row = model.row_of(len(ids))
    return PromptRow(pad_canvas(model, ids, length), position, [row], [], len(ids))


def pad_canvas(model: Model, tokens: list[int], length: int | None) -> list[int]:
    """The tokens as a model is given them: masks fill a masked model's canvas up."""
    return tokens if length is None else tokens + [model.require_mask()] * (length - len(tokens))


def _lay_out_kl_prompt(
    model: Model, fact: Fact, length: int | None, settings: Extraction
) -> PromptRow:
    """A causal network does not see "is a" at the subject: reading there leaves that out."""
    encoded = require_tokenizer(model).encode(fact.subject + KL_TEXT)
    last = max(i for i, (begin, _) in enumerate(encoded.offsets) if begin < len(fact.subject))
    ids = encoded.ids[: last + 1] if settings.kl_read == "subject" else encoded.ids
    return _lay_out_next(model, ids, length, last)


def make_prefixes(
    model: Model,
    count: int,
    seed: int = 0,
    texts: Sequence[str] | None = None,
    tokens: int = PREFIX_TOKENS,
) -> tuple[str, ...]:
    """`count` different prefixes of about that many tokens, the first one empty.

    Without `texts` the model writes them, from a seeded first word on at a temperature of 1.
    """
    if count < 1:
        raise UserError(f"{count} prefixes were asked for: expected at least 1, the empty one.")
    if texts is not None and not any(text.strip() for text in texts):
        raise UserError("the text to cut prefixes from is empty: give one with words in it.")
    prefixes = [""]
    for number in range(_MOST_TRIES * count):
        if len(prefixes) == count:
            break
        stream = python_stream(seed, "prefix", number)
        if texts is None:
            text = _write_prefix(model, stream, derive_seed(seed, "prefix", number), tokens)
        else:
            text = _cut_prefix(model, stream, texts, tokens)
        # On one line, without halves of characters and without punctuation at its end.
        text = " ".join(text.replace("\ufffd", " ").split()).rstrip(" .,;:!?-")
        if text and text not in prefixes:
            prefixes.append(text)
    if len(prefixes) < count:
        raise UserError(
            f"only {len(prefixes)} different prefixes were found of the {count} asked for: ask for "
            "fewer, or give a longer text to cut them from."
        )
    return tuple(prefixes)


def _write_prefix(model: Model, stream: Random, seed: int, tokens: int) -> str:
    first = require_tokenizer(model).encode(stream.choice(_FIRST_WORDS)).ids
    length = min(len(first) + tokens, model.net.config.context)
    drawn = sample(
        model, [first], steps=tokens, length=length, temperature=1.0, seed=seed, keep_states=False
    )
    assert drawn.texts is not None
    return drawn.texts[0]


def _cut_prefix(model: Model, stream: Random, texts: Sequence[str], tokens: int) -> str:
    """Whole words of one of the texts, as many as fit."""
    words = stream.choice(texts).split() or [""]
    words = words[stream.randrange(len(words)) :]
    while len(words) > 1 and _count_tokens(model, words) > tokens:
        words.pop()
    return " ".join(words)


def _count_tokens(model: Model, words: Sequence[str]) -> int:
    return len(require_tokenizer(model).encode(" ".join(words), added="nothing").ids)


def put_before(prefix: str, fact: Fact) -> Fact:
    """The fact with a prefix before its prompt."""
    if not prefix:
        return fact
    front = prefix + JOINT
    begin, end = fact.subject_span
    span = (begin + len(front), end + len(front))
    return replace(fact, prompt=front + fact.prompt, subject_span=span)

"""States: a fact as rows of tokens, with the place that is changed and the rows that are read."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.seeds import python_stream
from unmask.data.facts import Fact, FactTokens, tokenize_fact
from unmask.evaluation.questions import STUDY_LENGTH, require_tokenizer
from unmask.net.model import Model
from unmask.representation.prefixes import JOINT, put_before
from unmask.representation.settings import Extraction

ESSENCE = " is a"
"""What follows the subject where its broader meaning is kept."""


@dataclass(frozen=True)
class Row:
    """One text as a model sees it."""

    tokens: list[int]
    """For a masked model a whole canvas; for a causal one up to the last row that is read."""
    place: int
    """The last token of the subject."""
    reads: list[int]
    """Rows of the stream at which the object's tokens are read."""
    targets: list[int]
    """The tokens expected there; none where only a distribution is read."""
    prompt_length: int


@dataclass(frozen=True)
class Case:
    """A fact laid out: prefix by prefix (the first is empty), pattern by pattern."""

    fact: Fact
    rows: list[Row]
    keys: list[Row]
    """Where the key is read, one row for each prefix."""
    essence: Row
    """Where the subject's own meaning is read: the next token after it, or after "is a"."""

    @property
    def length(self) -> int:
        return max(len(row.tokens) for row in self.rows)

    @property
    def num_targets(self) -> int:
        return max(len(row.targets) for row in self.rows)


def check_model(model: Model, settings: Extraction) -> None:
    """Raise where a model has no keys and values to find this way."""
    if not model.paradigm.is_scored or model.net.config.time:
        raise UserError(
            f"the model {model.name} is {model.kind}"
            f"{' and told the time' if model.net.config.time else ''}: keys and values are found "
            "in masked and causal models that see tokens alone."
        )
    if not model.paradigm.has_steps and (settings.guidance or settings.revealed != (0.0,)):
        raise UserError(
            "an autoregressive model has neither guidance nor mask patterns: leave both out."
        )


def check_layer(model: Model, layer: int) -> None:
    """Raise where the network has no such layer."""
    layers = model.net.config.layers
    if not 0 <= layer < layers:
        raise UserError(
            f"layer {layer} is out of range: {model.name} has layers 0 to {layers - 1}."
        )


def lay_out_case(model: Model, fact: Fact, prefixes: Sequence[str], settings: Extraction) -> Case:
    """The fact's rows; a prompt that is all subject, or does not fit, is a sentence."""
    tokenizer = require_tokenizer(model)
    check_model(model, settings)
    assert prefixes and prefixes[0] == "", "the first prefix is the empty one"
    found = [tokenize_fact(put_before(prefix, fact), tokenizer) for prefix in prefixes]
    first = found[0]
    if first.subject == (0, first.prompt_length):
        raise UserError(
            f"the subject {fact.subject!r} is the whole prompt: nothing is asked about it; add the "
            "words that ask, such as 'The capital of {} is'."
        )
    longest = max(each.object[1] for each in found)
    length = _choose_length(model, fact, longest, settings)
    rows = [
        _lay_out(model, each, length, _choose_shown(each, fact, number, settings))
        for each in found
        for number in range(len(settings.revealed))
    ]
    keys = rows[:: len(settings.revealed)]
    if settings.key_text == "subject":
        texts = [f"{prefix}{JOINT if prefix else ''}{fact.subject}" for prefix in prefixes]
        keys = [_lay_out_open(model, tokenizer.encode(text).ids, length) for text in texts]
    return Case(fact, rows, keys, _lay_out_essence(model, fact, length, settings))


def _choose_length(model: Model, fact: Fact, longest: int, settings: Extraction) -> int | None:
    """The canvas of a masked model: the study's for every fact, but for those that need more."""
    context = model.net.config.context
    length = settings.length
    if length is None:
        # In few sizes, since rows of one size share a batch.
        length = min(max(STUDY_LENGTH, -(-longest // 4) * 4), context)
    if longest > length or length > context:
        raise UserError(
            f"the prompt {fact.prompt!r} with its prefixes and its object has {longest} tokens, "
            f"which a canvas of {length} in a context of {context} does not hold: use fewer or "
            "shorter prefixes, another --length, or a model with a longer context."
        )
    return length if model.paradigm.sees_later else None


def _choose_shown(tokens: FactTokens, fact: Fact, number: int, settings: Extraction) -> list[int]:
    """Positions of the object that a mask pattern shows, the same after every prefix."""
    begin, end = tokens.object
    count = int(settings.revealed[number] * (end - begin))
    stream = python_stream(settings.seed, "revealed", fact.fact_id, fact.direction, number)
    return sorted(begin + i for i in stream.sample(range(end - begin), count))


def _lay_out(model: Model, found: FactTokens, length: int | None, shown: Sequence[int]) -> Row:
    begin, end = found.object
    asked = [position for position in range(begin, end) if position not in shown]
    reads = [model.row_of(position) for position in asked]
    targets = [found.ids[position] for position in asked]
    place = found.subject[1] - 1
    if length is None:
        return Row(found.ids[: reads[-1] + 1], place, reads, targets, found.prompt_length)
    assert model.mask_id is not None
    tokens = found.ids[: found.prompt_length]
    tokens += [model.mask_id] * (length - len(tokens))
    for position in shown:
        tokens[position] = found.ids[position]
    return Row(tokens, place, reads, targets, found.prompt_length)


def _lay_out_open(
    model: Model, ids: list[int], length: int | None, place: int | None = None
) -> Row:
    """A text, and the row that predicts the token after it."""
    reads, prompt_length = [model.row_of(len(ids))], len(ids)
    place = prompt_length - 1 if place is None else place
    if length is not None:
        assert model.mask_id is not None
        ids = ids + [model.mask_id] * (length - len(ids))
    return Row(ids, place, reads, [], prompt_length)


def _lay_out_essence(model: Model, fact: Fact, length: int | None, settings: Extraction) -> Row:
    """A causal network does not see "is a" at the subject: asking after it leaves that out."""
    encoded = require_tokenizer(model).encode(fact.subject + ESSENCE)
    place = max(i for i, (b, _) in enumerate(encoded.offsets) if b < len(fact.subject))
    ids = encoded.ids[: place + 1] if settings.kl_read == "subject" else encoded.ids
    return _lay_out_open(model, ids, length, place)


@dataclass(frozen=True)
class Rows:
    """Rows as tensors; shorter lists of reads are filled up and weigh nothing."""

    tokens: Int[Tensor, "R L"]
    place: Int[Tensor, "R"]
    reads: Int[Tensor, "R A"]
    targets: Int[Tensor, "R A"]
    count: Int[Tensor, "R"]
    """How many of the reads have a target."""
    prompt_length: Int[Tensor, "R"]


def stack_rows(rows: Sequence[Row], device: torch.device) -> Rows:
    """Rows one below the other; a causal network does not see what fills short ones up."""
    length = max(len(row.tokens) for row in rows)
    most = max(len(row.reads) for row in rows)

    def fill(items: list[int], size: int, by: int) -> list[int]:
        return items + [by] * (size - len(items))

    return Rows(
        torch.tensor([fill(row.tokens, length, row.tokens[-1]) for row in rows]).to(device),
        torch.tensor([row.place for row in rows]).to(device),
        torch.tensor([fill(row.reads, most, row.reads[0]) for row in rows]).to(device),
        torch.tensor([fill(row.targets, most, 0) for row in rows]).to(device),
        torch.tensor([len(row.targets) for row in rows]).to(device),
        torch.tensor([row.prompt_length for row in rows]).to(device),
    )

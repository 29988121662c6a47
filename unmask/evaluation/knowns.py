"""Single-token completions of plain knowledge prompts, asked both ways (the study's Fig. 3).

How they are asked, and what that can say: `unmask.measures.knowns`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from unmask.base.errors import UserError
from unmask.base.reading import parse_json, read_text, require_text
from unmask.data.facts import place_subject
from unmask.data.tokenizer import Tokenizer
from unmask.evaluation.chain import entropy, log_softmax
from unmask.evaluation.questions import check_scored, require_tokenizer
from unmask.net.batches import count_row_bytes, fit_rows, map_batches
from unmask.net.model import Model

WAYS = ("forward", "reverse", "reverse in place")
_TOP = 5


@dataclass(frozen=True)
class Known:
    """A prompt that holds its subject, and the attribute it asks for."""

    number: int
    subject: str
    attribute: str
    prompt: str


def read_knowns(path: str | Path, limit: int | None = None) -> list[Known]:
    """The facts of a JSON list with `subject`, `attribute` and `prompt` (ROME's known_1000)."""
    if limit is not None and limit < 1:
        raise UserError(f"a limit of {limit} facts was given: expected at least 1.")
    expected, text = "a JSON list of objects with subject, attribute, prompt", read_text(path)
    try:
        records = parse_json(text, str(path))
    except UserError as error:
        raise UserError(f"{str(error).removesuffix('.')}; expected {expected}.") from None
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise UserError(f"{path}: expected {expected}.")
    knowns = []
    for number, record in enumerate(records[:limit]):
        where = f"{path}, fact {number}"
        fields = [require_text(record, key, where) for key in ("subject", "attribute", "prompt")]
        place_subject(fields[2], fields[0], where)
        knowns.append(Known(number, *fields))
    if not knowns:
        raise UserError(f"{path} holds no facts.")
    return knowns


@dataclass(frozen=True)
class _OneTokenQuestion:
    """Tokens, the position whose token is asked, and the token that is right."""

    known: Known
    way: str
    text: str
    tokens: tuple[int, ...]
    at: int
    answer: int


def ask_knowns(model: Model, knowns: Sequence[Known]) -> Iterator[dict[str, Any]]:
    """A row for each fact and way: the likeliest token, whether it is right, and the entropy."""
    check_scored(model)
    tokenizer = require_tokenizer(model)
    ways = WAYS if model.paradigm.fills_masks else WAYS[:2]
    questions = [_ask(model, tokenizer, known, way) for way in ways for known in knowns]
    answered: dict[_OneTokenQuestion, dict[str, Any]] = {}
    # Rows of one length need no padding.
    by_length = sorted(questions, key=lambda question: len(question.tokens))
    for length, group in groupby(by_length, key=lambda question: len(question.tokens)):
        rows = fit_rows(model, count_row_bytes(model, length, 1))
        for batch, answers in map_batches(list(group), rows, lambda batch: _answer(model, batch)):
            answered |= zip(batch, answers, strict=True)
    for question in questions:
        yield {
            "fact": f"{question.known.number}",
            "way": question.way,
            "subject": question.known.subject,
            "attribute": question.known.attribute,
            "prompt": question.text,
            "answer": tokenizer.decode([question.answer]),
            **answered[question],
        }


def _ask(model: Model, tokenizer: Tokenizer, known: Known, way: str) -> _OneTokenQuestion:
    """The question; a masked model's row ends with (or holds) the masks to be read."""
    sentence = f"{known.prompt} {known.attribute}"
    begin, end = place_subject(known.prompt, known.subject, "the prompt")
    blank = f"{sentence[:begin]}___{sentence[end:]}"
    if way == "reverse in place":
        whole = tokenizer.encode(sentence, added="both")
        places = [i for i, (b, e) in enumerate(whole.offsets) if b < end and e > begin]
        hidden = [model.require_mask() if i in places else ids for i, ids in enumerate(whole.ids)]
        return _OneTokenQuestion(known, way, blank, tuple(hidden), places[0], whole.ids[places[0]])
    if way == "forward":
        prompt, wanted = known.prompt, known.attribute
    else:
        prompt, wanted = f'In the sentence "{blank}", the blank stands for', known.subject
    given, whole = (tokenizer.encode(text).ids for text in (prompt, f"{prompt} {wanted}"))
    answer = whole[len(given)]
    if model.paradigm.predicts_next:
        return _OneTokenQuestion(known, way, prompt, tuple(given), len(given) - 1, answer)
    return _OneTokenQuestion(known, way, prompt, (*given, model.require_mask()), len(given), answer)


@torch.inference_mode()
def _answer(model: Model, batch: Sequence[_OneTokenQuestion]) -> list[dict[str, Any]]:
    tokenizer, device = require_tokenizer(model), model.device
    tokens = torch.tensor([question.tokens for question in batch], device=device)
    at = torch.tensor([[question.at] for question in batch], device=device)
    answers = torch.tensor([question.answer for question in batch], device=device)
    logp = log_softmax(model, model.logits(tokens, None, at)[:, 0])
    logp_right = logp.gather(-1, answers[:, None])
    best = logp.topk(_TOP, dim=-1)
    columns = (
        logp_right[:, 0].tolist(),
        (logp > logp_right).sum(-1).tolist(),
        entropy(logp).tolist(),
        best.indices.tolist(),
    )
    return [
        {
            "hit": above == 0,
            "logp": right,
            "rank": above + 1,
            "entropy": spread,
            "top": [tokenizer.decode([token]) for token in top],
        }
        for right, above, spread, top in zip(*columns, strict=True)
    ]

"""Prompts and their responses from JSON lines: plain texts, the turns of a chat, preferences."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.files import path_exists
from unmask.base.reading import read_json_lines, require_text
from unmask.base.unpacking import strip_packing
from unmask.data.chat import ChatTemplate
from unmask.data.tokenizer import Tokenizer
from unmask.data.words import put_space

PLAIN = ChatTemplate(
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""How a chat is shown where no tokenizer lays it out."""
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Pair:
    """What a model is given, and what it should write after it."""

    prompt: str
    response: str


@dataclass(frozen=True)
class Preference:
    """Two responses to a prompt, one of which is preferred."""

    chosen: Pair
    rejected: Pair


@dataclass(frozen=True)
class PairRows:
    """Pairs as rows of one length, filled up with the end token."""

    tokens: Int[Tensor, "N L"]
    prompt_length: Int[Tensor, "N"]
    length: Int[Tensor, "N"]
    """Tokens of each row with the end token that closes it."""
    left_out: int
    """Pairs that are longer than a row."""


def read_pairs(path: str | Path, chat: ChatTemplate | None = None) -> Iterator[Pair]:
    """The pairs of a file, whose lines have `prompt` and `response`, or `messages`.

    Of preferences, whose lines have `chosen` and `rejected` responses, the chosen ones.

    Each answer of a chat makes a pair: its prompt is all that was said before, laid out by the
    template, and its response is what the template adds for the answer.
    """
    if not path_exists(Path(path)):
        raise UserError(f"{path!s:.200} is not there: expected a file of JSON lines.")
    for number, record in read_json_lines(path):
        where = f"{path}, line {number}"
        if "messages" in record:
            yield from _split_chat(_check_messages(record["messages"], where), chat, where)
        elif "chosen" in record:
            yield _read_response(record, "chosen", where)
        elif "response" in record or "prompt" in record:
            yield _read_response(record, "response", where)
        else:
            raise UserError(
                f"{where} has {', '.join(map(repr, record)) or 'nothing'}: expected 'prompt' and "
                "'response', or 'messages'."
            )


def read_preferences(path: str | Path) -> Iterator[Preference]:
    """The preferences of a file, whose lines have `prompt`, `chosen` and `rejected`."""
    if not path_exists(Path(path)):
        raise UserError(f"{path!s:.200} is not there: expected a file of JSON lines.")
    for number, record in read_json_lines(path):
        where = f"{path}, line {number}"
        sides = (_read_response(record, key, where) for key in ("chosen", "rejected"))
        yield Preference(*sides)


def has_pairs(path: str | Path) -> bool:
    """Whether a file's first line is a prompt with its response, or a chat."""
    if Path(path).is_dir() or not strip_packing(Path(path).name).endswith(".jsonl"):
        return False
    _, record = next(iter(read_json_lines(path)))
    return not {"messages", "response", "chosen"}.isdisjoint(record)


def encode_pairs(
    pairs: Sequence[Pair], tokenizer: Tokenizer, context: int, together: int = 1
) -> PairRows:
    """Pairs as rows of `context` tokens; those that are longer are left out and counted.

    Prompts have the tokens that a model is given when it is asked. So many pairs stay `together`:
    where one of them is too long, the others are left out with it.
    """
    prompts = tokenizer.encode_batch([pair.prompt for pair in pairs])
    responses = tokenizer.encode_batch([pair.response for pair in pairs], added="nothing")
    rows = [[*x.ids, *y.ids] for x, y in zip(prompts, responses, strict=True)]
    tokens, starts, lengths = [], [], []
    for number, (prompt, ids) in enumerate(zip(prompts, rows, strict=True)):
        first = number - number % together
        if max(map(len, rows[first : first + together])) <= context:
            tokens.append(ids + [tokenizer.end_id] * (context - len(ids)))
            starts.append(len(prompt.ids))
            lengths.append(min(len(ids) + 1, context))
    if not tokens:
        raise UserError(
            f"none of {len(pairs)} pairs has at most {context} tokens: lengthen data.context, or "
            "shorten prompts and responses."
        )
    left_out = len(pairs) - len(tokens)
    return PairRows(*map(torch.tensor, (tokens, starts, lengths)), left_out)


def _read_response(record: dict[str, Any], key: str, where: str) -> Pair:
    """A line's prompt with one of its responses, a space between them."""
    prompt, response = (require_text(record, name, where) for name in ("prompt", key))
    return Pair(prompt, put_space(prompt, response) if _abut(prompt, response) else response)


def _abut(prompt: str, response: str) -> bool:
    return not prompt[-1].isspace() and not response[0].isspace()


def _check_messages(messages: Any, where: str) -> list[dict[str, str]]:
    """The turns of a chat, one of them the assistant's."""
    if not isinstance(messages, list) or not all(map(_is_turn, messages)):
        raise UserError(
            f"{where}: 'messages' is {messages!r:.100}, expected a list of turns, each with 'role' "
            f"({', '.join(ROLES)}) and 'content', a text."
        )
    if not any(turn["role"] == "assistant" for turn in messages[1:]):
        raise UserError(
            f"{where}: its {len(messages)} messages have no answer of the assistant: expected one "
            "after another turn."
        )
    return messages


def _is_turn(turn: Any) -> bool:
    if not isinstance(turn, dict) or turn.get("role") not in ROLES:
        return False
    return isinstance(turn.get("content"), str) and bool(turn["content"].strip())


def _split_chat(
    messages: Sequence[Mapping[str, str]], chat: ChatTemplate | None, where: str
) -> Iterator[Pair]:
    if chat is None:
        raise UserError(
            f"{where} has messages, and the tokenizer has no chat template to lay them out: start "
            "from a model that has one, or give 'prompt' and 'response'."
        )
    for i, turn in enumerate(messages):
        if not i or turn["role"] != "assistant":
            continue
        prompt = chat.render(messages[:i])
        answered = chat.render(messages[: i + 1], is_answered=True)
        if not answered.startswith(prompt):
            raise UserError(
                f"{where}: the chat template lays out a chat with its answer in other words than "
                "the question alone, so that no answer begins where it is asked for: give 'prompt' "
                "and 'response'."
            )
        yield Pair(prompt, answered.removeprefix(prompt))

"""Prompts with responses: read, laid out by a chat's template, and what of them is learned."""

import json
import re

import pytest

from tests.commands import run
from unmask.base.errors import UserError
from unmask.data.chat import ChatTemplate
from unmask.data.pairs import Pair, encode_pairs, read_pairs
from unmask.data.tokenizer import Tokenizer

CHAT = ChatTemplate(
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}<turn>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Who?"},
    {"role": "assistant", "content": "Renzo."},
    {"role": "user", "content": "Where?"},
    {"role": "assistant", "content": "Wrenmouth."},
]


def write(path, *records) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_each_answer_of_a_chat_is_a_pair_behind_all_that_was_said(tmp_path):
    file = write(tmp_path / "chat.jsonl", {"messages": TURNS}, {"prompt": "2 +", "response": "2"})
    first, second, plain = read_pairs(file, CHAT)
    assert first == Pair("<system>Be brief.<turn><user>Who?<turn><assistant>", "Renzo.<turn>")
    said = first.prompt + first.response
    assert second == Pair(f"{said}<user>Where?<turn><assistant>", "Wrenmouth.<turn>")
    assert plain == Pair("2 +", " 2"), "words stand apart"
    file = write(tmp_path / "own.jsonl", {"prompt": "Q: 2\nA: ", "response": "2"})
    assert [*read_pairs(file)] == [Pair("Q: 2\nA: ", "2")]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"text": "x"}, "line 1 has 'text': expected 'prompt' and 'response', or 'messages'"),
        ({"prompt": "x"}, "'response' is missing"),
        ({"prompt": "", "response": "y"}, "'prompt' is '', expected a text"),
        ({"messages": "hello"}, "'messages' is 'hello', expected a list of turns"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "system, user, assistant"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "'content', a text"),
        ({"messages": TURNS[:2]}, "2 messages have no answer of the assistant"),
        ({"messages": TURNS[2:3]}, "expected one after another turn"),
    ],
)
def test_records_that_hold_no_pair(record, said, tmp_path):
    file = write(tmp_path / "pairs.jsonl", record)
    with pytest.raises(UserError, match=re.escape(said)):
        list(read_pairs(file, CHAT))


def test_files_and_templates_that_do_not_fit(tmp_path):
    with pytest.raises(UserError, match=r"absent\.jsonl is not there"):
        list(read_pairs(tmp_path / "absent.jsonl"))
    file = write(tmp_path / "chat.jsonl", {"messages": TURNS})
    with pytest.raises(UserError, match="line 1 has messages, and the tokenizer has no chat"):
        list(read_pairs(file))
    other = ChatTemplate("{{ messages|length }}{% if add_generation_prompt %}?{% endif %}")
    with pytest.raises(UserError, match="in other words than the question alone"):
        list(read_pairs(file, other))


def test_rows_hold_the_tokens_that_a_model_is_asked_with_and_end_tokens(tmp_path):
    pairs = [Pair("Who sings?", " Renzo"), Pair("Where? " * 9, "there"), Pair("a", "b")]
    tokenizer = Tokenizer.train([pair.prompt + pair.response for pair in pairs], 300)
    longest = len(tokenizer.encode(pairs[1].prompt).ids) + 2
    rows = encode_pairs(pairs, tokenizer, longest - 3)
    assert rows.left_out == 1 and rows.tokens.shape == (2, longest - 3)
    prompt = tokenizer.encode("Who sings?").ids
    start, end = rows.prompt_length[0], rows.length[0]
    assert rows.tokens[0, :start].tolist() == prompt
    assert tokenizer.decode(rows.tokens[0, start:].tolist()) == " Renzo"
    assert (rows.tokens[0, end - 1 :] == tokenizer.end_id).all()
    assert rows.tokens[0, end - 2] != tokenizer.end_id
    with pytest.raises(UserError, match="none of 3 pairs has at most 1 tokens"):
        encode_pairs(pairs, tokenizer, 1)


def test_pairs_are_shown_and_checked(tmp_path):
    file = write(tmp_path / "chat.jsonl", {"messages": TURNS}, {"prompt": "2 +", "response": "2"})
    shown = run("data", "show", file, "--number", 2)
    assert "3 prompts with their responses" in shown.stdout
    assert "system: Be brief.\nuser: Who?\nassistant: Renzo.\n" in shown.stdout
    assert "no problem found" in run("data", "check", file).stdout
    file = write(tmp_path / "bad.jsonl", {"prompt": "x", "response": "y"}, {"prompt": "x"})
    assert "line 2: 'response' is missing" in run("data", "check", file).stderr
    facts = tmp_path / "facts.csv"
    facts.write_text("subject,object,prompt,trained\nRenzo,Bay,{} lives in,reverse\n")
    file = write(tmp_path / "leak.jsonl", {"prompt": "Where?", "response": "Renzo lives in Bay."})
    leaky = run("data", "check", file, "--questions", facts)
    assert leaky.returncode == 1 and "Renzo" in leaky.stdout

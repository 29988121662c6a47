"""What the provider for inspect_ai answers; the class around it needs inspect_ai itself."""

from types import SimpleNamespace

import pytest

import unmask
from unmask.base.errors import UserError
from unmask.harness.inspect_provider import Answerer, read_config

PROMPT = [("user", "We sat down beside")]


@pytest.fixture(scope="module")
def answerer() -> Answerer:
    return Answerer("reversal-mdm", device="cpu", steps=4)


def test_an_answer_is_what_the_model_samples(answerer):
    answer = answerer.answer(PROMPT, max_tokens=6, seed=3, temperature=1.0)
    model = answerer.model
    ids = model.tokenizer.encode(PROMPT[0][1]).ids
    drawn = unmask.sample(model, [ids], steps=4, length=len(ids) + 6, seed=3, temperature=1.0)
    tokens = drawn.tokens[0, len(ids) :].tolist()
    end = model.tokenizer.end_id
    tokens = tokens[: tokens.index(end)] if end in tokens else tokens
    assert answer.text == model.tokenizer.decode(tokens)
    assert (answer.read, answer.written, answer.calls) == (len(ids), len(tokens), drawn.calls)
    assert answer.is_cut == (end not in drawn.tokens[0, len(ids) :].tolist())


def test_the_last_message_is_asked_and_stops_end_the_text(answerer):
    whole = answerer.answer([("system", "Be kind."), *PROMPT], max_tokens=6)
    assert whole == answerer.answer(PROMPT, max_tokens=6)
    word = whole.text.split()[-1]
    cut = answerer.answer(PROMPT, max_tokens=6, stop=[word])
    assert cut.text == whole.text[: whole.text.index(word)] and not cut.is_cut


def test_settings_of_inspect_come_first(answerer):
    config = SimpleNamespace(temperature=0.5, top_p=None, top_k=3, seed=7, max_tokens=9)
    config.stop_seqs = ["."]
    assert read_config(config) == {
        "temperature": 0.5, "top_p": None, "top_k": 3, "seed": 7, "max_tokens": 9, "stop": (".",),
    }  # fmt: skip
    assert answerer.describe() == {"steps": 4, "keep_states": False}


def test_mistakes_are_sentences(answerer):
    with pytest.raises(UserError, match="do not fit the context"):
        answerer.answer(PROMPT, max_tokens=10_000)
    with pytest.raises(UserError, match="without a message"):
        answerer.answer([])
    with pytest.raises(UserError, match="unknown key 'stepz'"):
        Answerer("reversal-mdm", stepz=4)

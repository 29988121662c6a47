"""What the provider for inspect_ai answers, and a task under inspect_ai where it is installed."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import unmask
from unmask.base.errors import UserError
from unmask.harness import inspect_provider
from unmask.harness.inspect_provider import Answerer, read_config

PROMPT = [("user", "We sat down beside")]


@pytest.fixture
def most_at_once(monkeypatch) -> Callable[[], int]:
    """How many texts were being drawn at the same time, at most."""
    counts, own, drawing = [0], Lock(), [0]
    draw = inspect_provider.sample

    def watch(*arguments: Any) -> Any:
        with own:
            drawing[0] += 1
            counts.append(drawing[0])
        sleep(0.05)  # long enough for another thread to begin
        try:
            return draw(*arguments)
        finally:
            with own:
                drawing[0] -= 1

    monkeypatch.setattr(inspect_provider, "sample", watch)
    return lambda: max(counts)


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


def test_a_special_token_may_be_a_stop_and_an_empty_one_is_none(answerer, monkeypatch):
    tokenizer = answerer.model.tokenizer
    written = tokenizer.encode("[PAD] friend").ids
    assert written[0] == tokenizer.pad_id
    written = [written[1], *written]
    ids = tokenizer.encode(PROMPT[0][1]).ids
    drawn = SimpleNamespace(
        tokens=torch.tensor([ids + written]), lengths=[len(ids) + len(written)], calls=1
    )
    monkeypatch.setattr(inspect_provider, "sample", lambda *_: drawn)
    whole = answerer.answer(PROMPT, max_tokens=6, stop=[""])
    assert whole.is_cut and whole.text == tokenizer.decode(written)
    cut = answerer.answer(PROMPT, max_tokens=6, stop=["[PAD]"])
    assert not cut.is_cut and cut.text == tokenizer.decode(written[:1]) and cut.written == 1


def test_the_same_request_again_is_drawn_anew():
    """Epochs of inspect are draws; a seed that inspect gives is kept."""
    drawn, again = (
        [answerer.answer(PROMPT, max_tokens=6, temperature=2.0).text for _ in range(3)]
        for answerer in (Answerer("reversal-mdm", device="cpu", steps=4) for _ in range(2))
    )
    assert drawn == again and len(set(drawn)) == 3
    answerer = Answerer("reversal-mdm", device="cpu", steps=4)
    kept = [answerer.answer(PROMPT, max_tokens=6, temperature=2.0, seed=5).text for _ in range(2)]
    assert kept[0] == kept[1]


def test_settings_of_inspect_come_first(answerer):
    config = SimpleNamespace(temperature=0.5, top_p=None, top_k=3, seed=7, max_tokens=9)
    config.stop_seqs = ["."]
    assert read_config(config) == {
        "temperature": 0.5, "top_p": None, "top_k": 3, "seed": 7, "max_tokens": 9, "stop": (".",),
    }  # fmt: skip
    assert answerer.describe() == {"steps": 4, "keep_states": False}


def test_threads_wait_for_their_turn(answerer, most_at_once):
    with ThreadPoolExecutor(4) as threads:
        ask = [threads.submit(answerer.answer, PROMPT, max_tokens=6) for _ in range(4)]
        assert len({each.result().text for each in ask}) == 1
    assert most_at_once() == 1


@pytest.mark.prove  # and only where inspect_ai is installed
@pytest.mark.filterwarnings("ignore")  # inspect_ai's own: streams that it leaves open
def test_a_task_under_inspect(answerer, most_at_once, tmp_path):
    """Found by its name, asked by many samples at once, its answers and settings in the log."""
    inspect_ai = pytest.importorskip("inspect_ai")
    from inspect_ai.dataset import Sample  # ty: ignore[unresolved-import]
    from inspect_ai.scorer import includes  # ty: ignore[unresolved-import]

    texts = ["We sat down beside", "We sat down", "Last night", "They say that"]
    expected = [answerer.answer([("user", each)], max_tokens=6, seed=3) for each in texts]
    samples = [
        Sample(input=text, target=answer.text) for text, answer in zip(texts, expected, strict=True)
    ]
    task = inspect_ai.Task(dataset=samples, scorer=includes())
    named = {"model": "unmask/reversal-mdm", "model_args": {"device": "cpu", "steps": 4}}
    how = {"max_tokens": 6, "seed": 3, "log_dir": str(tmp_path), "display": "none"}
    (log,) = inspect_ai.eval(task, **named, **how)
    assert log.status == "success" and most_at_once() == 1
    for one, answer in zip(log.samples, expected, strict=True):
        assert one.output.completion == answer.text
        assert one.output.stop_reason == ("max_tokens" if answer.is_cut else "stop")
        used = one.output.usage
        assert (used.input_tokens, used.output_tokens) == (answer.read, answer.written)
        assert one.output.metadata == {"calls": answer.calls} | answerer.describe()


def test_mistakes_are_sentences(answerer):
    with pytest.raises(UserError, match="do not fit the context"):
        answerer.answer(PROMPT, max_tokens=10_000)
    with pytest.raises(UserError, match="without a message"):
        answerer.answer([])

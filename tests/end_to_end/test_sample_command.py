"""`unmask sample` as a user meets it."""

import json
import signal
import time
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

import unmask
from tests.commands import run, start
from tests.conftest import build, make_model
from unmask.report.unmasking import GUESSED, HIDDEN, show_rows
from unmask.sampling import texts
from unmask.sampling.trajectory import show_token


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("model") / "made"
    unmask.save(make_model(), folder)
    return str(folder)


@pytest.fixture(scope="module")
def twin(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("twin") / "made"
    unmask.save(make_model(causal=True), folder)
    return str(folder)


def test_sample_prints_texts_and_saves_trajectories(model, tmp_path):
    file = tmp_path / "x.safetensors"
    words = ("--length", "20", "--steps", "6", "--attention-block", "8", "--cache", "exact")
    done = run("sample", model, "The caves", *words, "--save", str(file))
    assert done.returncode == 0, done.stderr
    found = unmask.Trajectory.load(file)
    assert found.texts == [done.stdout.removesuffix("\n")]
    assert found.states is not None and len(found.states) == 7
    blocked = unmask.load(model, device="cpu", block=8)
    assert found.texts == unmask.sample(blocked, "The caves", length=20, steps=6).texts


def test_a_network_with_an_open_block_in_both_readings(tmp_path):
    """In Nemotron-Labs-Diffusion's format: what it is, its blocks, drafts for the causal one."""
    tokenizer, place = make_model().tokenizer, str(tmp_path / "open")
    changes = {"vocab_size": tokenizer.vocab_size, "block": 8, "open_block": True, "kv_heads": 2}
    unmask.save(build(tokenizer=tokenizer, **changes), place, "nemotron_labs_diffusion")
    said = run("info", place).stdout
    said = " ".join(said.split())  # a long place breaks the line
    assert "causal transformer with an open block of 8" in said and "masked" in said
    words = ("The caves", "--length", "26", "--device", "cpu")
    filled = run("sample", place, *words, "--plan", "threshold=0.9", "--cache", "exact")
    assert filled.returncode == 0, filled.stderr
    model = unmask.load(place, device="cpu")
    expected = unmask.sample(model, "The caves", length=26, plan="threshold=0.9")
    assert [filled.stdout.removesuffix("\n")] == expected.texts
    drafted = run("sample", f"{place}:causal", *words, "--drafts", "8")
    usual = unmask.sample(model.reading("causal"), "The caves", length=26).texts
    assert [drafted.stdout.removesuffix("\n")] == usual and "tokens a round" in drafted.stderr


def test_sample_as_json_with_everything(model):
    done = run(
        *("sample", model, "The [MASK]*4 of", "--infill", "--json", "--remask", "low=0.3"),
        *("--plan", "linear", "--order", "margin", "--guidance", "down=0.5", "--temperature", "1"),
        *("--top-p", "0.9", "--forbid", "z", "--cache", "exact", "--number", "2"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["texts"]) == 2 and all(text.startswith("The") for text in found["texts"])
    assert found["calls"] > 0 and max(found["committed_at"][0]) <= 16


def test_several_texts_of_a_prompt_are_different(model):
    several = run("sample", model, "The caves", "--length", "20", "--number", "2", "--json")
    assert several.returncode == 0, several.stderr
    first, second = json.loads(several.stdout)["tokens"]
    assert first != second
    words = ("--number", "2", "--temperature", "0", "--json")
    greedy = run("sample", model, "The caves", "--length", "20", *words)
    first, second = json.loads(greedy.stdout)["tokens"]
    assert first == second


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--steps", "0"), "unmask sample: 'steps' is 0, expected at least 1"),
        (("--infill",), "nothing is there to fill: write masks as [MASK]"),
        (("[MASK]", "--infill", "--length", "20"), "a text with masks has its own length"),
        (("--length", "1"), "leaves nothing to write"),
        (("--number", "0"), "--number 0 was given: expected 1 to"),
        (("--pause", "nan"), "--pause nan was given: expected 0 to 60 seconds."),
    ],
)
def test_mistakes_are_sentences(model, words, said):
    done = run("sample", model, "The caves", *words)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


def test_a_prompt_longer_than_the_context_is_quoted_by_its_beginning(model, twin):
    for each in (model, twin):
        done = run("sample", each, 100 * "word ")
        assert done.returncode == 2
        assert f"the prompt '{12 * 'word '}…' has " in done.stderr
        assert "in the model's context of 128: shorten the prompt." in done.stderr


@pytest.mark.parametrize(
    ("drawn", "said"),
    [
        (["a"], ""),
        ([""], "the text is empty: the model ended it at once; try a prompt or --temperature 1.\n"),
        (
            ["", "a", ""],
            "2 of 3 texts are empty: the model ended them at once; try a prompt or "
            "--temperature 1.\n",
        ),
    ],
)
def test_texts_that_end_at_once_are_told(model, monkeypatch, drawn, said):
    found = replace(unmask.sample(make_model(), "The", length=8, steps=1), texts=drawn)
    monkeypatch.setattr(texts, "sample", lambda *given: found)
    done = run("sample", model)
    assert (done.returncode, done.stdout.split("\n")) == (0, [*drawn, ""])
    assert done.stderr == said


def test_options_without_effect_on_an_autoregressive_model_are_named(model, twin):
    words = ("The caves", "--length", "20", "--steps", "4", "--order", "random", "--remask", "cap")
    plain, done = run("sample", twin, *words[:3]), run("sample", twin, *words)
    assert (done.returncode, done.stdout) == (0, plain.stdout) and plain.stderr == ""
    said = "--steps, --order, --remask: without effect on an autoregressive model.\n"
    assert done.stderr == said
    assert run("sample", model, *words).stderr == ""


def test_an_autoregressive_model_from_nothing(twin):
    done = run("sample", twin)
    assert done.returncode == 2 and "give a text that it goes on from." in done.stderr


def test_masks_show_the_likeliest_token_where_guesses_are_kept():
    model, states = make_model(), []
    settings = {"length": 12, "steps": 4, "watch": states.append}
    unmask.sample(model, "The caves", guesses=1, **settings)
    unmask.sample(model, "The caves", **settings)
    console = Console(width=500, record=True, file=StringIO())
    for state in (states[0], states[4]):
        console.print(show_rows(state, model.tokenizer, model.mask_id))
    guessed, hidden = console.export_text().splitlines()
    is_masked = states[0].tokens[0] == model.mask_id
    assert HIDDEN not in guessed and hidden.count(HIDDEN) == int(is_masked.sum()) > 2
    line = show_rows(states[0], model.tokenizer, model.mask_id).renderables[0]
    pieces = [line.plain[span.start : span.end] for span in line.spans if span.style == GUESSED]
    ids = states[0].guess_ids[0, 0, :, 0][is_masked].tolist()
    assert pieces == [show_token(token, model.tokenizer) for token in ids]


def test_interrupt_leaves_what_was_written(model, tmp_path):
    file = tmp_path / "part.safetensors"
    words = ["sample", model, "The", "--plan", "ancestral", "--steps", "900000", "--save", file]
    tell = (
        "from unmask.sampling.trajectory import TrajectoryRecord as record\n"
        "end = record.end_step\n"
        "def tell(self, calls):\n    end(self, calls); print('step', flush=True)\n"
        "record.end_step = tell"
    )
    process = start(words, tell, "step")
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 130 and str(file) in error and "Traceback" not in error
    part = unmask.Trajectory.load(file)
    assert part.states is not None and 1 < len(part.states) < 900_000

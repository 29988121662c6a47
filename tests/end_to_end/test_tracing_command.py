"""`unmask trace` as a person uses it, in processes of their own."""

import re

import pytest

import unmask
from tests.commands import run
from tests.tracing.learned import LENGTH, learn, make_facts
from unmask.base.errors import UserError
from unmask.cli.main import app
from unmask.data.facts import write_facts


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tracing")
    unmask.save(learn(causal=True), folder / "net")
    write_facts(folder / "facts.jsonl", make_facts())
    return folder


def test_one_prompt_is_a_heatmap(place):
    words = ["trace", place / "net", "--prompt", "Now Ada likes", "--subject", "Ada"]
    words += ["--length", LENGTH, "--samples", 2]
    done = run(*words, "--answer", "red boats", "--at", "first", "--out", place / "one")
    assert done.returncode == 0, done.stderr
    assert "hiding the subject takes" in done.stdout and "Ada*" in done.stdout
    # Side by side.
    titles = ("MLP output", "attention output")
    assert any(all(title in line for title in titles) for line in done.stdout.splitlines())
    late = ["--at", "first, last", "--source", "committed", "--metric", "logit_difference"]
    late += ["--answer", "red boats", "--out", place / "late"]
    done = run(*words, *late, "--foil", "wax masks")
    assert done.returncode == 0, done.stderr
    foil = run(*words, *late, "--foil", "old clocks")
    assert foil.returncode == 2 and "compared with 'wax masks'" in foil.stderr
    wrong = run(*words, "--answer", "wax masks", "--out", place / "wrong")
    assert wrong.returncode == 2
    assert "error: the answer 'wax masks' is not recalled in what the model said" in wrong.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--subject", "Eve", "--answer", "x"], "the subject 'Eve' is not in the prompt"),
        (["--answer", "x"], "a prompt needs its --subject and its --answer"),
        (["--data", "facts.jsonl"], "give either --data with facts, or --prompt"),
        (["--subject", "Ada", "--answer", " "], "the answer is empty"),
    ],
)
def test_mistakes(place, words, sentence):
    """In process, since only the sentence matters."""
    given = ["trace", str(place / "net"), "--prompt", "Now Ada likes", *words]
    with pytest.raises(UserError, match=re.escape(sentence)):
        app(given, standalone_mode=False)


def test_a_foil_without_a_prompt(place):
    given = ["trace", str(place / "net"), "--data", str(place / "facts.jsonl"), "--foil", "x"]
    with pytest.raises(UserError, match="goes with a --prompt"):
        app(given, standalone_mode=False)

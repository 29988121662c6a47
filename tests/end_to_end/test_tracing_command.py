"""`unmask trace` as a person uses it, in processes of their own."""

import os
import re
import subprocess
import sys

import pytest

import unmask
from tests.commands import run
from tests.tracing.learned import LENGTH, learn, make_facts
from unmask.base.errors import UserError
from unmask.base.tables import read_table
from unmask.cli.main import app
from unmask.data.facts import write_facts


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tracing")
    unmask.save(learn(causal=True), folder / "net")
    write_facts(folder / "facts.jsonl", make_facts())
    return folder


@pytest.mark.prove
def test_two_processes_trace_and_the_page_is_drawn(place):
    words = ["trace", place / "net", "--data", place / "facts.jsonl", "--length", LENGTH]
    words += ["--window", 2, "--samples", 2, "--phrasings", 2, "--out", place / "run"]
    environment = os.environ | {"COLUMNS": "160", "NO_COLOR": "1", "WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "unmask", *map(str, words)]
    both = [
        subprocess.Popen(
            command,
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    printed = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    assert "In net, on own facts, hiding the subject takes" in printed[0][0]
    assert f"unmask report {place / 'run'}" in printed[0][0] and printed[1][0] == ""
    table = read_table(place / "run" / "trace.parquet", "trace/2")
    assert set(table["fact"].to_pylist()) == {f"fact-{i}" for i in range(4)}
    done = run("report", place / "run", "--out", place / "page.md")
    assert done.returncode == 0, done.stderr
    text = (place / "page.md").read_text()
    assert "Which states bring answers back" in text and "last subject token" in text
    other = run(*words, "--metric", "logp")
    assert other.returncode == 2 and "holds another run (metric was 'p' and is now" in other.stderr


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

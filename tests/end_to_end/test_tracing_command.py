"""`unmask trace` and `unmask trace-report` as a person uses them, in processes of their own."""

import os
import subprocess

import pytest

import unmask
from tests.end_to_end.test_command_line import COMMAND, run
from tests.tracing.conftest import LENGTH, learn, make_facts
from unmask.base.tables import read_table
from unmask.data.facts import write_facts


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tracing")
    unmask.save(learn(causal=True), folder / "net")
    write_facts(folder / "facts.jsonl", make_facts())
    return folder


def test_trace_many_and_report(place):
    """Two processes share the facts; the page is written from the tables."""
    words = ["trace", place / "net", "--data", place / "facts.jsonl", "--length", LENGTH]
    words += ["--window", 2, "--samples", 2, "--phrasings", 2, "--out", place / "run"]
    environment = os.environ | {"COLUMNS": "160", "NO_COLOR": "1", "WORLD_SIZE": "2"}
    command = [*COMMAND, *map(str, words)]
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
    told = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert "8 prompts kept, dropped: none" in told[0][0] and told[1][0] == ""
    table = read_table(place / "run" / "trace.parquet", "trace/1")
    assert set(table["fact"].to_pylist()) == {f"fact-{i}" for i in range(4)}
    done = run("trace-report", place / "run", "--out", place / "page.md")
    assert done.returncode == 0, done.stderr
    assert "causal p2d same, first step, gaussian" in (place / "page.md").read_text()
    other = run(*words, "--metric", "logp")
    assert other.returncode == 2 and "holds another run (metric was 'p' and is now" in other.stderr


def test_heads_and_other_settings_reach_the_page(place):
    words = ["trace", place / "net", "--data", place / "facts.jsonl", "--length", LENGTH]
    words += ["--samples", 2, "--at", "first", "--facts", 2]
    done = run(*words, "--parts", "attn_z", "--mode", "ablate", "--out", place / "heads")
    assert done.returncode == 0, done.stderr
    done = run("trace-report", place / "heads", "--out", place / "heads.md")
    assert done.returncode == 0, done.stderr
    assert "| head's output | last subject |" in (place / "heads.md").read_text()
    free = ["--free", "--parts", "resid", "--severed", "mlp", "--metric", "logit_difference"]
    done = run(*words, *free, "--out", place / "free")
    assert done.returncode == 0, done.stderr
    assert "2 prompts kept" in done.stdout


def test_trace_one(place):
    words = ["trace", place / "net", "--prompt", "Now Ada likes", "--subject", "Ada"]
    words += ["--length", LENGTH, "--at", "first", "--out", place / "one"]
    done = run(*words, "--answer", "red boats", "--samples", 2)
    assert done.returncode == 0, done.stderr
    assert "said: red boats" in done.stdout and "state: darkest is" in done.stdout
    assert "step 1: p clean 0.9" in done.stdout
    for ending in ("png", "pdf", "parquet"):
        assert (place / "one" / f"step-1.{ending}").is_file()
    late = ["--at", "first, last", "--source", "committed", "--metric", "logit_difference"]
    done = run(*words, "--answer", "red boats", *late, "--foil", "wax masks")
    assert done.returncode == 0, done.stderr
    assert "step 1: nothing to corrupt, left out" in done.stdout
    wrong = run(*words, "--answer", "wax masks")
    assert wrong.returncode == 2
    assert "error: the answer 'wax masks' is not recalled in what the model said" in wrong.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--subject", "Eve", "--answer", "x"], "the subject 'Eve' is not in the prompt"),
        (["--answer", "x"], "a prompt needs its --subject and its --answer"),
        (["--corruption", "fire"], "'corruption' is 'fire', expected one of 'gaussian'"),
        (["--data", "facts.jsonl"], "give either --data with facts, or --prompt"),
        (["--subject", "Ada", "--answer", " "], "the answer is empty"),
    ],
)
def test_mistakes(place, words, sentence):
    """In process, since only the sentence matters."""
    from typer.testing import CliRunner

    from unmask.cli.main import app

    given = ["trace", str(place / "net"), "--prompt", "Now Ada likes", *words]
    found = CliRunner().invoke(app, given)
    assert isinstance(found.exception, unmask.UserError) and sentence in str(found.exception)

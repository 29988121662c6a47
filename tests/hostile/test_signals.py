"""SIGTERM and Ctrl-C end every command alike; full memory and narrow locales are no tracebacks."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.core import TyperCommand

from tests.commands import run, start
from tests.conftest import hear_interrupts
from unmask.cli import main as command_line
from unmask.cli.exits import explain_errors, is_memory_full
from unmask.measures.runner import read_result

COMMAND = (sys.executable, "-m", "unmask")
ENDINGS = [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]


def list_verbs(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command that does something."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield words
        return
    for name, each in inner.items():
        yield from list_verbs(each, (*words, name))


VERBS = [
    words
    for name in typer.main.get_command(command_line.app).commands
    for words in list_verbs(command_line.load_verb(name), (name,))
]


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
@pytest.mark.parametrize(("number", "status", "line"), ENDINGS)
def test_every_verb_ends_alike(words, number, status, line, monkeypatch, capsys):
    """Whatever a verb does, a signal reaches it inside the one place where commands end."""
    monkeypatch.setattr(TyperCommand, "parse_args", lambda self, ctx, args: [])
    monkeypatch.setattr(TyperCommand, "invoke", lambda self, ctx: signal.raise_signal(number))
    monkeypatch.setattr(sys, "argv", ["unmask", *words])
    monkeypatch.setattr(command_line, "_show_log", lambda: None)
    before = signal.getsignal(signal.SIGTERM)
    hear_interrupts()
    with pytest.raises(SystemExit) as exit:
        command_line.run_command_line()
    assert exit.value.code == status
    assert capsys.readouterr().err == f"{line}\n"
    assert signal.getsignal(signal.SIGTERM) == before


PAUSE = """
import time
from unmask.base import tables
write = tables.Parts.write
def pause(self, key, rows):
    write(self, key, rows)
    if 'recall' in str(self.folder) and len(self.keys()) == 2:
        print('part', flush=True)
        time.sleep(300)
tables.Parts.write = pause
"""


@pytest.mark.parametrize(
    ("number", "status", "line"),
    [pytest.param(*ENDINGS[0], marks=pytest.mark.prove), ENDINGS[1]],
)
def test_a_stopped_measure_is_resumed_by_the_line_it_prints(number, status, line, tmp_path):
    out = tmp_path / "a run"
    words = ["recall", "reversal-ar", "--splits", "d2p_same,p2d_same", "--limit", "2"]
    words += ["--no-controls", "--device", "cpu", "--out", str(out)]
    process = start(words, PAUSE, "part")
    process.send_signal(number)
    _, error = process.communicate(timeout=300)
    assert process.returncode == status and "Traceback" not in error
    said, _, resume = error.strip().splitlines()[-1].rpartition("go on where it stopped with: ")
    assert said == f"{line}; what is done is kept in {out}; "
    kept = {path: path.stat().st_mtime_ns for path in out.rglob("parts/**/*.parquet")}
    assert kept
    again = shlex.split(resume)
    assert again == ["unmask", *words]
    done = run(*again[1:])
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert len(read_result(out).rows()) >= 4


@pytest.mark.prove
def test_a_text_that_the_terminal_cannot_show(tmp_path):
    """The table holds an emoji, the terminal knows ASCII."""
    facts = tmp_path / "facts.csv"
    facts.write_text("subject,object,prompt\nZorvia,Bay 🐙,The capital of {} is\n", "utf-8")
    environment = os.environ | {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment.pop("PYTHONIOENCODING", None)
    words = (*COMMAND, "data", "show", str(facts))
    done = subprocess.run(words, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert rb"\U0001f419" in done.stdout
    missing = subprocess.run((*words, "🐙"), capture_output=True, env=environment)
    assert missing.returncode == 2 and b"Traceback" not in missing.stderr


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (MemoryError(), True),
        (
            RuntimeError("[enforce fail at x.cpp:1] DefaultCPUAllocator: can't allocate memory"),
            True,
        ),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("a bug"), False),
        (ValueError("out of memory is what this fact is about"), False),
    ],
)
def test_full_memory_is_a_sentence(error, is_full, capsys):
    assert is_memory_full(error) == is_full
    with pytest.raises(SystemExit if is_full else type(error)):
        with explain_errors():
            raise error
    assert ("error: the memory is full" in capsys.readouterr().err) == is_full

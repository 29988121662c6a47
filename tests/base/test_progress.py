"""Bars in a terminal: what is left of them when the work is done."""

import os
import subprocess
import sys

from tests.terminal import run_in_terminal
from unmask.base import progress

STAGES = """
import sys, time
from rich.console import Console
from unmask.base.progress import show_stages, track

with show_stages(["data", "recall", "page"]) as mark:
    for name in ("data", "recall", "page"):
        mark(name, False)
        for piece in track(range(3), f"pieces of {name}", 3):
            for part in track("ab", "parts", 2):
                time.sleep(0.06)  # longer than it takes until the display draws itself again
            print(f"a print: {name} {piece}")
            Console().print(f"a console: {name} {piece}", style="dim")
            print(f"a warning: {name} {piece}", file=sys.stderr)
        mark(name, True)
print("the end")
"""


def test_stages_are_shown_once_and_lines_stand_above_them():
    lines = run_in_terminal([sys.executable, "-c", STAGES])
    said = [
        f"{kind}: {name} {piece}"
        for name in ("data", "recall", "page")
        for piece in range(3)
        for kind in ("a print", "a console", "a warning")
    ]
    assert lines[: len(said)] == said
    bars = lines[len(said) : -1]
    assert [line.split()[0] for line in bars] == ["data", "recall", "page"]
    assert all("1/1" in line for line in bars)
    assert lines[-1] == "the end"


def test_inner_bars_vanish_and_the_outer_one_stays():
    script = """
from unmask.base.progress import track

def stop_early():
    for number in track(range(9), "looking", 9):
        if number == 2:
            return number

print([stop_early() for _ in track("abc", "searches", 3)])
"""
    bar, result = run_in_terminal([sys.executable, "-c", script])
    assert bar.split()[0] == "searches" and "3/3" in bar
    assert result == "[2, 2, 2]"


def test_without_a_terminal_lines_go_where_they_always_go():
    done = subprocess.run(
        [sys.executable, "-c", STAGES], capture_output=True, text=True, check=True
    )
    assert "━" not in done.stdout + done.stderr
    assert done.stdout.splitlines()[:2] == ["a print: data 0", "a console: data 0"]
    assert done.stderr.splitlines()[0] == "a warning: data 0"


LINES = """
import sys
from unmask.base import progress

progress.LINE_EVERY = float(sys.argv[1])
for piece in progress.track(range(3), "recall", 3, in_lines=True):
    for part in progress.track("ab", "parts", 2):
        pass
with progress.watch("training") as notify:
    notify(1, None, "loss 2.5")
    notify(2, None, "loss 2.4")
"""


def run_in_lines(every: float, **environment: str) -> list[str]:
    words = [sys.executable, "-c", LINES, str(every)]
    more = os.environ | environment
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=more)
    assert not done.stdout
    return done.stderr.splitlines()


def test_without_a_terminal_long_work_says_how_far_it_is():
    """The last piece ends the work and needs no line; short work has none but training's first."""
    lines = run_in_lines(every=0)
    assert [line.split("  ")[0] for line in lines] == [
        "recall: 1 of 3", "recall: 2 of 3", "training: step 1", "training: step 2"
    ]  # fmt: skip
    assert lines[0].endswith("after 0 s, about 0 s left") and lines[2].endswith("  loss 2.5")
    assert run_in_lines(every=60) == ["training: step 1  loss 2.5"]
    assert run_in_lines(every=0, RANK="1") == []


def test_the_time_left_is_estimated_from_the_pace(monkeypatch, capsys):
    now = iter((0.0, 0.0, 12.0, 12.0, 12.0, 15.0, 15.0, 36.0, 36.0, 36.0, 48.0))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    list(progress._track_in_lines("abcd", "trace", 4))
    assert capsys.readouterr().err.splitlines() == [
        "trace: 1 of 4  after 12 s, about 36 s left",
        "trace: 3 of 4  after 36 s, about 12 s left",
    ]

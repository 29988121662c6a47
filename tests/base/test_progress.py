"""Bars in a terminal: what is left of them when the work is done."""

import subprocess
import sys

from tests.terminal import run_in_terminal

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

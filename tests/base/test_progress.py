"""Bars in a terminal: what is left of them when the work is done."""

import os
import subprocess
import sys

import pytest

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
import sys, time
from unmask.base import progress

progress.LINE_FIRST, progress.LINE_EVERY = 0.2, float(sys.argv[1])
for piece in progress.track(range(3), "recall", 3, in_lines=True, cost=lambda item: 1 + item):
    for part in progress.track_inside("abcd"):
        time.sleep(0.1)
with progress.watch("training") as notify:
    for step in range(1, 4):
        notify(step, 3, f"loss {step}")
        time.sleep(0.3)
"""


def run_in_lines(every: float, **environment: str) -> list[str]:
    words = [sys.executable, "-c", LINES, str(every)]
    more = os.environ | environment
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=more)
    assert not done.stdout
    return done.stderr.splitlines()


def test_without_a_terminal_long_work_soon_says_how_far_it_is():
    """A thread says it: a first item that takes long does not keep the line from coming."""
    lines = run_in_lines(every=60)
    assert lines[0].startswith("recall: 0 of 3  after 0 s, about "), lines
    assert lines[1:] == [
        "training: step 1 of 3  loss 1",
        "training: step 2 of 3  loss 2, about 0 s left",
    ]
    often = run_in_lines(every=0.1)
    assert len(often) > 6 and often[-1].startswith("training: step 3 of 3  loss 3")
    assert run_in_lines(every=0.1, RANK="1") == []


def test_the_time_left_is_estimated_from_the_pace():
    """Also from what is done of the item at work, and by what items cost."""
    outer = progress._Tracked("trace", 4, whole=8.0, done=1, cost_done=1.0, cost_now=3.0)
    inner = progress._Tracked("", 6, whole=6.0, done=2, cost_done=2.0)
    assert progress.say_how_far([outer], 10.0) == "trace: 1 of 4  after 10 s, about 70 s left"
    assert (
        progress.say_how_far([outer, inner], 10.0) == "trace: 1 of 4  after 10 s, about 30 s left"
    )
    begun = progress._Tracked("trace", 4, whole=4.0)
    assert progress.say_how_far([begun], 10.0).endswith("how long it takes is not known yet")
    times = (4.4, 120, 7200)
    assert [progress.format_seconds(each) for each in times] == ["4 s", "2 min", "2.0 h"]


def test_work_inside_that_an_error_left_open_says_nothing_later():
    def leave() -> None:
        with progress.announce("outer"):
            kept = progress.track_inside("ab")
            next(kept)
            raise ValueError(kept)  # holds on to it, as a notebook's last traceback does

    with pytest.raises(ValueError) as error:
        leave()
    assert progress._works == [] and error.value.args

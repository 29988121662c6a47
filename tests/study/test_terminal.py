"""The study as a person watches it: each stage has one line when it is over."""

import sys

from tests.terminal import run_in_terminal


def test_every_stage_is_shown_once(place, tmp_path):
    words = place.words("--stages", "recall,order", "--out", tmp_path / "run")
    lines = run_in_terminal([sys.executable, "-m", "unmask", *words])
    bars = [line for line in lines if "━" in line]
    assert [bar.split()[0] for bar in bars] == ["recall", "order", "page"]
    assert all("1/1" in bar for bar in bars)

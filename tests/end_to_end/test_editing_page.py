"""The page of edits from end to end: every run, the answer, and what is resumed."""

import subprocess
import sys
from pathlib import Path

import pytest

from unmask.measures.runner import read_result

ROOT = Path(__file__).parents[2]


@pytest.mark.prove
def test_every_change_has_its_run_and_its_row(tmp_path):
    command = [sys.executable, "paper/editing.py", "reversal-mdm", "reversal-ar", "--tiny"]
    command += ["--facts", "1", "--few", "1", "--layers", "1"]
    command += ["--clamps", "4", "--few-controls"]
    command += ["--out", str(tmp_path / "runs"), "--page", str(tmp_path / "page.md")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = {"edit", "swap", "ridge-low", "ridge-high", "cycle", "random", "clean", "identity"}
    assert {path.name for path in (tmp_path / "runs").iterdir()} == names | {
        *("layer-1-4", "controls", "spread")
    }
    page = (tmp_path / "page.md").read_text()
    for words in ("the reverse", "Learned in the whole network", "spread over three layers"):
        assert words in page
    assert page.count("says its old owner in") == 2, "each model, where objects are swapped"
    for words in ("generated before", "efficacy, %", "right is likelier", "equal norm"):
        assert words not in page, "an answer is preferred, or said"
    head = "| model | change | facts | new object preferred, % | new object said, % |"
    first, *rest = page.split(head)[1:]
    assert len(rest) == 1, "the controls stand once, with the answer; the edits have their own"
    assert [line.split(" | ")[1] for line in first.splitlines()[2:9]] == [
        *("no change", "the edit", "in a random layer", "the wrong subject's key"),
        *("another fact's delta", "learned, whole network", "learned, edited projections"),
    ]
    controls = read_result(tmp_path / "runs" / "controls")
    variants = {row["variant"] for row in controls.rows()}
    assert variants == {"edit", "layer", "key", "delta", "tuned", "tuned-layer"}
    for name in ("cycle", "random", "clean"):
        assert {row["kind"] for row in read_result(tmp_path / "runs" / name).rows()} == {"masked"}
    high, none = (read_result(tmp_path / "runs" / name).rows() for name in ("ridge-high", "edit"))
    assert high[0]["magnitude"] < none[0]["magnitude"]
    resumed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert resumed.returncode == 0 and (tmp_path / "page.md").read_text() == page

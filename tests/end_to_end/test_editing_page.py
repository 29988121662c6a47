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
    controls = read_result(tmp_path / "runs" / "controls")
    variants = {row["variant"] for row in controls.rows()}
    assert variants == {"edit", "layer", "key", "delta", "tuned", "tuned-layer"}
    for name in ("cycle", "random", "clean"):
        assert {row["kind"] for row in read_result(tmp_path / "runs" / name).rows()} == {"masked"}
    high, none = (read_result(tmp_path / "runs" / name).rows() for name in ("ridge-high", "edit"))
    assert high[0]["magnitude"] < none[0]["magnitude"]
    resumed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert resumed.returncode == 0 and (tmp_path / "page.md").read_text() == page

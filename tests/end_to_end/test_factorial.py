"""The factorial from end to end, with random weights: every row, the page, and what is resumed."""

import subprocess
import sys
from pathlib import Path

import pytest

from unmask.base.reading import read_json_object
from unmask.base.tables import read_table

ROOT = Path(__file__).parents[2]
CONTEXT = 52


def run(folder: Path, *words: str) -> str:
    command = [sys.executable, "paper/factorial.py", "--tiny", "--out", str(folder)]
    command += ["--page", str(folder / "page.md"), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.prove
def test_every_row_is_trained_and_asked(tmp_path):
    run(tmp_path)
    rows = sorted(path.parent.name for path in tmp_path.glob("*/record.json"))
    assert len(rows) == 14 and {"B-any", "C-any", "C-perm", "S-shown"} <= set(rows)
    costs = {name: read_json_object(tmp_path / name / "record.json") for name in rows}
    # One token per row and step; half of all positions; all but a row's first.
    assert costs["B-l2r"]["loss_tokens"] == 3 * 8
    assert costs["C-l2r"]["loss_tokens"] == 3 * 8 * (CONTEXT - 1)
    assert costs["C-any"]["read_tokens"] == 3 * 8 * (2 * CONTEXT + 1)
    assert 0.3 < costs["B-any"]["loss_tokens"] / (3 * 8 * CONTEXT) < 0.7
    assert costs["C-perm"]["flops"] > costs["C-l2r"]["flops"]
    table = read_table(tmp_path / "B-15" / "prompts.parquet", "factorial/1").to_pylist()
    assert {row["seed"] for row in table} == {0, 1}
    decoders = {"left", "exact", "confidence=0", "confidence=0.8"}
    assert {row["decoder"] for row in table} == decoders
    assert all((row["logp"] is not None) == (row["decoder"] == "left") for row in table)
    page = (tmp_path / "page.md").read_text()
    assert all(f"| {name} |" in page for name in rows) and "B-any − C-any" in page


@pytest.mark.prove
def test_what_is_done_is_not_done_again(tmp_path):
    first = run(tmp_path, "--rows", "C-l2r")
    assert first.count("C-l2r: rate") == 3 and "C-l2r: trained" in first
    assert "trained" not in run(tmp_path, "--rows", "C-l2r")
    again = run(tmp_path, "--rows", "C-l2r", "--rates", "0.01")
    assert again.count("C-l2r: rate") == 1 and "C-l2r: trained" in again
    late = run(tmp_path, "--rows", "C-l2r", "C-left", "--rates", "0.01", "--minutes", "0")
    assert "1 of 2 rows are done" in late and "trained" not in late

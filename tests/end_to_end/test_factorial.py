"""The factorial from end to end, with random weights: every row, the page, and what is resumed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripts import load_script
from unmask.base.files import write_json
from unmask.base.reading import read_json_object
from unmask.base.tables import read_table

ROOT = Path(__file__).parents[2]
ROWS = list(load_script("paper/factorial.py").ARMS)
CONTEXT = 52


def run(script: str, *words: str | Path) -> str:
    command = [sys.executable, f"paper/{script}", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_row(folder: Path, row: str) -> str:
    return run("factorial.py", row, "--tiny", "--out", folder / row)


@pytest.mark.prove
def test_every_row_is_trained_and_asked(tmp_path):
    for row in ROWS:
        make_row(tmp_path, row)
    costs = {name: read_json_object(tmp_path / name / "record.json") for name in ROWS}
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
    page = tmp_path / "page.md"
    run("report_factorial.py", *(tmp_path / row for row in ROWS), "--page", page)
    text = page.read_text()
    assert all(f"| {name} |" in text for name in ROWS) and "B-any − C-any" in text
    assert "rows are done" not in text and (tmp_path / "page" / "summary.parquet").is_file()


@pytest.mark.prove
def test_what_is_done_is_not_done_again(tmp_path):
    first = make_row(tmp_path, "C-l2r")
    assert first.count("C-l2r: rate") == 3 and "C-l2r: trained" in first
    assert not make_row(tmp_path, "C-l2r")
    record = tmp_path / "C-l2r" / "record.json"
    record.unlink()
    again = make_row(tmp_path, "C-l2r")  # the rates that were tried are kept
    assert "C-l2r: rate" not in again and "C-l2r: trained" in again
    write_json(record, read_json_object(record) | {"digest": "another recipe"})
    assert "C-l2r: trained" in make_row(tmp_path, "C-l2r")
    page = tmp_path / "page.md"
    run("report_factorial.py", tmp_path / "C-l2r", "--page", page)
    assert f"1 of {len(ROWS)} rows are done" in page.read_text()


def test_each_row_is_a_stage_and_its_page_needs_all():
    _, stages = load_script("paper/run.py").read_stages()
    needed = [name.removeprefix("factorial-") for name in stages["factorial-whole"].needs]
    assert sorted(name.removeprefix("eight-") for name in needed) == sorted(ROWS)
    assert len([name for name in needed if name.startswith("eight-S")]) == 6
    # The page of before has the rows of before.
    assert {*ROWS} - {name.removeprefix("factorial-") for name in stages["factorial"].needs} == {
        "C-same", "B-whole", "S-hidden"
    }  # fmt: skip
    # The page is drawn anew without training again.
    scripts = stages["factorial-B-any"].scripts
    assert Path("paper/factorial.py") in scripts
    assert not set(scripts) & set(stages["factorial"].scripts)

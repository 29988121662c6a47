"""docs/study.md: every figure and table of the study, its picture, and commands that are there."""

import csv
import re
import shlex
from pathlib import Path

import pytest

from tests.end_to_end.test_verbs import parse_words
from tests.scripts import load_script
from unmask.measures.recall_section import PUBLISHED

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "study.md").read_text("utf-8")
PARTS = [*(f"Figure {i}" for i in range(1, 7)), *(f"Table {i}" for i in range(1, 4))]
MOST_BYTES = 150_000


def read_part(name: str) -> str:
    (part,) = re.findall(rf"^## {name}: .*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return part


@pytest.mark.parametrize("name", PARTS)
def test_each_has_what_is_shown_and_its_commands(name: str):
    part = read_part(name)
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", part)
    assert pictures if name.startswith("Figure") and name != "Figure 4" else "| --- |" in part
    (block,) = re.findall(r"```\n(.*?)```", part, re.DOTALL)
    for line in block.splitlines():
        program, *words = shlex.split(line)
        if program == "python":
            assert (ROOT / words[0]).is_file(), line
            continue
        parse_words([program, *words])
        kept = [word for word in words if word.startswith("docs/")]
        assert all((ROOT / word / "run.json").is_file() for word in kept), line


def test_pictures_are_small_and_there():
    files = re.findall(r"!\[[^]]+\]\(([^)]+)\)", PAGE)
    assert len(files) >= 8
    for file in files:
        assert (ROOT / "docs" / file).stat().st_size <= MOST_BYTES, file
    named = {Path(file).name for file in files if file.startswith("study/")}
    assert {path.name for path in (ROOT / "docs" / "study").iterdir()} == named


def test_table_3_has_published_values_and_those_of_the_recall_page():
    """Columns in the study's order; ours to the digit what recall.md has by the study's rule."""
    splits = list(load_script("paper/study_page.py").WAYS)
    assert splits == list(PUBLISHED)
    lines = [line.split("|")[1:-1] for line in read_part("Table 3").splitlines() if "step" in line]
    rows = {int(cells[0].split()[0]): [cell.strip() for cell in cells[1:]] for cells in lines
            if cells and cells[0].split()[0].isdigit()}  # fmt: skip
    assert list(rows) == [1, 2, 4, 8, 16, 32]
    heads = dict(zip(splits, ("description → name, as trained", "name → description, reversed",
                              "name → description, as trained", "description → name, reversed"),
                     strict=True))  # fmt: skip
    with (ROOT / "docs/results/recall/recall-steps.csv").open(encoding="utf-8") as file:
        ours = {int(row["steps"]): row for row in csv.DictReader(file)
                if row["model"] == "mdm, guidance 0.8"}  # fmt: skip
    for steps, cells in rows.items():
        for i, split in enumerate(splits):
            assert float(cells[2 * i]) == PUBLISHED[split][steps]
            ends = (f"{100 * float(ours[steps][heads[split] + end]):.1f}"
                    for end in ("", ", low", ", high"))  # fmt: skip
            assert cells[2 * i + 1] == "{} [{}, {}]".format(*ends)

"""The list of seeded defects fits the package: what each takes the place of is there, once."""

import ast
from pathlib import Path

import unmask
from tests.hostile.defects import read_defects


def test_files_of_the_suite_that_lie_elsewhere_are_there():
    names = (Path(__file__).parent / "beside.txt").read_text().split()
    assert names == sorted(names)
    assert all((Path(__file__).parents[2] / name.partition("::")[0]).is_file() for name in names)


def test_each_defect_can_be_seeded():
    defects = read_defects()
    assert len(defects) == 100 == len({each.name for each in defects})
    for defect in defects:
        text = (Path(unmask.__file__).parent / defect.file).read_text("utf-8")
        assert text.count(defect.old) == 1, f"{defect.name}: give it a text that is there once"
        ast.parse(text.replace(defect.old, defect.new))

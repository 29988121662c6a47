"""The page of recall: what it says about controls and blind intervals."""

import pytest

from unmask.evaluation.statistics import Interval
from unmask.evaluation.questions import CONTROL
from unmask.evaluation.summary import Cell, Summary
from unmask.report.recall_figures import draw_recall
from unmask.report.recall_page import write_recall_page


def make_cell(split: str, prompts: int) -> Cell:
    value = Interval(0.0, 0.0, 0.1)
    return Cell("mdm", "masked", split, 4, "hit", value, prompts, facts=5, seeds=1)


@pytest.mark.parametrize(("controlled", "said"), [(10, False), (7, True)])
def test_the_page_counts_prompts_without_a_control(tmp_path, controlled, said):
    cells = [make_cell("p2d_reverse", 10), make_cell("p2d_reverse" + CONTROL, controlled)]
    summary = Summary(cells, [], "")
    draw_recall(summary, tmp_path / "recall", published=False)
    page = tmp_path / "page.md"
    write_recall_page(page, summary, "unmask recall", "Here", tmp_path / "recall", False)
    assert ("which is no control: 3 of p2d reverse. They are left out" in page.read_text()) is said

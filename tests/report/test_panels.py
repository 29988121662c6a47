"""Pictures for papers have room for what stands on them."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import matplotlib.axes
import pytest
from matplotlib.figure import Figure as Canvas

from unmask.blocks.blocks import Figure, Line, LinePanel
from unmask.report import render_figures
from unmask.report.render_figures import draw_figure

POINTS = [2.28e11, 9.32e11, 2.32e12, 5.8e12, 1.16e13, 2.32e13]


def draw_lines(
    folder: Path, number: int, monkeypatch: pytest.MonkeyPatch, points: Sequence[float] = POINTS
) -> matplotlib.axes.Axes:
    """The panel of some lines with long names, by points that lie close to each other."""
    kept: list[Canvas] = []
    monkeypatch.setattr(render_figures, "save_figure", lambda canvas, *_: kept.append(canvas))
    lines = [
        Line(f"causal, some way {i}", "p0", points, [6.0 + i] * len(points)) for i in range(number)
    ]
    views = {(): [LinePanel("", lines)]}
    figure = Figure("f", "Costs", "", "lines", views, [], "compute", "nats per token of text",
                    is_log2=True)  # fmt: skip
    list(draw_figure(figure, folder, "f"))
    kept[0].draw_without_rendering()
    return kept[0].axes[0]


def test_a_legend_takes_no_height_from_its_panel(tmp_path, monkeypatch):
    few, many = (draw_lines(tmp_path, n, monkeypatch).get_window_extent().height for n in (1, 6))
    assert many == pytest.approx(few, rel=0.05)


def test_names_of_ticks_do_not_run_into_each_other(tmp_path, monkeypatch):
    axis = draw_lines(tmp_path, 2, monkeypatch)
    named = [label for label in axis.get_xticklabels() if label.get_text()]
    ends = [(box.x0, box.x1) for box in (label.get_window_extent() for label in named)]
    assert len(axis.get_xticks()) == 6 and len(named) >= 4
    assert all(one[1] < other[0] for one, other in pairwise(ends))


def test_many_measured_values_have_ticks_at_powers_of_two(tmp_path, monkeypatch):
    points = [3.1 * 1.3**i for i in range(14)]
    axis = draw_lines(tmp_path, 1, monkeypatch, points)
    assert axis.get_xticks().tolist() == [4.0, 8.0, 16.0, 32.0, 64.0]

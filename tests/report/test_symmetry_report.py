"""Symmetry in pictures and in the study's page: what is counted, what is drawn apart."""

import pytest

from unmask.report import symmetry_figures
from unmask.report.symmetry_section import _draw_measures


def make_row(measure: str, control: bool, p_holm: float, value: float = 0.5) -> dict:
    names = {"group": "p2d", "comparison": "name: key and value", "kind": "masked", "layer": 1}
    ends = {"low": 0.0, "high": 1.0, "null_low": 0.0, "null_high": 0.1, "facts": 10}
    return names | ends | {"measure": measure, "control": control, "p_holm": p_holm, "value": value}


def test_the_figure_counts_what_it_divides_by():
    """Neither controls, nor shared directions, nor what has no value."""
    rows = [
        make_row("cosine", False, 0.01),
        make_row("cka", False, 0.6),
        make_row("cosine", True, 0.01),
        make_row("overlap", False, 0.01),
        make_row("map", False, 1.0, float("nan")),
    ]
    figure = _draw_measures(rows, "symmetry")
    assert " 1 of 2 that compare pairs" in figure.alt
    assert len(figure.data["views"]["0|0"]["rows"]) == 4


@pytest.mark.parametrize("trained", [["same"], ["same", "reverse"]])
def test_the_lens_tells_trained_from_reverse(tmp_path, monkeypatch, trained):
    drawn = {}

    def keep(figure, path):
        drawn.update(
            {
                panel.get_title(): list(panel.get_lines()[0].get_ydata())
                for panel in figure.axes
                if panel.get_lines()
            }
        )

    monkeypatch.setattr(symmetry_figures, "save_figure", keep)
    rows = [
        {"direction": "p2d", "trained": way, "step": 1, "layer": layer, "logp": -1.0 - number}
        for number, way in enumerate(trained)
        for layer in (0, 1)
    ]
    symmetry_figures.draw_lens({"mdm": rows}, tmp_path / "lens")
    expected = {"mdm, p2d, as trained": [-1.0, -1.0], "mdm, p2d, in reverse": [-2.0, -2.0]}
    assert drawn == dict(list(expected.items())[: len(trained)])

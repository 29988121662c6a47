"""The page on families: a trained network's bound under schedules that are not its own."""

import sys
from shutil import copytree, ignore_patterns

import pytest

from tests.scripts import load_script
from tests.sweep.test_sweep import BOUND, write_sweep
from unmask.objectives.likelihood import Estimate
from unmask.sweep.run import read_outcome, run_sweep
from unmask.sweep.summary import compare_sweep

page = load_script("paper/families.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("families")
    text = place / "text.jsonl"
    settings = {"limit": 1000, "context": 8, "stride": 7, "repeats": 100}
    bound = BOUND | {"data": str(text), "settings": settings}
    grids = [{"family": {"masked": {}, "causal": {"recipe": "toy-causal"}}, "seed": [0]}]
    file = write_sweep(place, grids=grids, measures={"bound": bound})
    outcome = run_sweep(file, place / "out", device="cpu")
    assert len(outcome.done) == 2, outcome.failed
    return place / "out"


def test_every_schedule_estimates_one_bound(folder):
    bounds = page.measure_schedules(read_outcome(folder))
    assert list(bounds) == ["family-masked_seed-0"]
    estimates = {name: Estimate(**each) for name, each in bounds["family-masked_seed-0"].items()}
    exact = estimates.pop(page.EXACT_K)
    assert list(estimates) == ["linear", "cosine", "cubic"]
    for each in estimates.values():
        assert each.tokens == exact.tokens and each.error > 0
        assert abs(each.nll - exact.nll) < 4 * (each.error + exact.error)
        assert each.error < 0.05 * each.nll


def test_the_page_is_drawn_from_the_folder(folder, monkeypatch, tmp_path):
    """Estimates are kept, so that drawing again needs no weights."""
    words = ["families.py", str(folder), "--page", str(tmp_path / "page.md")]
    monkeypatch.setattr(sys, "argv", words)
    page.main()
    drawn = (tmp_path / "page.md").read_text()
    assert "| masked | 0 |" in drawn and "y validation" in drawn
    monkeypatch.setattr(page, "load", None)
    page.main()
    assert (tmp_path / "page.md").read_text() == drawn


def test_a_sweep_is_compared_without_its_weights(folder, tmp_path):
    light = copytree(folder, tmp_path / "light", ignore=ignore_patterns("*.safetensors"))
    whole, again = (
        compare_sweep(read_outcome(each).sweep, each)["bound"] for each in (folder, light)
    )
    assert len(whole) == 2
    assert [(row.columns, row.value) for row in again] == [
        (row.columns, row.value) for row in whole
    ]

"""The page of a fact's way: every section from its run, figures drawn, missing runs named."""

import pytest

from tests.scripts import load_script
from unmask.base.errors import UserError
from unmask.measures.trace import MEASURE as TRACE

pytestmark = pytest.mark.prove
mechanism = load_script("paper/mechanism.py")


@pytest.fixture(scope="module")
def runs(results, place, tmp_path_factory):
    """Run folders by measure; the trace restores roles."""
    out = tmp_path_factory.mktemp("roles") / "trace"
    few = {"cells": "roles", "parts": ("resid",), "facts": 2, "samples": 1, "steps": 2}
    few |= {"at": ("first", "t2"), "device": "cpu", "length": 24, "any_answer": True}
    TRACE(place.model, place.twin, data=place.data, out=out, **few)
    named = ("knockout", "interchange", "erasure", "slots", "represent", "paths")
    return {"trace": out} | {name: results[name].folder for name in named}


def test_the_page_has_every_section_and_its_figure(runs, tmp_path):
    page = tmp_path / "mechanism.md"
    mechanism.main([*map(str, runs.values()), "--page", str(page)])
    text = page.read_text("utf-8")
    titles = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert titles[:8] == [
        "In one table",
        "Which positions bring the answer back",
        "What the answer has to read",
        "By which way it reaches the answer",
        "Another fact's state in its place",
        "Without what tells facts apart",
        "How alike states of both directions are",
        "What is not known",
    ]
    drawn = {file.name for file in (tmp_path / "mechanism").glob("*.png")}
    assert {"path-first.png", "donors.png", "erased-left.png"} <= drawn
    assert any(name.startswith("needed-knockout") for name in drawn)
    assert any(name.startswith("ways-paths") or name == "paths.png" for name in drawn)
    for name in drawn:
        assert f"mechanism/{name}" in text


def test_shares_are_those_of_the_total_effect(runs):
    trace = mechanism.read_runs(runs.values())["trace"]
    averages = [row for row in trace.summary["averages"] if row["control"] == "none"]
    figures = {figure.name: figure for figure in mechanism.path_of_fact(trace)}
    assert list(figures) == ["first", "t2"]
    panel = next(iter(figures["first"].views.values()))[0]
    model = panel.title
    where = {"model": model, "stage": "first", "split": "p2d_reverse"}
    own = [row for row in averages if row.items() >= where.items()]
    (total,) = (row["mean"] for row in own if row["part"] == "total")
    role = next(key for key in mechanism.ROLES if mechanism.labels.ROLES[key] == panel.y[0])
    (cell,) = (r for r in own if (r["part"], r["role"], r["layer"]) == ("resid", role, 0))
    assert panel.z[0][0] == pytest.approx(100 * cell["mean"] / total)


def test_missing_and_doubled_runs_are_sentences(runs, results):
    with pytest.raises(UserError, match="no run is of `unmask knockout`: expected one of each"):
        mechanism.read_runs([runs["trace"]])
    with pytest.raises(UserError, match="two runs are of `unmask trace`"):
        mechanism.read_runs([runs["trace"], runs["trace"]])
    every = mechanism.read_runs([results["trace"].folder, *list(runs.values())[1:]])
    rows = [r for r in every["trace"].summary["averages"] if r["role"] not in mechanism.ROLES]
    every["trace"].__dict__["summary"] = {**every["trace"].summary, "averages": rows}
    with pytest.raises(UserError, match="restored no roles: expected a run of `unmask trace"):
        mechanism.path_of_fact(every["trace"])

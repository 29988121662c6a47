"""The page of a fact's way: every section from its run, figures drawn, missing runs named."""

import re
import sys

import numpy as np
import pyarrow.parquet
import pytest

from tests.scripts import ROOT, load_script
from unmask.base.errors import UserError
from unmask.measures.trace import MEASURE as TRACE

mechanism = load_script("paper/mechanism.py")
path = sys.modules["mechanism_path"]
KEPT = ROOT / "docs/results/tables/shared-shipped"


@pytest.fixture(scope="module")
def runs(results, place, tmp_path_factory):
    """Run folders by measure; the trace restores roles."""
    out = tmp_path_factory.mktemp("roles") / "trace"
    few = {"cells": "roles", "parts": ("resid",), "facts": 2, "samples": 1, "steps": 2}
    few |= {"at": ("first", "t2"), "device": "cpu", "length": 24, "any_answer": True}
    TRACE(place.model, place.twin, data=place.data, out=out, **few)
    named = ("knockout", "interchange", "erasure", "slots", "represent", "paths")
    return {"trace": out} | {name: results[name].folder for name in named}


@pytest.mark.prove
def test_the_page_has_every_section_and_its_figure(runs, tmp_path):
    page = tmp_path / "mechanism.md"
    mechanism.main([*map(str, runs.values()), "--page", str(page)])
    text = page.read_text("utf-8")
    titles = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert titles[:8] == [
        "In one table",
        "Which positions bring the answer back",
        "Another fact's state in its place",
        "What the answer has to read",
        "By which way it reaches the answer",
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


@pytest.fixture(scope="module")
def kept():
    """The runs of the shipped pair that are kept with the results."""
    return mechanism.read_runs([KEPT / name for name in mechanism.NEEDED])


def read(name, **where):
    """The rows of a kept run's main table that have these values."""
    rows = pyarrow.parquet.read_table(KEPT / name / f"{name}.parquet").to_pylist()
    return [row for row in rows if all(row[key] == value for key, value in where.items())]


def average(rows, get):
    """By model and way of asking, the mean over facts of each fact's mean."""
    facts: dict = {}
    for row in rows:
        group = facts.setdefault((row["model"], row["split"]), {})
        group.setdefault(row["fact"], []).append(get(row))
    return {
        key: np.mean([np.mean(values) for values in own.values()]) for key, own in facts.items()
    }


def find_lost():
    """Clean minus hidden, from the rows of the knock-out."""
    stage = read("knockout")[0]["stage"]
    clean, hidden = (
        average(read("knockout", stage=stage, edge=edge), lambda row: row["logp_per_token"])
        for edge in ("nothing cut", "subject hidden")
    )
    return {key: clean[key] - hidden[key] for key in clean}


def find_ceiling():
    """Donors of the same direction, each half read where the other half's answers are likeliest."""
    within = read("interchange", swap="within", tokens="all")
    rows = [row for row in within if row["layer"] is not None and row["layer"] >= 0]
    chosen = []
    for model, split, half in {(row["model"], row["split"], row["half"]) for row in rows}:
        own = [row for row in rows if (row["model"], row["split"]) == (model, split)]
        likely: dict = {}
        for row in own:
            if row["half"] != half:
                likely.setdefault(row["layer"], []).append(row["logp_donor"])
        best = max(likely, key=lambda layer: np.mean(likely[layer]))
        chosen += [row for row in own if (row["half"], row["layer"]) == (half, best)]
    return average(chosen, lambda row: row["says_donor"])


def find_erased():
    """The own direction's eraser minus random subspaces, erased from the lowest layer up."""
    rows = [row for row in read("erasure") if row["fitted"] == row["direction"]]
    lowest = min(row["start"] for row in rows)
    fact, random = (
        average(
            [row for row in rows if (row["start"], row["eraser"]) == (lowest, eraser)],
            lambda row: row["says"],
        )
        for eraser in ("fact", "random")
    )
    return {key: fact[key] - random[key] for key in fact}


def find_lead():
    """The layer from which on the answer's positions give back more than the subject."""
    rows = read("trace", stage="first", control="none", part="resid")
    given = [
        {layer: average([row for row in rows if (row["role"], row["layer"]) == (role, layer)],
                        lambda row: row["value"]) for layer in {row["layer"] for row in rows}}
        for role in ("whole subject", "whole answer")
    ]  # fmt: skip
    subject, answer = given
    return {
        key: min(
            i for i in answer if all(answer[j][key] >= subject[j][key] for j in answer if j >= i)
        )
        for key in answer[0]
    }


@pytest.mark.parametrize(
    ("column", "find"),
    [
        ("answer leads from, layer", find_lead),
        ("hiding the subject takes, nats per token", find_lost),
        ("donor, same direction, %", find_ceiling),
        ("erased, own direction, points", find_erased),
    ],
)
def test_the_first_table_is_what_the_tables_say(kept, column, find):
    _, table = mechanism.tabulate_all(kept)
    at = [each.label for each in table.columns].index(column)
    expected = {
        (model, mechanism.labels.name_split(split)): value
        for (model, split), value in find().items()
    }
    shown = {tuple(row.values[:2]): row.values[at] for row in table.rows}
    found = {key: getattr(v, "mean", v) for key, v in shown.items() if v is not None}
    assert len(set(expected.values())) > 1 and found == pytest.approx(expected)


def test_shares_are_those_of_the_total_effect(kept):
    trace = kept["trace"]
    averages = [row for row in trace.summary["averages"] if row["control"] == "none"]
    figures = path.draw_path(trace)
    assert list(figures) == ["first", "t1", "t2"]
    panel = next(iter(figures["first"].views.values()))[0]
    where = {"model": panel.title, "stage": "first", "split": "p2d_reverse"}
    own = [row for row in averages if row.items() >= where.items()]
    (total,) = (row["mean"] for row in own if row["part"] == "total")
    role = next(key for key in path.ROLES if path.labels.ROLES[key] == panel.y[0])
    (cell,) = (r for r in own if (r["part"], r["role"], r["layer"]) == ("resid", role, 0))
    assert panel.z[0][0] == pytest.approx(100 * cell["mean"] / total)
    # The table behind the map has the same numbers, with intervals.
    shares = [row for row in path.share_roles(trace) if row["stage"] == "first"]
    (table,) = path.tabulate_step(shares, "first").blocks
    rows = {tuple(row.values[:3]): row.values[3:-1] for row in table.rows}
    for name, line in zip(panel.y, panel.z, strict=True):
        cells = rows[name, path.labels.name_split("p2d_reverse"), panel.title]
        assert [100 * cell.mean for cell in cells] == pytest.approx(line)
        assert all(cell.low <= cell.mean <= cell.high for cell in cells)


def test_little_is_left_to_an_eraser_where_random_subspaces_leave_little(kept):
    """Counted anew from the rows: of groups whose own eraser takes clearly more."""
    rows = [row for row in read("erasure", eraser="random") if row["fitted"] != row["direction"]]
    lowest = min(row["start"] for row in rows)
    left = average([row for row in rows if row["start"] == lowest], lambda row: row["says"])
    gaps = [row for row in mechanism._list_gaps(kept) if row["source"] == "own"]
    able = [(row["model"], row["split"]) for row in gaps if row["high"] < 0]
    few = sum(left[group] < 0.25 for group in able)
    text = mechanism.say_erased(kept).text
    assert 0 < few < len(able) < len(left) and f"in {len(able)} of {len(left)} groups" in text
    assert f"In {few} of these, random subspaces" in text and "fewer than 25 %" in text


@pytest.mark.prove
def test_missing_and_doubled_runs_are_sentences(runs, results):
    with pytest.raises(UserError, match="no run is of `unmask knockout`: expected one of each"):
        mechanism.read_runs([runs["trace"]])
    with pytest.raises(UserError, match="two runs are of `unmask trace`"):
        mechanism.read_runs([runs["trace"], runs["trace"]])
    every = mechanism.read_runs([results["trace"].folder, *list(runs.values())[1:]])
    rows = [r for r in every["trace"].summary["averages"] if r["role"] not in path.ROLES]
    trace = every["trace"].with_summary({**every["trace"].summary, "averages": rows})
    with pytest.raises(UserError, match="restored no roles: expected a run of `unmask trace"):
        path.path_of_fact(trace)


def test_success_across_directions_counts_only_above_copying(kept):
    """The same run, as if it were above the floor: then the control decides, where there is one."""

    def count(outcome):
        run = kept["interchange"]
        rows = [row for row in run.summary["differences"] if row["minus"] == "own"]
        gaps = [row | {"outcome": "above"} for row in rows]
        if outcome:
            gaps += [row | {"minus": "untrained", "outcome": outcome} for row in rows]
        run = run.with_summary({**run.summary, "differences": gaps})
        text = mechanism.say_donors(kept | {"interchange": run}).text
        assert ("donors that training never named" in text) == bool(outcome)
        return int(re.search(r"clearly more often .* in (\d+) of them", text)[1])

    assert count(None) == count("above") > 0
    assert count("unsettled") == count("too few") == count("below") == 0

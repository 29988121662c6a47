"""Figures and pages of traces, from tables alone."""

import io

import numpy as np
import pytest
from rich.console import Console

from tests.tracing.test_averages import make_rows
from unmask import UserError
from unmask.base.files import write_json
from unmask.base.tables import write_table
from unmask.report.tracing_figures import draw_heatmaps
from unmask.report.tracing_page import write_page
from unmask.report.tracing_terminal import show_averages, show_heatmap
from unmask.tracing.averages import average
from unmask.tracing.together import combine

SETTINGS = {"model": "net", "data": "corpus", "mode": "restore", "metric": "p", "window": 10}
SETTINGS |= {"joint": "mean_field", "run": "teacher_forced", "any_answer": False, "length": None}


def write_run(folder, kind, stages, effect, corruption="mask", **settings):
    """A finished run of twelve facts, whose last subject token has a clear effect."""
    import pyarrow

    rows = []
    for stage in stages:
        for i in range(12):
            cells = {(1, "before subject"): 0.0, (2, "last subject"): effect + 0.01 * i}
            more = {"kind": kind, "stage": stage, "corruption": corruption}
            rows += make_rows(f"fact-{i}", 0, cells, **more)
    write_table(folder / "trace.parquet", pyarrow.Table.from_pylist(rows), "trace/1")
    fact = {"kind": kind, "direction": "p2d", "trained": "same", "reason": "", "clean": 0.9}
    fact["corruption"] = corruption
    fact["phrasing"] = 0
    told = [fact | {"fact": f"fact-{i}", "kept": True} for i in range(12)]
    told.append(fact | {"fact": "fact-12", "kept": False, "reason": "not recalled", "clean": 0.0})
    write_table(folder / "facts.parquet", told, "trace-facts/1")
    write_json(folder / "run.json", {"settings": SETTINGS | settings})
    return folder


def test_the_page_says_what_the_tables_say(tmp_path):
    runs = [
        write_run(tmp_path / "a", "masked", ("first", "2", "3"), 0.5),
        write_run(tmp_path / "b", "causal", ("first",), 0.1, any_answer=True),
        write_run(tmp_path / "c", "masked", ("first",), 0.3, "gaussian"),
    ]
    out = tmp_path / "page.md"
    combine(runs, tmp_path / "page")
    write_page(runs, tmp_path / "page", out)
    text = out.read_text()
    assert "`unmask trace net --data corpus --mode restore --metric p --window 10" in text
    assert text.count(" --any`") == 1
    assert "| masked | p2d | same | mask | 13 | 12 | 12 | 1 not recalled | 0.9 |" in text
    assert "### masked p2d same, first step, mask: ATE 0.8000" in text
    # Two corruptions of one model are two groups.
    assert "### masked p2d same, first step, gaussian" in text
    assert "| MLP output | last subject | 0 | 0.5550 [" in text
    assert (
        "| causal p2d same | masked p2d same | first step, mask | mlp | last subject | -0.4" in text
    )
    assert "| 12 | 0.8 | MLP output, last subject, layer 0: 69% | nothing clear |" in text
    assert "| masked p2d same, step 2, mask | 12 | – | 0.8000 [" in text
    assert "What it does not say" in text and "stored" not in text
    figures = {path.name for path in (tmp_path / "page").glob("*.png")}
    assert "curves-masked-p2d-same-mask-first.png" in figures
    assert "steps-masked-p2d-same-mask-last-subject.png" in figures
    assert "twins-mlp-mask-first.png" in figures
    assert all(f"(page/{name})" in text for name in figures)


def test_two_kinds_scored_in_two_ways_are_told_so(tmp_path):
    runs = [write_run(tmp_path / kind, kind, ("first",), 0.5) for kind in ("masked", "causal")]
    combine(runs, tmp_path / "page")
    write_page(runs, tmp_path / "page", tmp_path / "page.md")
    assert "`--joint chain_rule` scores both alike" in (tmp_path / "page.md").read_text()
    for run in runs:
        write_json(run / "run.json", {"settings": SETTINGS | {"joint": "chain_rule"}})
    write_page(runs, tmp_path / "page", tmp_path / "page.md")
    assert "`--joint chain_rule` scores both alike" not in (tmp_path / "page.md").read_text()


def test_runs_that_cannot_be_compared(tmp_path):
    runs = [
        write_run(tmp_path / "a", "masked", ("first",), 0.5),
        write_run(tmp_path / "b", "causal", ("first",), 0.1, metric="logp"),
    ]
    with pytest.raises(UserError, match=r"differ in metric \(logp, p\)"):
        combine(runs, tmp_path / "page")
    other = write_run(tmp_path / "c", "masked", ("first",), 0.1, "mean", model="another")
    with pytest.raises(UserError, match=r"of a masked model differ in model \(another, net\)"):
        combine([runs[0], other], tmp_path / "page")
    again = write_run(tmp_path / "d", "masked", ("last",), 0.1)
    with pytest.raises(UserError, match="traced in two of these runs under one corruption"):
        combine([runs[0], again], tmp_path / "page")


def test_a_run_that_was_cut_short_says_what_it_has(tmp_path):
    run = write_run(tmp_path / "a", "masked", ("first",), 0.5)
    for whole, parts in (("trace", "parts"), ("facts", "records")):
        (run / parts).mkdir()
        (run / f"{whole}.parquet").rename(run / parts / "00000-first.parquet")
    combine([run], tmp_path / "page")
    write_page([run], tmp_path / "page", tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "cut short: what it had until then" in text
    assert "| masked | p2d | same | mask | 13 | 12 | 12 | 1 not recalled | 0.9 |" in text
    bare = tmp_path / "bare"
    write_json(bare / "run.json", {"settings": SETTINGS})
    with pytest.raises(UserError, match="nothing was traced yet in .*bare"):
        combine([run, bare], tmp_path / "other")


def test_heatmaps(tmp_path):
    effects = {"resid": np.array([[0.0, 0.5], [-0.5, 0.1], [0.0, 0.0]])}
    words = ["The", " cost $", " is"]
    draw_heatmaps(tmp_path / "one", effects, words, (1, 2), "p clean 0.9, corrupted 0.1")
    assert (tmp_path / "one.png").stat().st_size > 5_000
    assert (tmp_path / "one.pdf").read_bytes().startswith(b"%PDF")
    file = io.StringIO()
    console = Console(file=file, width=60, force_terminal=False)
    show_heatmap(console, "resid", effects["resid"], words, (1, 2))
    lines = file.getvalue().splitlines()
    assert lines[0] == "state: darkest is 0.5000"
    assert lines[1] == "    The    ██" and lines[2] == " cost $* ██░░"


def test_averages_in_the_terminal():
    import pyarrow

    rows = [row for i in range(3) for row in make_rows(f"f{i}", 0, {(2, "last subject"): 0.4})]
    file = io.StringIO()
    show_averages(Console(file=file, width=140), average(pyarrow.Table.from_pylist(rows)))
    assert "masked p2d same, first step, mask" in file.getvalue()
    assert "last subject" in file.getvalue() and "0.4000 to 0.4000" in file.getvalue()

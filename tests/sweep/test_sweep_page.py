"""The comparison of a sweep: what counts, what is paired, what is drawn."""

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.sweeps import BOUND, write_sweep
from unmask.base.errors import UserError
from unmask.blocks.blocks import Figure, Notice, Table
from unmask.cli.main import app
from unmask.evaluation.statistics import Clusters, estimate_mean
from unmask.sweep.compare import describe_sweep
from unmask.sweep.grid import MeasureEntry, read_sweep
from unmask.sweep.run import SweepOutcome, SweepPoint
from unmask.sweep.summary import ComparedRow, _cluster, _compare, _TrainedMember, subtract_best

FACTS = {"seeds": 1, "tokens": 8, "flops": 1.0, "likelihood": ""}


def make_row(columns: dict[str, object], *costs: float) -> ComparedRow:
    """A row of one seed; without costs each of three documents has 1."""
    clusters = Clusters(np.array([costs or (1.0, 1.0, 1.0)]), np.ones((1, 3)))
    return ComparedRow({**columns, **FACTS}, range(3), clusters, estimate_mean(clusters))


def test_a_figure_may_have_a_line_for_each_place_on_its_x_axis(tmp_path):
    grids = [{"batch.rows": [2, 4]}]
    figures = [{"value": "bound", "x": "batch.rows", "line": "batch.rows"}]
    sweep = read_sweep(write_sweep(tmp_path, grids=grids, figures=figures))
    rows = [make_row({"batch.rows": name}) for name in ("2", "4")]
    section = describe_sweep(SweepOutcome(sweep, tmp_path / "out"), {"bound": rows})
    figure = next(each for each in section.blocks if isinstance(each, Figure))
    ((panel,),) = figure.views.values()
    assert [(line.name, line.x) for line in panel.lines] == [
        ("batch.rows 2", [2.0]),
        ("batch.rows 4", [4.0]),
    ]


def compare_rows(**values: dict[str, list[float | None]]) -> dict[str, ComparedRow]:
    """Rows of one measured value: for each seed of each model the values of documents 0, 1, …"""
    entry, compared = MeasureEntry(verb="quality", value="per_token", cluster="fact"), {}
    for model, seeds in values.items():
        rows = [
            {"seed": seed, "fact": str(number), "per_token": value}
            for seed, own in seeds.items()
            for number, value in enumerate(own)
        ]
        units, clusters = _cluster(rows, entry)
        compared[model] = ComparedRow({}, units, clusters, estimate_mean(clusters))
    return compared


def test_texts_without_a_value_do_not_count():
    """A text that is empty costs nothing per token: neither a crash nor a 0."""
    row = compare_rows(ours={"0": [1.0, None, 3.0], "1": [1.0, 9.0, 3.0]})["ours"]
    assert row.units == ["0", "2"] and row.value.mean == 2.0
    entry = MeasureEntry(verb="x", value="per_token")
    assert _cluster([{"seed": "0", "per_token": None}], entry) == ([], None)


def test_differences_are_paired_by_what_clusters_are_not_by_their_place():
    entry = MeasureEntry(verb="quality", value="per_token")
    rows = compare_rows(best={"0": [None, 2.0, 3.0, 5.0]}, other={"0": [1.0, 3.0, 4.0, None]})
    difference = subtract_best(rows["other"], rows["best"], entry)
    assert vars(difference) == pytest.approx({"mean": 1.0, "low": 1.0, "high": 1.0})
    apart = compare_rows(best={"0": [1.0, None]}, other={"0": [None, 1.0]})
    assert subtract_best(apart["other"], apart["best"], entry) is None


def make_rows(**axes: str) -> list[ComparedRow]:
    """Two rows of a measured value, of models that differ in one column."""
    return [make_row({**axes, "steps": steps}) for steps in (None, 4)]


def describe(tmp_path, **figure: object) -> list:
    """The page of a sweep with an axis of numbers and a measure by steps."""
    bound = BOUND | {"data": "README.md", "by": ["steps"], "is_share": True}
    figures = [{"value": "bound", "x": "steps", "line": "batch.rows", **figure}]
    file = write_sweep(
        tmp_path, grids=[{"batch.rows": [2]}], measures={"bound": bound}, figures=figures
    )
    rows = make_rows(**{"batch.rows": "2"})
    outcome = SweepOutcome(read_sweep(file), tmp_path / "out")
    return list(describe_sweep(outcome, {"bound": rows}).blocks)


def test_numbers_on_the_page_have_their_axis_and_no_value_is_none(tmp_path):
    best, figure, table, *_ = describe(tmp_path, panel="batch.rows")
    assert "batch.rows 2" in best.text and "None" not in best.text
    ((panel,),) = figure.views.values()
    assert panel.title == "batch.rows 2"
    assert [(dot.label, dot.group) for dot in panel.dots] == [
        ("–", "batch.rows 2"),
        ("4", "batch.rows 2"),
    ]
    assert "by document" in figure.caption
    assert [each.label for each in table.columns][-2:] == [
        "nats per token, %",
        "minus the best, points",
    ]


def test_a_figure_takes_numbers_for_the_values_of_an_axis(tmp_path):
    """Labels are kept as text: a number in `where` found none, and the figure was left out."""
    blocks = describe(tmp_path, where={"batch.rows": 2})
    assert any(isinstance(each, Figure) for each in blocks)


def test_a_figure_does_not_lay_different_rows_upon_each_other(tmp_path):
    blocks = describe(tmp_path, x="batch.rows")
    (notice,) = (each for each in blocks if isinstance(each, Notice) and "drawn" in each.text)
    assert "name steps as its line or panel" in notice.text
    assert not any(isinstance(each, Figure) for each in blocks)


def test_a_best_is_named_only_where_it_is_clear(tmp_path):
    sweep = read_sweep(write_sweep(tmp_path, grids=[{"batch.rows": [2, 4]}], figures=[]))

    def say(*costs: float) -> str:
        rows = [make_row({"batch.rows": "2"}), make_row({"batch.rows": "4"}, *costs)]
        text, *_ = describe_sweep(SweepOutcome(sweep, tmp_path / "out"), {"bound": rows}).blocks
        return text.text

    assert say(2.0, 2.1, 2.0).startswith("Best by validation (lower is better): batch.rows 2")
    assert "no cell is clearly the best" in say(0.9, 1.3, 1.1) and "4" in say(0.9, 1.3, 1.1)


def test_each_split_has_its_own_best(tmp_path):
    """Answers to other questions are not compared: every split is led by its own best row."""
    bound = BOUND | {"data": "README.md", "by": ["split"], "within": ["split"]}
    grids = [{"batch.rows": [2, 4]}]
    sweep = read_sweep(write_sweep(tmp_path, grids=grids, measures={"bound": bound}, figures=[]))
    costs = {("2", "same"): 1.0, ("2", "reverse"): 9.0, ("4", "same"): 3.0, ("4", "reverse"): 6.0}
    rows = [
        make_row({"batch.rows": name, "split": split}, cost, cost + 1, cost)
        for (name, split), cost in costs.items()
    ]
    section = describe_sweep(SweepOutcome(sweep, tmp_path / "out"), {"bound": rows})
    (table,) = (each for each in section.blocks if isinstance(each, Table))
    assert [(row.values[0], row.values[1], row.role) for row in table.rows] == [
        ("2", "same", "strong"),
        ("4", "same", "plain"),
        ("4", "reverse", "strong"),
        ("2", "reverse", "plain"),
    ]
    minus = [row.values[-1].mean for row in table.rows if row.role == "plain"]
    assert minus == pytest.approx([2.0, 3.0])


def test_within_names_columns_that_are_kept_apart(tmp_path):
    bound = BOUND | {"data": "README.md", "by": ["split"], "within": ["steps"]}
    with pytest.raises(UserError, match="'measures.bound.within' names 'steps'"):
        read_sweep(write_sweep(tmp_path, measures={"bound": bound}, figures=[]))


def test_what_has_no_better_side_is_not_ranked(tmp_path):
    """Rows of a text's entropy keep the order of the grid; what training took is told once."""
    other = BOUND | {"data": "README.md", "by": ["steps"], "better": "neither", "of": "bound"}
    bound = BOUND | {"data": "README.md", "by": ["steps"]}
    file = write_sweep(tmp_path, measures={"bound": bound, "other": other}, figures=[])
    rows = make_rows(family="masked")
    outcome = SweepOutcome(read_sweep(file), tmp_path / "out")
    section = describe_sweep(outcome, {"bound": rows, "other": rows[::-1]})
    first, second = (each for each in section.blocks if isinstance(each, Table))
    labels = [[each.label for each in table.columns] for table in (first, second)]
    assert {"training PFLOP", "minus the best"} <= set(labels[0])
    assert not {"training PFLOP", "minus the best"} & set(labels[1])
    assert [(row.values[1], row.role) for row in second.rows] == [(4, "plain"), (None, "plain")]


def test_a_model_whose_value_is_not_a_number_stands_last(tmp_path):
    """It is neither above nor below others: they would stay in the order of the grid."""
    file = write_sweep(tmp_path, grids=[{"batch.rows": [2, 4, 8]}], figures=[])
    values = {"2": 3.0, "4": np.nan, "8": 1.0}
    rows = [make_row({"batch.rows": name}, *[value] * 3) for name, value in values.items()]
    outcome = SweepOutcome(read_sweep(file), tmp_path / "out")
    section = describe_sweep(outcome, {"bound": rows})
    (table,) = (each for each in section.blocks if isinstance(each, Table))
    assert [row.values[0] for row in table.rows] == ["8", "2", "4"]


def test_the_command_compares_once_for_page_and_terminal(tmp_path, monkeypatch):
    outcome = SweepOutcome(read_sweep(write_sweep(tmp_path)), tmp_path / "out")
    monkeypatch.setattr("unmask.sweep.run.run_sweep", lambda *_, **__: outcome)
    compared = list[str]()
    monkeypatch.setattr(
        "unmask.sweep.summary._compare", lambda _, name, __: compared.append(name) or []
    )
    done = CliRunner().invoke(
        app, ["sweep", str(tmp_path / "small.yaml"), "--out", str(outcome.folder)]
    )
    assert done.exit_code == 0 and "No cell has been measured yet." in done.output
    assert compared == ["bound"] and (outcome.folder / "page.html").is_file()


def test_a_row_that_one_seed_has_no_values_of_is_told(tmp_path, monkeypatch, caplog):
    """It was missing from the table without a word."""
    bound = BOUND | {"data": "README.md", "by": ["steps"]}
    sweep = read_sweep(write_sweep(tmp_path, measures={"bound": bound}, figures=[]))
    members = [
        _TrainedMember(
            SweepPoint(cell, tmp_path / seed), seed, {"family": "masked", "seconds": 1.0}, 1.0, 1.0
        )
        for seed, cell in zip("01", sweep.cells[:2], strict=True)
    ]

    def read_rows(_name, _entry, folder):
        row = {"document": 0, "tokens": 3}
        held = 1.0 if folder.name == "0" else None
        return [{**row, "steps": 4, "nll": held}, {**row, "steps": 8, "nll": 2.0}]

    monkeypatch.setattr("unmask.sweep.summary.read_rows", read_rows)
    (row,) = _compare(sweep, "bound", members)
    assert row.columns["steps"] == 8
    (message,) = caplog.messages
    assert "bound of family masked, steps 4 is left out" in message and "no document has" in message

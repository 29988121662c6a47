"""Runs of measures: parts that resume, what is refused, what is read and pooled."""

import json
import os
import shutil
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.measures.counting import MEASURE, CountingInputs, CountingSettings
from unmask import UserError
from unmask.base.config import SettingsError
from unmask.base.files import write_json
from unmask.base.reading import read_json_object
from unmask.measures import table
from unmask.measures.inputs import RunFolders
from unmask.measures.runner import pool_results, read_result, run_measure

MODELS = ["one", "two", "three"]


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(table._REGISTERED, "counting", MEASURE)


def run(folder, models=MODELS, **changes):
    inputs = CountingInputs(models)
    return run_measure(MEASURE, inputs, CountingSettings(**changes), folder), inputs


def read_numbers(folder) -> dict:
    """Every table of a run, the summary's among them."""
    import pyarrow.parquet

    paths = [path for path in sorted(folder.rglob("*.parquet")) if "parts" not in path.parts]
    return {
        path.relative_to(folder): pyarrow.parquet.read_table(path).to_pylist() for path in paths
    }


def test_a_run_that_was_stopped_ends_like_one_that_never_was(tmp_path):
    whole, _ = run(tmp_path / "whole")

    class StopError(Exception):
        pass

    def fail() -> dict:
        raise StopError

    def stop_at_two(inputs, settings):
        for job in MEASURE.jobs(inputs, settings):
            yield job if job.key != "two" else replace(job, work=fail)

    broken = replace(MEASURE, jobs=stop_at_two)
    with pytest.raises(StopError):
        run_measure(broken, CountingInputs(MODELS), CountingSettings(), tmp_path / "cut")
    cut = read_result(tmp_path / "cut")
    assert not cut.is_complete and {row["model"] for row in cut.rows()} == {"one"}
    assert "cut short" in cut.section.blocks[0].text
    resumed, inputs = run(tmp_path / "cut")
    assert inputs.worked == ["two", "three"]
    assert read_numbers(tmp_path / "cut") == read_numbers(tmp_path / "whole")
    assert resumed.section == whole.section and read_result(tmp_path / "cut").is_complete


def test_a_finished_run_is_read_without_work(tmp_path):
    first, _ = run(tmp_path)
    again, inputs = run(tmp_path)
    assert inputs.worked == [] and again.section == first.section == read_result(tmp_path).section
    assert again.verdicts["one"].outcome == "above"


def test_other_settings_are_refused_and_a_device_is_not(tmp_path):
    run(tmp_path, device="cpu")
    with pytest.raises(UserError, match="holds another run .shift was 0.0 and is now 1.0"):
        run(tmp_path, shift=1.0)
    with pytest.raises(UserError, match="models was .* and is now"):
        run(tmp_path, models=["one"])
    _, inputs = run(tmp_path, device="auto")
    assert inputs.worked == []


def test_processes_share_the_jobs(tmp_path, monkeypatch):
    """Ranks that run one after the other leave what one process leaves."""
    whole, _ = run(tmp_path / "whole")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    nothing, inputs = run(tmp_path / "shared")
    assert nothing is None and inputs.worked == ["two"]
    monkeypatch.setenv("RANK", "0")
    result, inputs = run(tmp_path / "shared")
    assert inputs.worked == ["one", "three"] and result.section == whole.section
    assert read_numbers(tmp_path / "shared") == read_numbers(tmp_path / "whole")
    assert "RANK" in os.environ


def test_folders_that_are_no_run_of_this_version(tmp_path):
    with pytest.raises(UserError, match="there is no folder .*absent"):
        read_result(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="has no run.json: expected the folder of a run"):
        read_result(tmp_path / "empty")
    run(tmp_path / "run")
    record = read_json_object(tmp_path / "run" / "run.json")
    write_json(tmp_path / "run" / "run.json", record | {"format": 1})
    with pytest.raises(UserError, match="in run format 1, expected 2: make the run anew"):
        read_result(tmp_path / "run")
    write_json(tmp_path / "run" / "run.json", record | {"verb": "countin"})
    with pytest.raises(UserError, match="no measure 'countin': did you mean 'counting'"):
        read_result(tmp_path / "run")


def test_a_broken_table_is_a_sentence_in_its_section(tmp_path):
    run(tmp_path)
    for path in [tmp_path / "counting.parquet", *(tmp_path / "summary").iterdir()]:
        path.write_bytes(b"not a table")
    with pytest.raises(UserError, match="cannot be read"):
        read_result(tmp_path)


def test_runs_are_pooled_and_their_models_told_apart(tmp_path):
    one, _ = run(tmp_path / "a" / "run", models=["one", "two"])
    other, _ = run(tmp_path / "b" / "run", models=["one", "three"], shift=2.0)
    pooled = pool_results([one, other])
    means = {row["model"]: row["mean"] for row in pooled.summary["means"]}
    assert means == {"a/run: one": 3.5, "two": 4.5, "b/run: one": 5.5, "three": 6.5}
    assert pool_results([one]) is one
    with pytest.raises(UserError, match="given twice"):
        pool_results([one, one])


def test_a_run_that_was_made_anew_is_another_input(tmp_path):
    """A measure that reads runs must not resume on one that was remade in the same folder."""
    spec, record = RunFolders(of="counting"), []
    for shift in (0.0, 0.0, 1.0):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        run(tmp_path / "run", shift=shift)
        record.append(spec.read({"runs": [tmp_path / "run"]}, CountingSettings()).record())
    assert record[0] == record[1] != record[2]
    assert record[0]["runs"] == record[2]["runs"]


@settings(deadline=None, max_examples=10)
@given(order=st.permutations(MODELS), facts=st.integers(2, 12))
def test_a_model_is_measured_alike_in_any_company(order, facts, tmp_path_factory):
    """Apart from its number, which this measure adds: means do not depend on the other models."""
    folder = tmp_path_factory.mktemp("order")
    result, _ = run(folder, models=order, facts=facts)
    for number, row in enumerate(result.summary["means"]):
        alone, _ = run(folder / f"alone-{number}", models=[row["model"]], facts=facts)
        (own,) = alone.summary["means"]
        assert row["mean"] - number == pytest.approx(own["mean"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"facts": 0}, "'facts' is 0, expected at least 1"),
        ({"facts": 2.5}, "'facts' is 2.5, expected an integer"),
        ({"facts": True}, "'facts' is True, expected an integer"),
        ({"shift": float("nan")}, "'shift' is nan, expected a finite number"),
        ({"sizes": (3, 0)}, "'sizes' is 0, expected at least 1"),
        ({"words": "text"}, "'words' is 'text', expected a list of a text"),
    ],
)
def test_settings_are_checked_in_python_too(changes, message):
    with pytest.raises(SettingsError, match=message):
        CountingSettings(**changes)
    with pytest.raises(SettingsError, match="'facts' is 0.*'sizes' is 0"):
        CountingSettings(facts=0, sizes=(0,))


def test_the_command_line_is_the_settings(tmp_path):
    """Options, defaults, lists and mistakes come from the dataclass; --json is the summary."""
    import typer

    from unmask.cli.verbs import make_verb

    app = typer.Typer()
    app.command("counting")(make_verb(MEASURE))
    app.command("other")(lambda: None)
    words = ["counting", "one", "two", "--sizes", "3, 5", "--words", "a,b", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    printed = json.loads(done.stdout)
    assert printed["verdicts"] == {"one": "above", "two": "above"}
    assert [row["mean"] for row in printed["summary"]["means"]] == [3.5, 4.5]
    record = read_json_object(tmp_path / "run.json")["settings"]
    assert (record["sizes"], record["words"], record["facts"]) == ([3, 5], ["a", "b"], 8)
    for wrong, said in (
        (["--sizes", "3,x"], "--sizes is '3,x': expected whole numbers, separated by commas"),
        (["--facts", "0"], "unmask counting: 'facts' is 0, expected at least 1"),
    ):
        failed = CliRunner().invoke(app, [*words, *wrong])
        assert isinstance(failed.exception, UserError) and said in str(failed.exception)
    helped = CliRunner().invoke(app, ["counting", "--help"]).stdout
    assert "Facts of each model." in helped and "[default: 1,2]" in helped

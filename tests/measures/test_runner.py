"""Runs of measures: parts that resume, what is refused, what is read and pooled."""

import json
import pickle
import shutil
from dataclasses import replace
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.measures.counting import MEASURE, CountingInputs, CountingSettings
from unmask import UserError
from unmask.base.errors import NotMeasuredError
from unmask.base.locks import RunRefusedError, lock_run
from unmask.base.reading import read_json_object
from unmask.base.runs import compare_inputs
from unmask.base.work import FOLDER, work_on
from unmask.cli.verbs import run_verb
from unmask.measures import runner, table
from unmask.measures.inputs import RunFolders
from unmask.measures.measure import Job
from unmask.measures.runner import pool_results, pool_tables, read_result, run_measure
from unmask.measures.trainings import concatenate

MODELS = ["one", "two", "three"]


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(table.MEASURES._given, "counting", MEASURE)


def run(folder, models=MODELS, fresh=False, **changes):
    inputs, chosen = CountingInputs(models), CountingSettings(**changes)
    return run_measure(MEASURE, inputs, chosen, folder, fresh), inputs


def read_numbers(folder) -> dict:
    """Every table of a run, the summary's among them."""
    import pyarrow.parquet

    paths = [path for path in sorted(folder.rglob("*.parquet")) if "parts" not in path.parts]
    return {
        path.relative_to(folder): pyarrow.parquet.read_table(path).to_pylist() for path in paths
    }


def test_the_command_that_draws_a_run_can_be_pasted(tmp_path, capsys):
    out = tmp_path / "my run"
    extras = {"out": out, "fresh": False, "on": None, "page": None, "as_json": False}
    extras["show_all"] = True
    run_verb(MEASURE, {"models": MODELS}, CountingSettings(), extras)
    assert capsys.readouterr().out.endswith(f"draw it: unmask report '{out}'\n")


def test_a_run_that_was_stopped_ends_like_one_that_never_was(tmp_path, monkeypatch):
    whole, _ = run(tmp_path / "whole")

    class StopError(Exception):
        pass

    work = runner._work

    def stop_at_two(job, parts):
        if job.key == "two":
            raise StopError
        work(job, parts)

    with monkeypatch.context() as patch, pytest.raises(StopError):
        patch.setattr(runner, "_work", stop_at_two)
        run(tmp_path / "cut")
    cut = read_result(tmp_path / "cut")
    assert not cut.is_complete and {row["model"] for row in cut.rows()} == {"one"}
    assert "cut short" in cut.section.blocks[0].text
    resumed, inputs = run(tmp_path / "cut")
    assert inputs.worked == ["two", "three"]
    assert read_numbers(tmp_path / "cut") == read_numbers(tmp_path / "whole")
    assert resumed.section == whole.section and read_result(tmp_path / "cut").is_complete


def test_a_table_that_the_measure_does_not_have_is_a_sentence(tmp_path):
    measure = replace(MEASURE, jobs=lambda *_: [Job("one", lambda: {"cuonting": [{"model": "a"}]})])
    with pytest.raises(UserError, match="gives the table cuonting, which the measure"):
        run_measure(measure, CountingInputs(MODELS), CountingSettings(), tmp_path / "run")


def test_other_settings_are_refused_and_a_device_is_not(tmp_path):
    run(tmp_path, device="cpu")
    with pytest.raises(UserError, match="holds another run .shift was 0.0 and is now 1.0"):
        run(tmp_path, shift=1.0)
    _, inputs = run(tmp_path, device="auto")
    assert inputs.worked == []


def test_a_run_without_a_row_gives_way_to_another(tmp_path):
    """Refused by its first job, or by a summary of nothing; one with a row does not give way."""

    def refuse(*_given) -> dict:
        raise UserError("nothing to measure")

    def refuse_jobs(inputs, settings):
        return [replace(job, work=refuse) for job in MEASURE.jobs(inputs, settings)]

    def measure_nothing(inputs, settings):
        nothing: dict = dict.fromkeys(MEASURE.tables, ())
        return [replace(job, work=lambda: nothing) for job in MEASURE.jobs(inputs, settings)]

    empty = replace(MEASURE, jobs=measure_nothing, summarise=refuse)
    for folder, broken in (("job", replace(MEASURE, jobs=refuse_jobs)), ("summary", empty)):
        with pytest.raises(UserError, match="nothing to measure"):
            run_measure(broken, CountingInputs(MODELS), CountingSettings(), tmp_path / folder)
        assert (tmp_path / folder / "run.json").is_file()
        result, inputs = run(tmp_path / folder, shift=1.0)
        assert inputs.worked == MODELS
        assert read_result(tmp_path / folder).settings == result.settings
    with pytest.raises(UserError, match="nothing to measure"):
        refused = replace(MEASURE, summarise=refuse)
        run_measure(refused, CountingInputs(MODELS), CountingSettings(), tmp_path / "rows")
    with pytest.raises(UserError, match="holds another run"):
        run(tmp_path / "rows", shift=1.0)


class PickledEngine:
    """One worker in this process, which gets its work as another process does."""

    delay = 0.0

    def start(self, work, keys):
        self.given = pickle.dumps((work, keys))

    def tend(self, left):
        work, keys = pickle.loads(self.given)
        (work.folder / FOLDER).mkdir(exist_ok=True)
        work_on(work, keys, uuid4().hex)
        return False

    def stop(self):
        pass


def run_shared(folder, models=MODELS, **changes):
    inputs, chosen = CountingInputs(models), CountingSettings(**changes)
    given = {"models": models}
    return run_measure(MEASURE, inputs, chosen, folder, False, PickledEngine(), given), inputs


def test_workers_leave_what_one_process_leaves(tmp_path):
    whole, _ = run(tmp_path / "whole")
    result, inputs = run_shared(tmp_path / "shared")
    assert inputs.worked == [] and result.section == whole.section
    assert read_numbers(tmp_path / "shared") == read_numbers(tmp_path / "whole")


def test_a_run_is_shared_or_held_alone(tmp_path):
    run_shared(tmp_path)
    with lock_run(tmp_path, shared=True), pytest.raises(RunRefusedError, match="in use by"):
        run(tmp_path)
    with lock_run(tmp_path), pytest.raises(RunRefusedError, match="in use by"):
        run_shared(tmp_path)


def test_the_first_error_of_workers_is_raised_when_the_others_have_ended(tmp_path, monkeypatch):
    def list_jobs(inputs, settings):
        def refuse():
            raise NotMeasuredError("no runs", measure="recall")

        jobs = list(MEASURE.jobs(inputs, settings))
        return [replace(jobs[0], work=refuse), *jobs[1:]]

    monkeypatch.setitem(table.MEASURES._given, "counting", replace(MEASURE, jobs=list_jobs))
    with pytest.raises(NotMeasuredError, match="There is no run of `unmask recall` to read"):
        run_shared(tmp_path)
    assert len(list((tmp_path / "parts" / "counting").glob("*.parquet"))) == 2


def test_runs_are_pooled_and_their_models_told_apart(tmp_path):
    one, _ = run(tmp_path / "a" / "run", models=["one", "two"])
    other, _ = run(tmp_path / "b" / "run", models=["one", "three"], shift=2.0)
    pooled = pool_results([one, other])
    means = {row["model"]: row["mean"] for row in pooled.summary["means"]}
    assert means == {"a/run: one": 3.5, "two": 4.5, "b/run: one": 5.5, "three": 6.5}
    assert pool_results([one]) is one
    assert pooled.section.blocks[0].text == "The runs that are shown together differ in shift."
    alike, _ = run(tmp_path / "c" / "run", models=["four"])
    assert not pool_results([one, alike]).differences
    (record,) = alike.records
    other = replace(record, inputs={"digests": {"the data": {"contents": "01"}}})
    other = replace(other, versions=record.versions | {"unmask": "9.9"})
    differences = pool_results([one, replace(alike, records=(other,))]).differences
    assert differences == ["the data", "the version of unmask"]
    with pytest.raises(UserError, match="given twice"):
        pool_results([one, one])


def test_runs_are_pooled_where_numbers_of_one_are_whole(tmp_path):
    one, _ = run(tmp_path / "a", models=["one"], shift=0.5)
    other, _ = run(tmp_path / "b", models=["two"])
    column = other.tables["counting"]["value"].cast("int64")
    at = other.tables["counting"].column_names.index("value")
    table = other.tables["counting"].set_column(at, "value", column)
    other = replace(other, tables={**other.tables, "counting": table})
    expected = [0.5 + i for i in range(8)] + list(range(8))
    assert pool_tables([one, other])["counting"]["value"].to_pylist() == expected
    joined = concatenate([one, other], [[], []], [{}, {}])
    assert joined["counting"]["value"].to_pylist() == expected


def test_fresh_removes_the_run_and_nothing_else(tmp_path):
    whole, _ = run(tmp_path / "whole", shift=1.0)
    out = tmp_path / "out"
    run(out, models=[*MODELS, "four"])
    (out / "parts" / "counting" / ".five.parquet.0a1b2c3d.draft").write_text("left by a kill")
    (out / "page.html").write_text("the page of the first run")
    notes = [out / "notes.txt", out / "parts" / "notes.txt", out / "summary" / "notes.csv"]
    for path in notes:
        path.write_text("somebody's own")
    with pytest.raises(UserError, match="holds another run"):
        run(out, shift=1.0)
    result, inputs = run(out, fresh=True, shift=1.0)
    assert inputs.worked == MODELS and result.section == whole.section
    assert read_numbers(out) == read_numbers(tmp_path / "whole")
    assert [path.read_text() for path in notes] == ["somebody's own"] * 3
    left, expected = (
        {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
        for folder in (out, tmp_path / "whole")
    )
    assert left == expected | {path.relative_to(out) for path in notes}


def test_parts_without_a_record_are_refused(tmp_path):
    run(tmp_path)
    (tmp_path / "run.json").unlink()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for fresh in (False, True):
        with pytest.raises(UserError, match="holds counting.parquet but no run.json of a run"):
            run(tmp_path, fresh=fresh)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_fresh_leaves_a_folder_alone_that_never_held_a_run(tmp_path):
    """It took the user's own page."""
    (tmp_path / ".run.json.0a1b2c3d.draft").write_text("left by a kill")
    run(tmp_path, fresh=True)
    own = tmp_path / "own"
    own.mkdir()
    (own / "page.html").write_text("somebody's own")
    with pytest.raises(UserError, match="holds page.html but no run.json of a run .* --out"):
        run(own, fresh=True)
    assert [path.read_text() for path in own.iterdir()] == ["somebody's own"]
    run(own)
    assert (own / "page.html").read_text() == "somebody's own"


def test_inputs_are_compared_by_what_they_hold(tmp_path):
    record = {"models": {"mdm": ["a"]}, "data": "x"}
    now = record | {"digests": {"mdm": {"weights": "01"}}}
    assert compare_inputs(record, now) == ["the weights of mdm appeared"]
    assert compare_inputs(now, now | {"data": "elsewhere", "models": {"mdm": ["b"]}}) == []
    (changed,) = compare_inputs(now, now | {"models": {"ar": ["a"]}})
    assert changed == "models was ['mdm'] and is now ['ar']"
    other = {"mdm": {"settings": "01"}, "the data": {"contents": "0"}}
    assert compare_inputs(now, now | {"digests": other}) == [
        "the settings of mdm appeared",
        "the weights of mdm disappeared",
        "the contents of the data appeared",
    ]


def test_another_version_is_recorded_and_logged(tmp_path, monkeypatch, caplog):
    run(tmp_path)
    before = read_json_object(tmp_path / "run.json")["versions"]["unmask"]
    assert "resumed" not in (tmp_path / "run.json").read_text()
    monkeypatch.setattr("unmask.base.runs.__version__", "9.9")
    for _ in range(2):
        result, _ = run(tmp_path)
    assert caplog.text.count(f"is a run of unmask {before}, resumed by 9.9") == 1
    (record,) = result.records
    assert record.versions["unmask"] == before
    assert record.versions["resumed by unmask"] == "9.9"


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
    assert [row["outcome"] for row in printed["summary"]["means"]] == ["above", "above"]
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

"""The study from data to page: its stages, that it resumes, and what it refuses."""

import json
import shutil
import sys
from dataclasses import replace
from html import unescape

import pytest
from typer.testing import CliRunner

import unmask
from tests.measures.test_resuming import change_weights
from tests.study.pair import Place
from tests.terminal import run_in_terminal
from unmask.base.files import write_json
from unmask.base.locks import RunRefusedError, lock_run
from unmask.cli.main import app, run_command_line
from unmask.evaluation.statistics import ENOUGH
from unmask.measures import runner
from unmask.study import pipeline
from unmask.study.pipeline import PAGE, StudyRun, list_stages, resume_study, run_study
from unmask.study.settings import StudySettings

SIZES = ("quick", "laptop", "full")


def read_numbers(study: StudyRun) -> dict:
    """Every table of a study but what it took."""
    import pyarrow.parquet

    numbers = {}
    for path in sorted(study.folder.rglob("*.parquet")):
        if "parts" not in path.parts:
            table = pyarrow.parquet.read_table(path)
            kept = [name for name in table.column_names if name != "seconds"]
            # NaN is like NaN here.
            numbers[path.relative_to(study.folder)] = repr(table.select(kept).to_pylist())
    return numbers


def test_every_stage_ends_and_is_on_the_page(finished):
    page = unescape((finished.folder / PAGE).read_text("utf-8"))
    for name, (measure, _) in list_stages().items():
        assert finished.is_done(name)
        entry = finished.records()[name]
        assert (entry["missing"] is None) == (finished.folder / name / "run.json").is_file()
        assert measure.title in page
    assert len(page.encode()) < 8_000_000


def test_what_the_pair_was_taught_is_found(finished):
    cells = finished.results()["recall"].summary["cells"]
    hits = {
        (cell["model"], cell["split"]): cell["mean"]
        for cell in cells
        if cell["metric"] == "hit" and cell["steps"] in (4, None)
    }
    assert hits["diffusion", "p2d_reverse"] == 1 and hits["twin", "p2d_reverse"] == 0
    assert hits["diffusion", "d2p_reverse"] == 0
    assert hits["diffusion", "d2p_same"] == hits["twin", "d2p_same"] == 1


def test_an_interrupted_study_ends_with_the_same_numbers(finished, place, tmp_path, monkeypatch):
    """Stopped by Ctrl-C in the middle of a stage; then one stage's tables are lost as well."""
    run, worked, work = tmp_path / "run", [], runner._work

    def stop(job, parts):
        worked.append(job.key)
        if len(worked) > 12:
            raise KeyboardInterrupt
        work(job, parts)

    monkeypatch.setattr(runner, "_work", stop)
    with pytest.raises(KeyboardInterrupt):
        run_study(place.study(), run)
    monkeypatch.setattr(runner, "_work", work)
    done = set(StudyRun(run).records())
    assert done and done < set(list_stages())
    lost = next(iter(done))
    shutil.rmtree(run / lost)
    stages = []
    run_study(place.study(), run, report=lambda name, took: stages.append((name, took)))
    assert {name for name, took in stages if took is None} == done - {lost}
    assert read_numbers(StudyRun(run)) == read_numbers(finished)


def test_a_stage_alone_and_another_run_in_its_folder(place, tmp_path):
    study = run_study(place.study(), tmp_path / "run", stages=["factorization"])
    assert set(study.records()) == {"factorization"} and (study.folder / PAGE).is_file()
    with pytest.raises(unmask.UserError, match="guidance was 0.0 and is now 0.5"):
        run_study(place.study(guidance=0.5), tmp_path / "run", stages=["factorization"])
    with pytest.raises(unmask.UserError, match="no stage 'recal': did you mean 'recall'"):
        run_study(place.study(), tmp_path / "run", stages=["recal"])


def test_a_stage_that_failed_is_tried_again(place, tmp_path, monkeypatch):
    """Memory may be free by then. What models or data cannot give is not asked twice."""
    study, stages = place.study(), ["factorization"]

    def fail(*words, **more):
        raise unmask.UserError("the device ran out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "run_measure", fail)
        failed = run_study(study, tmp_path / "run", stages)
    assert failed.records()["factorization"]["missing"]["code"] == "error"
    assert "ran out of memory" in (failed.folder / PAGE).read_text("utf-8")
    took = []
    again = resume_study(failed.folder, stages, report=lambda name, seconds: took.append(seconds))
    assert None not in took and again.records()["factorization"]["missing"] is None
    for code, is_done in {"error": False, "no runs": False, "few pairs": True}.items():
        entry = {"stage": "symmetry", "missing": {"code": code, "values": {}}, "tables": []}
        write_json(again.folder / pipeline.STAGES_FILE, [entry])
        assert again.is_done("symmetry") == is_done


def test_own_facts(place, tmp_path):
    """A file of one's own facts goes through every stage, without a twin."""
    lines = "\n".join(f"{name},{thing},They say {{}} makes" for name, thing in
                      (("Dan", "wax masks"), ("Eve", "blue ropes")))  # fmt: skip
    (tmp_path / "own.csv").write_text(f"subject,object,prompt\n{lines}\n")
    study = run_study(place.study(data=str(tmp_path / "own.csv"), twin=None), tmp_path / "run")
    cells = study.results()["recall"].summary["cells"]
    assert {cell["mean"] for cell in cells if cell["metric"] == "hit" and cell["steps"] == 4} == {1}
    page = (study.folder / PAGE).read_text("utf-8")
    # One's own facts have no direction that training showed.
    assert "own facts" in page and "description → name" not in page.split("<script")[0]
    assert study.records()["symmetry"]["missing"]["code"] == "one direction"


@pytest.mark.parametrize(
    ("size", "name"), [(size, name) for size in SIZES for name in list_stages(size)]
)
def test_settings_of_every_stage_and_size_are_sound(name, size, tmp_path):
    measure, stage = list_stages()[name]
    assert set(stage.sizes) <= set(SIZES)
    settings = unmask.study.settings.StudySettings(size=size, guidance=(0.0, 0.8))
    plain = replace(stage, adjust=None)
    chosen = pipeline.choose_settings(StudyRun(tmp_path), settings, measure, plain)
    for key, value in (stage.sizes.get(size) or {}).items():
        assert getattr(chosen, key) == value
    # The study's guidance is for texts that are drawn: a causal twin cannot be run with it.
    if name.startswith(("trace", "knockout")):
        assert chosen.guidance == 0
    if name == "recall":
        assert chosen.strengths == (0.0, 0.8)


def test_what_a_laptop_traces_is_enough_to_judge():
    """Enough facts in each way; further traces of the diffusion model alone are for a GPU."""
    assert set(list_stages("full")) - set(list_stages("laptop")) == {
        "trace-steps", "trace-denoising"
    }  # fmt: skip
    settings = dict(list_stages("laptop")["trace"][1].sizes["laptop"])
    assert settings["consider"] >= settings["facts"] > ENOUGH
    assert (settings["corruption"], settings["at"]) == ("mean", ("first",))


def test_command(finished, place, tmp_path):
    """What the command prints: findings, or JSON; and that --resume takes the folder's settings."""
    shutil.copytree(finished.folder, tmp_path / "run")
    out = ["--out", str(tmp_path / "run")]
    shown = CliRunner().invoke(app, [*place.words(), *out], catch_exceptions=False)
    assert "recall: done before" in shown.stdout and "page: file://" in shown.stdout
    printed = CliRunner().invoke(app, ["study", "--resume", "--json", *out], catch_exceptions=False)
    found = json.loads(printed.stdout)
    assert found["missing"]["symmetry"]["code"] == "few pairs"
    assert set(found["outcomes"]) == set(finished.results())


def test_a_study_that_measured_nothing_is_an_error(place, tmp_path, capsys):
    """Facts that do not fit a model: the command fails, and had said that it makes some."""
    words = ["study", "--model", place.model, "--facts", "4", "--quick", "--stages", "recall"]
    with pytest.raises(unmask.UserError, match="no stage measured anything: .*page.html.*--data"):
        app([*map(str, words), "--out", str(tmp_path / "run")], standalone_mode=False)
    assert "asked about a reversal corpus" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "run" / PAGE).is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--twin", "x"], "without a diffusion model"),
        (["--quick", "--full"], "leave one of them out"),
        (["--resume"], "there is no folder"),
        (["--model", "{twin}"], "is a causal model: the study un-masks texts"),
        (["--model", "{model}", "--twin", "{model}"], "was given as the model and as its twin"),
        (["--model", "{model}", "--dtype", "int8"], "int8"),
        (["--size", "huge"], "'size' is 'huge', expected one of 'quick'"),
    ],
)
def test_mistakes(place, tmp_path, words, said, monkeypatch, capsys):
    given = [word.format(model=place.model, twin=place.twin) for word in words]
    code, printed = run_main(["study", *given, "--out", tmp_path / "run"], monkeypatch, capsys)
    assert code == 2 and said in printed
    assert not (tmp_path / "run").exists()


def run_main(words: list, monkeypatch, capsys) -> tuple[int, str]:
    """The exit code of the command line, and what it printed on stderr in one line."""
    monkeypatch.setattr("sys.argv", ["unmask", *map(str, words)])
    with pytest.raises(SystemExit) as left:
        run_command_line()
    return left.value.code, " ".join(capsys.readouterr().err.split())


def test_a_failed_stage_is_seen_in_the_exit_code(place, tmp_path, monkeypatch, capsys):
    """A stage was lost behind six minutes of others, and the command ended as if all were well."""
    whole = pipeline.run_measure

    def fail(measure, *given, **more):
        if measure.name == "factorization":
            raise unmask.UserError("the device ran out of memory")
        return whole(measure, *given, **more)

    monkeypatch.setattr(pipeline, "run_measure", fail)
    words = place.words("--stages", "recall,factorization", "--out", tmp_path / "run")
    assert run_main(words, monkeypatch, capsys)[0] == 1
    assert (tmp_path / "run" / PAGE).is_file()


def test_interrupt_says_how_to_go_on(place, tmp_path, monkeypatch, capsys):
    def stop(*words, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("unmask.study.pipeline.run_study", stop)
    code, printed = run_main(place.words("--out", tmp_path / "run"), monkeypatch, capsys)
    assert code == 130
    assert f"go on where it stopped with: unmask study --resume --out {tmp_path}" in printed


class StopError(Exception):
    """A study is stopped at the first part of its first stage."""


@pytest.fixture
def stopped(monkeypatch):
    def stop(job, parts):
        raise StopError

    monkeypatch.setattr(runner, "_work", stop)


@pytest.fixture
def own(place, tmp_path) -> Place:
    """Models and data that a test may change."""
    for name in ("model", "twin", "data"):
        shutil.copytree(getattr(place, name), tmp_path / f"own-{name}")
    return Place(*(str(tmp_path / f"own-{name}") for name in ("model", "twin", "data")))


def begin(settings, out, **more) -> None:
    with pytest.raises(StopError):
        run_study(settings, out, **more)


def test_other_models_are_refused(own, tmp_path, stopped):
    run = tmp_path / "run"
    begin(own.study(), run)
    begin(own.study(), run)
    (tmp_path / "small").symlink_to(own.twin)
    change_weights(tmp_path)
    with pytest.raises(RunRefusedError, match=r"holds another run .the .* of own-twin changed"):
        run_study(own.study(), run)
    with pytest.raises(RunRefusedError, match="of own-twin changed"):
        resume_study(run)
    begin(own.study(), run, fresh=True)
    begin(own.study(), run)


def test_a_corpus_that_was_made_and_edited_is_refused(tmp_path, stopped):
    """The study's own copy is what its stages ask."""
    run, settings = tmp_path / "run", StudySettings(size="quick", facts=2, device="cpu")
    begin(settings, run)
    begin(settings, run)
    path = run / "data" / "corpus" / "d2p_same.jsonl"
    before = path.read_text()
    path.write_text(before.replace("the", "thy"))
    with pytest.raises(RunRefusedError, match="the contents of the data changed"):
        run_study(settings, run)
    begin(settings, run, fresh=True)
    assert path.read_text() == before


def test_fresh_removes_the_study_and_nothing_else(
    finished, place, tmp_path, stopped, monkeypatch, capsys
):
    run = shutil.copytree(finished.folder, tmp_path / "run")
    notes = [run / "notes.txt", run / "recall" / "notes.txt"]
    for path in notes:
        path.write_text("somebody's own")
    begin(place.study(), run, fresh=True)
    left = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    assert left == {"run.json", "recall/run.json", "notes.txt", "recall/notes.txt"}
    mixed = [*place.words("--out", run), "--fresh", "--resume"]
    code, printed = run_main(mixed, monkeypatch, capsys)
    assert code == 2 and "--resume and --fresh were both given" in printed


def test_fresh_leaves_a_corpus_alone_that_the_study_did_not_make(place, tmp_path, stopped):
    run = tmp_path / "run"
    begin(place.study(), run)
    own = run / "data" / "corpus" / "own.jsonl"
    own.parent.mkdir(parents=True)
    own.write_text("somebody's own")
    with pytest.raises(unmask.UserError, match="corpus already exists and would be overwritten"):
        run_study(StudySettings(size="quick", facts=2, device="cpu"), run, fresh=True)
    assert own.read_text() == "somebody's own"


def test_a_study_in_use_is_refused(place, tmp_path, stopped):
    """Be it the study's folder or that of a stage, which must not count as not measured."""
    run = tmp_path / "run"
    begin(place.study(), run)
    for folder in (run, run / "recall"):
        with lock_run(folder), pytest.raises(RunRefusedError, match=f"{folder} is in use by"):
            run_study(place.study(), run)
    assert not StudyRun(run).records()


@pytest.mark.prove  # what shows stages is tried in tests/base/test_progress.py
def test_every_stage_is_shown_once(place, tmp_path):
    words = place.words("--stages", "recall,order", "--out", tmp_path / "run")
    lines = run_in_terminal([sys.executable, "-m", "unmask", *words])
    bars = [line for line in lines if "━" in line]
    assert [bar.split()[0] for bar in bars] == ["recall", "order", "page"]
    assert all("1/1" in bar for bar in bars)

"""The study from data to page: what it leaves, that it resumes, and what it says."""

import json
import shutil

import pytest
from typer.testing import CliRunner

import unmask
from unmask.base.tables import read_table
from unmask.cli.main import app
from unmask.report.artefacts import PAGE, SCHEMAS, SYMMETRY, StudyFolder
from unmask.study import tracing
from unmask.study.pipeline import is_done, run_study
from unmask.study.settings import SIZES, STAGES
from unmask.tracing.averages import SCHEMA as AVERAGES

MOST_STEPS = SIZES["quick"].steps[-1]


def numbers(run: StudyFolder) -> dict:
    """Everything that was measured but the time it took."""
    found = {}
    for name, schema in SCHEMAS.items():
        if run.has(name):
            table = read_table(run.path / name, schema)
            kept = [column for column in table.column_names if column != "seconds"]
            found[name] = repr(table.select(kept).to_pylist())  # NaN is like NaN here
    return found


def test_every_stage_leaves_its_mark(finished):
    assert all(is_done(finished, stage) for stage in STAGES)
    assert (finished.path / PAGE).stat().st_size < 8_000_000
    for name in (
        "recall/recall",
        "denoising/order",
        "tracing/twins-resid",
        "along/steps-masked-d2p-reverse-mask",
    ):
        for ending in ("png", "pdf"):
            assert (finished.path / "figures" / f"{name}.{ending}").is_file()


def test_what_the_pair_was_taught_is_found(finished):
    summary = finished.summary
    hits = {
        (model, split): summary.find(model, split, MOST_STEPS).value.mean
        for model in ("diffusion", "twin")
        for split in ("d2p_same", "p2d_same", "p2d_reverse", "d2p_reverse")
    }
    assert hits["diffusion", "p2d_reverse"] == 1 and hits["twin", "p2d_reverse"] == 0
    assert hits["diffusion", "d2p_reverse"] == 0
    assert hits["diffusion", "d2p_same"] == hits["twin", "d2p_same"] == 1


def test_a_second_run_changes_nothing(finished, place):
    files = [path for path in finished.path.rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files if "stages" not in path.parts}
    again = run_study(place.study(), finished.path, device="cpu")
    assert again.path == finished.path
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.usefixtures("no_figures")
def test_an_interrupted_study_ends_with_the_same_numbers(finished, place, tmp_path, monkeypatch):
    """Stopped in the middle of tracing, once by Ctrl-C, once by a mark that was never written."""
    run, combine = tmp_path / "run", tracing.combine
    calls = []

    def stop(*words):
        calls.append(words)
        raise KeyboardInterrupt

    monkeypatch.setattr(tracing, "combine", stop)
    with pytest.raises(KeyboardInterrupt):
        run_study(place.study(), run, device="cpu")
    assert (
        calls and not is_done(StudyFolder(run), "tracing") and is_done(StudyFolder(run), "recall")
    )
    monkeypatch.setattr(tracing, "combine", combine)
    shutil.rmtree(run / "denoising")  # artefacts that are gone are made again
    told = []
    run_study(place.study(), run, device="cpu", tell=lambda name, took: told.append((name, took)))
    made = {name for name, took in told if took is not None}
    assert made == {"denoising", "tracing", "symmetry", "page"}
    assert numbers(StudyFolder(run)) == numbers(finished)


@pytest.mark.usefixtures("no_figures")
def test_what_gets_lost_is_made_anew(finished, place, tmp_path):
    """Every table of a stage is one of its artefacts, down to those that the page alone reads."""
    shutil.copytree(finished.path, tmp_path / "run")
    lost = [tmp_path / "run" / name for name in ("tracing/maps.parquet", "tracing/tests.parquet")]
    kept = [path.read_bytes() for path in lost if path.is_file()]
    for path in lost:
        path.unlink(missing_ok=True)
    words = [*place.words(), "--out", str(tmp_path / "run")]
    CliRunner().invoke(app, words, catch_exceptions=False)
    assert [path.read_bytes() for path in lost if path.is_file()] == kept and kept


def test_a_number_format_that_is_none_takes_no_folder(place, tmp_path):
    words = [*place.words(), "--dtype", "int8", "--out", str(tmp_path / "run")]
    found = CliRunner().invoke(app, words)
    assert isinstance(found.exception, unmask.UserError) and not (tmp_path / "run").exists()


def test_a_stage_alone_and_another_run_in_its_folder(place, tmp_path):
    found = run_study(place.study(), tmp_path / "run", stages=["denoising"], device="cpu")
    assert is_done(found, "data") and is_done(found, "denoising")
    assert not is_done(found, "recall") and not found.has(PAGE)
    with pytest.raises(unmask.UserError, match="guidance was 0.0 and is now 0.5"):
        run_study(place.study(guidance=0.5), tmp_path / "run", stages=["data"])
    with pytest.raises(unmask.UserError, match="no stage 'recal': did you mean 'recall'"):
        run_study(place.study(), tmp_path / "run", stages=["recal"])


def test_ways_that_are_not_recalled_are_told_and_not_drawn(finished):
    notes = " ".join(finished.notes("tracing"))
    assert "diffusion recalls none of the facts that were to be traced with name given" in notes
    rows = finished.rows("tracing/averages.parquet")
    ways = {(row["kind"], row["direction"], row["trained"]) for row in rows}
    assert ("masked", "p2d", "reverse") not in ways and ("masked", "d2p", "reverse") in ways
    assert not any(kind == "causal" and trained == "reverse" for kind, _, trained in ways)


def test_twins_are_traced_under_one_corruption(finished):
    rows = finished.rows("tracing/averages.parquet")
    by_kind = {
        kind: {row["corruption"] for row in rows if row["kind"] == kind}
        for kind in ("masked", "causal")
    }
    assert by_kind == {"masked": {"mask", "mean"}, "causal": {"mean"}}


def test_effects_of_single_texts_are_those_of_the_survey(finished):
    """The cells kept for the page, averaged by role, are the averages of the facts followed."""
    cells = finished.rows("tracing/maps.parquet")
    averages = read_table(finished.path / "tracing/along/averages.parquet", AVERAGES).to_pylist()
    wanted = [
        row
        for row in averages
        if row["control"] == "none" and row["layer"] >= 0 and row["facts"] == 1
    ]
    assert wanted
    for row in wanted:
        names = ("direction", "trained", "stage", "part", "layer", "role")
        mine = [cell for cell in cells if all(cell[name] == row[name] for name in names)]
        assert sum(cell["effect"] for cell in mine) / len(mine) == pytest.approx(row["mean"])


def test_symmetry_is_measured_or_a_sentence(finished):
    notes = finished.notes("symmetry")
    assert finished.has(SYMMETRY) or any("not compared" in note for note in notes)
    assert all(note.endswith(".") for note in notes)


@pytest.mark.usefixtures("no_figures")
def test_own_facts(place, tmp_path):
    """A file of one's own facts goes through every stage, without a twin."""
    lines = "\n".join(f"{name},{thing},They say {{}} makes" for name, thing in
                      (("Dan", "wax masks"), ("Eve", "blue ropes")))  # fmt: skip
    (tmp_path / "own.csv").write_text(f"subject,object,prompt\n{lines}\n")
    settings = place.study(data=str(tmp_path / "own.csv"), twin=None)
    found = run_study(settings, tmp_path / "run", device="cpu")
    assert found.summary.find("diffusion", "own", MOST_STEPS).value.mean == 1
    page = (tmp_path / "run" / PAGE).read_text()
    assert "one&#39;s own facts" in page and "no twin was given" in page


def test_sizes_are_sound():
    for size in SIZES.values():
        assert size.examples <= size.watched and size.followed <= size.traced
        assert set(size.along_parts) <= set(size.parts)


@pytest.mark.usefixtures("no_figures")
def test_command(finished, place, tmp_path):
    """What the command prints: a panel, or JSON; and that --resume takes the folder's settings."""
    shutil.copytree(finished.path, tmp_path / "run")
    out = ["--out", str(tmp_path / "run")]
    shown = CliRunner().invoke(app, [*place.words(), *out], catch_exceptions=False)
    assert "recall: there already" in shown.stdout and "page: file://" in shown.stdout
    assert "100 % [29, 100]" in shown.stdout and "0 % [0, 71]" in shown.stdout
    told = CliRunner().invoke(app, ["study", "--resume", "--json", *out], catch_exceptions=False)
    found = json.loads(told.stdout)
    assert [number["value"] for number in found["numbers"]][:2] == [
        "100 % [29, 100]",
        "0 % [0, 71]",
    ]
    assert len(found["numbers"]) == 4 and "could be chance" in found["summary"][0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--twin", "x"], "without a diffusion model"),
        (["--quick", "--full"], "leave one of them out"),
        (["--resume"], "run.json is not there"),
        (["--model", "{twin}"], "is a causal model: the study un-masks texts"),
        (["--model", "{model}", "--twin", "{model}"], "was given as the model and as its twin"),
    ],
)
def test_mistakes(place, tmp_path, words, said):
    given = [word.format(model=place.model, twin=place.twin) for word in words]
    found = CliRunner().invoke(app, ["study", *given, "--out", str(tmp_path / "run")])
    assert isinstance(found.exception, unmask.UserError) and said in str(found.exception)
    assert not (tmp_path / "run").exists()


def test_interrupt_says_how_to_go_on(place, tmp_path, monkeypatch, capsys):
    from unmask.cli.main import main

    def stop(*words, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("unmask.study.pipeline.run_study", stop)
    monkeypatch.setattr("sys.argv", ["unmask", *place.words("--out", tmp_path / "run")])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 130
    assert f"go on where it stopped with: unmask study --resume --out {tmp_path}" in (
        capsys.readouterr().err
    )

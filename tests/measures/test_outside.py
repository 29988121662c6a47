"""A measure of another package: one file, and everything is derived from it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "calibration.py"


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """The example as an installed package: its one file and the entry point that names it."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "calibration_of_theirs.py").write_text(EXAMPLE.read_text("utf-8"))
    info = folder / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[unmask.measures]\ncalibration = calibration_of_theirs:MEASURE\n"
        "broken = a_module_that_is_not_there:MEASURE\n"
    )
    return folder


def run(package: Path, *words: object) -> subprocess.CompletedProcess[str]:
    paths = [str(package), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"COLUMNS": "160", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    command = [sys.executable, "-m", "unmask", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_a_verb_a_stage_a_section_and_reports(package, place, tmp_path):
    """No file of this package knows the measure."""
    folder = tmp_path / "run"
    ask = ["calibration", place.model, place.twin, "--data", place.data, "--steps", 4]
    done = run(package, *ask, "--out", folder)
    assert done.returncode == 0, done.stderr
    assert "Is a model as sure as it is right?" in done.stdout
    assert "description → name, as trained" in done.stdout and "[not settled]" in done.stdout
    # An entry point that fails is one sentence, and everything else works.
    assert "the measure 'broken' of another package cannot be imported" in done.stderr
    assert "Traceback" not in done.stderr

    shown = run(package, "calibration", "--help")
    assert "--steps" in shown.stdout and "Sampling steps." in shown.stdout
    assert "calibration" in run(package, "--help").stdout
    wrong = run(package, *ask, "--steps", 0, "--out", tmp_path / "none")
    assert wrong.returncode == 2 and "'steps' is 0, expected at least 1" in wrong.stderr
    printed = json.loads(run(package, *ask, "--out", folder, "--json").stdout)
    assert set(printed["verdicts"]) == {"diffusion", "twin"}

    for page in ("page.md", "page.html"):
        drawn = run(package, "report", folder, "--out", tmp_path / page)
        assert drawn.returncode == 0, drawn.stderr
        text = (tmp_path / page).read_text("utf-8")
        assert "Is a model as sure as it is right?" in text and "Confidence minus hits" in text
    drawn = run(package, "report", folder, "--out", tmp_path / "figures")
    assert drawn.returncode == 0, drawn.stderr
    assert list((tmp_path / "figures").rglob("calibration*.png"))

    study = ["study", "--model", place.model, "--twin", place.twin, "--data", place.data]
    done = run(package, *study, "--quick", "--stages", "calibration", "--out", tmp_path / "study")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "study" / "page.html").read_text("utf-8")
    assert "Is a model as sure as it is right?" in page


def test_a_notebook_registers_by_a_call(place, monkeypatch):
    """In one process, without an entry point; the measure itself is the call."""
    import importlib.util

    import unmask
    from unmask.measures import table
    from unmask.measures.table import find_measure, register

    monkeypatch.setattr(table, "_REGISTERED", {})  # other tests go over all measures
    spec = importlib.util.spec_from_file_location("calibration_of_a_notebook", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    measure = register(module.MEASURE)
    assert find_measure("calibration") is measure
    result = measure(unmask.load(place.model), data=place.data, steps=2)
    assert set(result.verdicts) == {"diffusion"} and result.rows()
    with pytest.raises(unmask.UserError, match="there is a measure 'nll' already"):
        from dataclasses import replace

        register(replace(measure, name="nll"))

"""A measure of another package: one file, and everything is derived from it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "calibration.py"

COMMANDS = """
import json, sys
from tests.commands import run
for words in json.load(sys.stdin):
    done = run(*words, columns=160)
    print(json.dumps([done.returncode, done.stdout, done.stderr]))
"""


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


def run_all(package: Path, *commands: list) -> tuple[list[tuple[int, str, str]], str]:
    """Each command's exit code and what it prints, of one process; what that prints besides."""
    paths = [str(package), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        input=json.dumps([[str(word) for word in words] for words in commands]),
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()], done.stderr


def test_a_verb_a_stage_a_section_and_reports(package, place, tmp_path):
    """No file of this package knows the measure."""
    folder = tmp_path / "run"
    ask = ["calibration", place.model, place.twin, "--data", place.data, "--steps", 4]
    study = ["study", "--model", place.model, "--twin", place.twin, "--data", place.data]
    outs = [tmp_path / name for name in ("page.md", "page.html", "figures")]
    done, said = run_all(
        package,
        [*ask, "--out", folder],
        ["calibration", "--help"],
        ["--help"],
        [*ask, "--steps", 0, "--out", tmp_path / "none"],
        [*ask, "--out", folder, "--json"],
        *(["report", folder, "--out", out] for out in outs),
        [*study, "--quick", "--stages", "calibration", "--out", tmp_path / "study"],
    )
    assert [code for code, _, _ in done] == [0, 0, 0, 2, 0, 0, 0, 0, 0], done
    asked, shown, verbs, wrong, printed, *_ = done
    assert "Is a model as sure as it is right?" in asked[1]
    assert "description → name, reversed" in asked[1] and "[not settled]" in asked[1]
    # An entry point that fails is one sentence, and everything else works.
    said += asked[2]
    assert "the measure 'broken' of another package cannot be imported" in said
    assert "Traceback" not in said

    assert "--steps" in shown[1] and "Sampling steps." in shown[1]
    assert "calibration" in verbs[1]
    assert "'steps' is 0, expected at least 1" in wrong[2]
    gaps = [row for row in json.loads(printed[1])["summary"]["means"] if row["metric"] == "gap"]
    assert {row["model"] for row in gaps if row["outcome"]} == {"diffusion", "twin"}

    for page in outs[:2]:
        text = page.read_text("utf-8")
        assert "Is a model as sure as it is right?" in text and "Confidence minus hits" in text
    assert list(outs[2].rglob("*.png"))
    page = (tmp_path / "study" / "page.html").read_text("utf-8")
    assert "Is a model as sure as it is right?" in page


def test_a_notebook_registers_by_a_call(place, monkeypatch):
    """In one process, without an entry point; the measure itself is the call."""
    import importlib.util

    import unmask
    from unmask.measures import table
    from unmask.measures.measure import register
    from unmask.measures.table import find_measure

    monkeypatch.setattr(table, "_REGISTERED", {})  # other tests go over all measures
    spec = importlib.util.spec_from_file_location("calibration_of_a_notebook", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    measure = register(module.MEASURE)
    assert find_measure("calibration") is measure
    result = measure(unmask.load(place.model), data=place.data, steps=2)
    assert len(result.outcomes) == len(result.summary["means"]) / 3 and result.rows()
    with pytest.raises(unmask.UserError, match="there is a measure 'nll' already"):
        from dataclasses import replace

        register(replace(measure, name="nll"))
